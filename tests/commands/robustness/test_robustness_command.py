"""`alignattn robustness` from a run of `finetune` to the table, on real sentences with the local resources."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from needs import needs_files
from robustness_helpers import NEIGHBORS, NLTK_DATA, RESOURCES, WEIGHTS, drop_last_line, sentence_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from alignattn.cli import main
from alignattn.commands.robustness import RobustnessOptions, target_loaders
from alignattn.robustness.loop import AttackJob, attack_rows
from alignattn.robustness.models import wrap_model
from alignattn.robustness.recipes import RECIPES, build_attack
from alignattn.robustness.records import AttackSettings
from alignattn.robustness.resources import named_model

pytestmark = needs_files(RESOURCES)
pytest_plugins = ["robustness_fixtures"]


@pytest.fixture(scope="module")
def run_folder(shallow_minilm, shared_data, tmp_path_factory):
    """The encoder, shortly fine-tuned on SST-2."""
    folder = tmp_path_factory.mktemp("runs") / "sst2-aa-ct"
    words = (
        f"finetune --model {shallow_minilm} --task sst2 --data_dir {shared_data} --attention aa-ct "
        "--max_train_samples 128 --max_eval_samples 8 --num_train_epochs 2 --learning_rate 2e-4 "
        f"--per_device_train_batch_size 16 --save_strategy no --disable_tqdm true --use_cpu true --output_dir {folder}"
    )
    assert main(words.split()) == 0
    return folder


@pytest.fixture
def words(run_folder, mlm, shallow_minilm):
    return (
        f"robustness --run {run_folder} --num_examples 3 --max_length 64 --sentence_encoder {shallow_minilm} "
        f"--neighbors {NEIGHBORS} --mlm {mlm} --nltk_data {NLTK_DATA}"
    ).split()


def _another_model(run, folder, lines=1):
    """Copy a run as another model: a file ends in more empty lines, so the digest differs."""
    shutil.copytree(run, folder)
    with (folder / "tokenizer.json").open("a") as file:
        file.write("\n" * lines)
    return folder


def table_of(folder):
    (table,) = json.loads((folder / "robustness.json").read_text())["tables"]
    return table["summaries"]


def test_every_recipe_attacks_a_run_and_fills_the_table(words, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main([*words, "--output_dir", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "neighbour lists of at most 8 words" in printed  # the caption names the resources
    summaries = table_of(folder)
    assert [summary["settings"]["recipe"] for summary in summaries] == list(RECIPES)
    for summary in summaries:
        assert summary["failed"] + summary["succeeded"] == 3
        assert summary["errors"] == 0
        assert summary["settings"]["attention"] == "aa-ct"
    assert (folder / "robustness.csv").is_file()
    records = folder / "sst2-aa-ct" / "textfooler.jsonl"
    before = records.read_bytes()
    assert main([*words, "--output_dir", str(folder)]) == 0  # finished: attacks nothing
    assert records.read_bytes() == before
    assert table_of(folder) == summaries


def test_an_unreadable_last_run_is_refused_before_the_first_attack(words, run_folder, tmp_path, capsys):
    other = tmp_path / "broken"
    shutil.copytree(run_folder, other)
    (other / WEIGHTS).unlink()
    options = [*words[3:], "--recipes", "textbugger", "--output_dir", str(tmp_path / "out")]
    assert main(["robustness", "--run", str(run_folder), str(other), *options]) == 2
    assert "cannot load the model" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*/*.jsonl"))


STRANGE_TEXTS = ("1234 , 5 !!! ...", "", "?!", "a good movie " * 40)
"""Digits and punctuation, nothing, no word, 120 words."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_counts_strange_rows(recipe, run_folder, resources, tmp_path):
    wrapper = wrap_model(
        AutoModelForSequenceClassification.from_pretrained(run_folder),
        AutoTokenizer.from_pretrained(run_folder),
        max_length=16,
    )
    attack = build_attack(recipe, wrapper, resources)
    attack.goal_function.query_budget = 50  # ends while it ranks the 120 words
    labels = wrapper(STRANGE_TEXTS).argmax(dim=1).tolist()
    texts = [*STRANGE_TEXTS, "a good movie"]
    rows = sentence_rows(texts, [*labels, 7])
    made_of = resources.describe(recipe)
    settings = AttackSettings(
        "run", "12ab", "sst2", "validation", "soft", recipe, ("sentence",), 16, 1, len(rows), "float32", made_of
    )
    records = attack_rows(attack, AttackJob(rows, tmp_path / f"{recipe}.jsonl", settings)).records
    assert [record.error for record in records[:-1]] == [None] * len(STRANGE_TEXTS)
    assert [record.outcome for record in records[1:3]] == ["failed"] * 2  # nothing in them can be changed
    assert {record.outcome for record in records[:-1]} <= {"failed", "succeeded"}
    assert (records[4].outcome, records[4].error) == ("skipped", "label 7 is not one of the model's 2 classes")


