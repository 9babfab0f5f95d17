"""Pairs of sequences from their file to scores, and which are refused."""

import json
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import resumed
from datasets import Dataset

import alignattn
from alignattn.cli import main
from alignattn.commands.figure import FigureOptions, make_figure
from alignattn.tasks import SequenceToSequence
from alignattn.tasks.definitions import TASKS, get_task
from alignattn.tasks.rows import load_task_files
from alignattn.tasks.sequence_to_sequence import Nearest, edit_distance, error_rate, nearest, units_of
from alignattn.tasks.task import TaskOptions

TASK = """kind: text2text-generation
source_column: word
target_column: spoken
source_units: characters
sources: {files: {train: pairs.tsv, validation: pairs.tsv}}
"""
WORDS = ["".join(letters) for letters in product("abc", repeat=3)]
PAIRS = "word\tspoken\n" + "".join(f"{word}\t{' '.join(word.upper())}\n" for word in WORDS)
SMALL = "--model_config embedding_dim=16 hidden_dim=16 dropout=0.0 --per_device_train_batch_size 9"
QUIET = "--use_cpu true --disable_tqdm true --learning_rate 0.01"


@pytest.fixture
def task_file(tmp_path):
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    path = tmp_path / "pairs.yaml"
    path.write_text(TASK)
    return path


def finetune(task, folder, words):
    return main(f"finetune --task {task} --output_dir {folder} {SMALL} {QUIET} {words}".split())


def test_edit_distance_is_minimal_and_the_nearest_reference_counts():
    def fewest(first, second):
        if not first or not second:
            return len(first) + len(second)
        if first[0] == second[0]:
            return fewest(first[1:], second[1:])
        return 1 + min(fewest(first[1:], second), fewest(first, second[1:]), fewest(first[1:], second[1:]))

    for first, second in [("kitten", "sitting"), ("", "ab"), ("ab", ""), ("abcd", "badc"), ("aa", "aa")]:
        assert edit_distance(first, second) == edit_distance(second, first) == fewest(first, second)
    assert nearest("ab", ["xyz", "abc", "a"]) == Nearest(edits=1, length=3)
    assert error_rate([Nearest(1, 3), Nearest(0, 2)]) == 0.2


@pytest.mark.parametrize(
    ("units", "text", "parts"), [("words", "a  bc d", ["a", "bc", "d"]), ("characters", "a b", "a b")]
)
def test_units_are_composed_and_joined_again(units, text, parts):
    assert units_of(text, units) == list(parts)
    assert units_of("e\u0301", units) == ["\u00e9"]
    assert units_of(text, units) == list(parts)


def test_a_run_and_its_predictions_use_beam_search(task_file, tmp_path):
    run = tmp_path / "run"
    assert finetune(task_file, run, "--model seq2seq-lstm --num_train_epochs 4 --score additive --num_beams 2") == 0
    metrics = json.loads((run / "results.json").read_text())["metrics"]["validation"]
    table = pq.read_table(run / "predictions.parquet").to_pylist()
    assert metrics["exact"] == sum(row["edits"] == 0 for row in table) / len(WORDS)
    assert metrics["error_rate"] == sum(row["edits"] for row in table) / sum(row["length"] for row in table)
    predictor = alignattn.load_run(run)
    drawn = make_figure(
        FigureOptions(kind="attention", run=(str(run),), output_file=str(tmp_path / "abc.png"), text=("abc",))
    )
    (told,) = predictor.predict(["abc"])
    read, written = (
        [label.get_text() for label in axis.get_ticklabels()] for axis in (drawn.axes[0].xaxis, drawn.axes[0].yaxis)
    )
    # At the maximum length there is no end; the padding of shorter beams is not drawn.
    assert " ".join(written).removesuffix(" [EOS]") == told["prediction"]
    assert read == ["a", "b", "c", "[EOS]"]
    weights = np.asarray(drawn.axes[0].images[0].get_array())
    assert weights.shape == (len(written), len(read))
    assert weights.sum(axis=1) == pytest.approx(1, rel=1e-5)
    for batch_size in (1, 27):
        found = predictor.predict(WORDS, batch_size=batch_size)
        assert [row["prediction"] for row in found] == [row["prediction"] for row in table]
        assert [row["probability"] for row in found] == pytest.approx([row["probability"] for row in table], rel=1e-4)
    by_width = {beams: predictor.with_beams(beams).predict(WORDS) for beams in (1, 4)}
    for beams, rows in by_width.items():
        written = tmp_path / f"{beams}.jsonl"
        (tmp_path / "words.csv").write_text("\n".join(["word", *WORDS]) + "\n")
        words = f"predict --run {run} --file {tmp_path / 'words.csv'} --num_beams {beams} --output_file {written}"
        assert main(words.split()) == 0
        told = [json.loads(line) for line in written.read_text().splitlines()]
        assert [row["prediction"] for row in told] == [row["prediction"] for row in rows]
    likelier = [wide["probability"] - greedy["probability"] for greedy, wide in zip(*by_width.values(), strict=True)]
    assert max(likelier) > 0