def test_runs_fill_one_table_and_keep_their_records_in_any_combination_of_calls(words, run_folder, tmp_path, capsys):
    runs = [tmp_path / name / "seed-1" for name in ("soft", "aa-ct")]
    for lines, run in enumerate(runs, 1):
        _another_model(run_folder, run, lines)
    options, folder = [*words[3:], "--recipes", "textbugger"], tmp_path / "out"
    assert main(["robustness", "--run", *map(str, runs), *options, "--output_dir", str(folder)]) == 0
    assert [summary["settings"]["run"] for summary in table_of(folder)] == [named_model(run) for run in runs]
    written = {path: path.read_bytes() for path in folder.glob("*/*.jsonl")}
    assert {path.parent.name for path in written} == {"soft-seed-1", "aa-ct-seed-1"}
    # The table has all finished attacks of the folder.
    for run in runs:
        assert main(["robustness", "--run", str(run), *options, "--output_dir", str(folder)]) == 0
        assert len(table_of(folder)) == len(runs)
    assert {path: path.read_bytes() for path in folder.glob("*/*.jsonl")} == written
    unfinished = folder / "soft-seed-1" / "textbugger.jsonl"
    drop_last_line(unfinished)
    capsys.readouterr()
    assert main(["robustness", "--run", str(runs[1]), *options, "--output_dir", str(folder)]) == 0
    assert f"left out of the table: {unfinished} holds" in capsys.readouterr().out
    assert len(table_of(folder)) == 1


def test_the_folder_of_several_seeds_is_refused(words, run_folder, tmp_path, capsys):
    seed = tmp_path / "runs" / "seed-2"
    shutil.copytree(run_folder, seed)
    assert main(["robustness", "--run", str(seed.parent), *words[3:]]) == 2
    assert f"give the folder of a seed, such as {seed}" in capsys.readouterr().err