def test_the_distance_of_queries_and_keys_is_logged_for_a_generative_model(task_file, tmp_path):
    run = tmp_path / "run"
    words = "--model seq2seq-lstm --score additive --max_steps 2 --logging_steps 1 --log_query_key_distance true"
    assert finetune(task_file, run, words) == 0
    logged = json.loads((run / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in logged if "query_key_distance" in entry] == [0, 1, 2]


def test_max_length_truncates_targets_with_a_message_and_bounds_predictions(task_file, tmp_path, capsys):
    """One long target does not make the predictions of all rows long."""
    (tmp_path / "pairs.tsv").write_text(PAIRS + "aab\t" + " ".join("ABC" * 100) + "\n")
    run = tmp_path / "run"
    assert finetune(task_file, run, "--model seq2seq-lstm --max_steps 1 --max_length 8") == 0
    out = capsys.readouterr().out
    assert "of the rows reach --max_length 8" in out
    cut = json.loads((run / "results.json").read_text())["truncated_rows"]
    assert (cut["train"]["rows"], cut["validation"]["rows"]) == (1, 1)
    written = pq.read_table(run / "predictions.parquet")["prediction"].to_pylist()
    assert max(len(text.split()) for text in written) <= 8
    tokenizer = alignattn.load_run(run).tokenizer
    texts = {"word": ["a", "b"], "spoken": [["A B C"], [" ".join("ABC" * 100)]]}
    whole, part = get_task(str(task_file)).encode(Dataset.from_dict(texts), tokenizer, TaskOptions(8))["labels"]
    assert (len(whole), len(part)) == (4, 8)
    assert whole[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in part


def test_a_resumed_run_equals_an_uninterrupted_one(task_file, tmp_path, capsys):
    words = f"--task {task_file} {SMALL} --model seq2seq-transformer --attention soft --num_train_epochs 2".split()
    run = tmp_path / "run"
    resumed.finetune(words, run)
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    resumed.assert_goes_on(words, run, capsys)
    assert json.loads((run / "results.json").read_text())["metrics"] == metrics


@pytest.mark.parametrize(("line", "said"), [("\tA", "'word' is empty"), ("a\t", "'spoken' is empty")])
def test_a_pair_with_an_empty_side_is_refused_in_one_line(line, said, task_file, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text(PAIRS + line + "\n")
    assert finetune(task_file, tmp_path / "run", "--model seq2seq-lstm") == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert said in told
    assert f"row {len(WORDS) + 1}" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model seq2seq-lstm --attention aa-ct", "one query at a time"),
        ("--model seq2seq-transformer --value qvi", "leak later words"),
        ("--model esim", "is for|compares two texts"),
        ("--model seq2seq-lstm --num_beams 0", "num_beams"),
    ],
)
def test_impossible_options_are_refused_in_one_line(words, said, task_file, tmp_path, capsys):
    assert finetune(task_file, tmp_path / "run", words) == 2
    (told,) = capsys.readouterr().err.strip().splitlines()
    assert any(part in told for part in said.split("|"))


def test_targets_that_are_not_text_are_refused():
    task, rows = SequenceToSequence(name="own"), Dataset.from_dict({"source": ["a"], "target": [3]})
    with pytest.raises(alignattn.AlignAttnError, match="column 'target' holds int64"):
        task.normalise(rows)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view()), pa.string_view()]
)
def test_targets_of_every_arrow_type_of_texts_are_read(kind, tmp_path):
    targets = [["x"], ["y", "z"]] if pa.types.is_nested(kind) else ["x", "y"]
    pq.write_table(pa.table({"source": ["a", "b"], "target": pa.array(targets, kind)}), tmp_path / "rows.parquet")
    rows = load_task_files(SequenceToSequence(name="own"), tmp_path / "rows.parquet", None)
    assert rows.train["target"][:] == ([["x"], ["y", "z"]] if pa.types.is_nested(kind) else [["x"], ["y"]])


def test_cmudict_is_split_by_word_and_its_alternates_stay_together():
    task = TASKS["cmudict"]
    parts = {name: task.read_split(name, None, None)[0] for name in ("train", *task.evaluation_splits)}
    words = {name: part[task.source_column][:] for name, part in parts.items()}
    sets = [set(part) for part in words.values()]
    assert len(set().union(*sets)) == sum(map(len, sets)) > 126_000
    assert len(words["test"]) == len(set(words["test"]))
    spoken = parts["test"][task.target_column][:]
    assert len({phoneme for row in spoken for text in row for phoneme in text.split()}) == 39
    assert any(len(row) > 1 for row in spoken)
    assert all(len(row) == 1 for row in parts["train"][task.target_column][:])
    with pytest.raises(alignattn.AlignAttnError, match="no split 'dev'"):
        task.read_split("dev", None, None)