def test_runs_of_the_same_name_get_longer_names(run_folder, tmp_path):
    runs = [tmp_path / name / "mrpc" / "seed-1" for name in ("old", "new")]
    for lines, run in enumerate(runs, 1):
        _another_model(run_folder, run, lines)
    loaders = target_loaders(RobustnessOptions(run=[str(run) for run in runs]))
    assert [load().name for load in loaders] == ["old-mrpc-seed-1", "new-mrpc-seed-1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--recipes pwws", "--recipes 'pwws': choose one of textfooler, textbugger, bae"),
        ("--attack_columns sentence2", "--attack_columns sentence2: choose from the task's columns: sentence"),
        ("--neighbors missing.parquet", "there is no file missing.parquet: give another to --neighbors"),
        ("--synonyms wordnet", "--synonyms does not go with --neighbors"),
        ("--model somewhere --task sst2", "--model does not go with --run"),
        ("--run .", "is not a run folder of"),
        ("--num_examples 0", "--num_examples 0 must be at least 1"),
        ("--max_length 9999", "9999"),
        ("--recipes bae bae", "--recipes bae bae contains a recipe twice"),
        (
            "--seed 99999999999999999999",
            "--seed 99999999999999999999 must be a number of 64 bits and at least 0 and at most 4294967295",
        ),
        ("--half_precision", "--half_precision needs a CUDA GPU"),
    ],
)
def test_mistakes_are_one_line(changes, message, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if changes.startswith("--run"):
        place = words.index("--run")
        words = words[:place] + words[place + 2 :]
    assert main([*words, *changes.split(), "--output_dir", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("out/*/*.jsonl"))


def test_a_regression_is_refused_before_the_attack(minilm, shared_data, tmp_path, capsys):
    words = f"robustness --model {minilm} --task stsb --data_dir {shared_data} --output_dir {tmp_path / 'out'}"
    local = f"--neighbors {NEIGHBORS} --sentence_encoder {minilm} --mlm {minilm}"
    assert main([*words.split(), *local.split()]) == 2
    assert "task 'stsb' has none" in capsys.readouterr().err


def test_a_missing_model_is_reported_once(tmp_path, capsys, shared_data):
    words = f"robustness --model {tmp_path / 'none'} --task sst2 --data_dir {shared_data} --recipes textbugger"
    local = f"--neighbors {NEIGHBORS} --output_dir {tmp_path / 'out'}"
    assert main([*words.split(), *local.split()]) == 2
    assert capsys.readouterr().err.splitlines()[-1].count("cannot load the model") == 1


def test_bad_rows_are_named_or_left_out_and_a_shortage_of_rows_is_reported(run_folder, minilm, tmp_path, capsys):
    rows = {"sentence": ["a fine movie", "", "1234 !!!", "a dull , awful movie"], "label": [1, 1, 0, 7]}
    (tmp_path / "glue" / "sst2").mkdir(parents=True)
    pq.write_table(pa.table(rows), tmp_path / "glue" / "sst2" / "validation.parquet")
    words = (
        f"robustness --model {run_folder} --task sst2 --data_dir {tmp_path} --recipes textbugger "
        f"--nltk_data {NLTK_DATA} --sentence_encoder {minilm} "
        f"--neighbors {NEIGHBORS} --output_dir {tmp_path / 'out'}"
    ).split()
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "row 2: column 'sentence' is empty; row 4: label 7 is" in told
    assert "(2 bad of 4 rows)" in told
    assert main([*words, "--skip_bad_rows"]) == 0
    printed = capsys.readouterr().out
    assert "sst2 validation: 2 unusable rows left out" in printed
    assert "the split has fewer than 1000" in printed
    (summary,) = table_of(tmp_path / "out")
    assert summary["failed"] + summary["succeeded"] + summary["skipped"] == 2


def test_records_of_other_settings_are_refused_before_the_first_attack(words, tmp_path, capsys):
    words = [*words, "--num_examples", "1", "--output_dir", str(tmp_path / "out")]
    assert main([*words, "--recipes", "textbugger"]) == 0
    capsys.readouterr()
    assert main([*words, "--recipes", "textfooler", "textbugger", "--seed", "7"]) == 2
    assert "textbugger.jsonl belongs to another run: seed 42 and 7" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("out/*/textfooler*"))


def test_a_run_keeps_its_folder_when_another_call_has_a_run_of_the_same_name(words, run_folder, tmp_path):
    alike = _another_model(run_folder, tmp_path / "other" / run_folder.parent.name / run_folder.name)
    rest = [*words[3:], "--num_examples", "1", "--recipes", "textbugger", "--output_dir", str(tmp_path / "out")]
    assert main(["robustness", "--run", str(run_folder), *rest]) == 0
    (first,) = (tmp_path / "out").glob("*/textbugger.jsonl")
    before = first.stat().st_mtime_ns
    assert main(["robustness", "--run", str(run_folder), str(alike), *rest]) == 0
    assert first.stat().st_mtime_ns == before
    assert len(list((tmp_path / "out").glob("*/textbugger.jsonl"))) == 2
    assert len({summary["settings"]["run"] for summary in table_of(tmp_path / "out")}) == 2
    assert len(table_of(tmp_path / "out")) == 2


def test_a_model_is_identified_by_its_content_wherever_its_folder_is(words, run_folder, tmp_path, capsys):
    copies = [shutil.copytree(run_folder, tmp_path / machine / "run") for machine in ("one", "two")]
    folder = tmp_path / "out"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "mine.jsonl").write_text("{}\n")
    options = [*words[3:], "--num_examples", "2", "--recipes", "textbugger", "--output_dir", str(folder)]
    assert main(["robustness", "--run", str(copies[0]), *options]) == 0
    assert "left out of the table: " in capsys.readouterr().out
    (before,) = table_of(folder)
    moved = shutil.move(copies[0], tmp_path / "elsewhere")
    (records,) = folder.glob("*/textbugger.jsonl")
    written = records.stat().st_mtime_ns
    assert main(["robustness", "--run", str(moved), *options]) == 0
    assert table_of(folder) == [before]
    assert records.stat().st_mtime_ns == written
    assert main(["robustness", "--run", str(moved), str(copies[1]), *options]) == 2
    assert f"--run {moved} and --run {copies[1]} are the same model" in capsys.readouterr().err.splitlines()[-1]


def test_an_output_folder_that_is_a_file_is_refused_first(words, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main([*words, "--output_dir", str(tmp_path / "file")]) == 2
    refused = f"alignattn: --output_dir {tmp_path / 'file'} is a file: give another folder"
    assert capsys.readouterr().err.strip() == refused
