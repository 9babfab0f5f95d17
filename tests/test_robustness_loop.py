"""The loop over attacks: killed, resumed, sharded and merged it leaves the same bytes; strange rows are counted.

Run as a program it attacks the rows of the tests and kills itself on the way.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, SHARED, SPECIAL, WORDS
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from alignattn.errors import AlignAttnError

pytest.importorskip("lru", reason="needs the extra 'attack' (make attack)")
library = pytest.importorskip("alignattn.robustness.library")
if library.find_spec("textattack") is None:
    pytest.skip("needs textattack (make attack)", allow_module_level=True)
NLTK_DATA = SHARED / "resources" / "nltk_data"
if not NLTK_DATA.is_dir():
    pytest.skip(f"needs {NLTK_DATA}", allow_module_level=True)

textattack = library.load_textattack(NLTK_DATA)

from alignattn.robustness.loop import AttackRow, attack_rows, merge  # noqa: E402
from alignattn.robustness.records import (  # noqa: E402
    WHOLE,
    AttackRecord,
    AttackSettings,
    Shard,
    header_path,
    read_run,
)
from alignattn.robustness.summary import summarise, tabulate  # noqa: E402
from alignattn.robustness.wrapper import wrap_model  # noqa: E402

NUM_ROWS = 20
NUM_EXAMPLES = 8
MATRIX = 2

SETTINGS = AttackSettings(
    run="toy",
    task="sst2",
    split="validation",
    attention="soft",
    recipe="toy",
    attack_columns=("sentence",),
    max_length=64,
    seed=7,
    num_examples=NUM_EXAMPLES,
    precision="float32",
    resources={"words": "twenty"},
)


class RandomSwap(textattack.transformations.WordSwap):
    """One word of a list for another, drawn by each of the generators that the loop seeds."""

    deterministic = False
    calls = 0
    kill_at = -1

    def _get_replacement_words(self, word: str) -> list[str]:
        self.calls += 1
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = (random.randrange(len(WORDS)), np.random.randint(len(WORDS)), int(torch.randint(len(WORDS), ())))
        return [WORDS[number] for number in numbers] if word in WORDS else []


def toy_attack(folder: Path) -> Any:
    """A greedy attack on a small BERT with large random weights."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config)
    for parameter in model.parameters():
        if parameter.ndim == MATRIX:
            parameter.data.mul_(20)
    goal = textattack.goal_functions.UntargetedClassification(
        wrap_model(model, tokenizer, max_length=64, batch_size=4, device="cpu")
    )
    constraints = [textattack.constraints.pre_transformation.RepeatModification()]
    constraints.append(textattack.constraints.pre_transformation.MaxModificationRate(0.25))
    return textattack.Attack(goal, constraints, RandomSwap(), textattack.search_methods.GreedySearch())


def toy_rows(attack: Any, columns: tuple[str, ...] = ("sentence",)) -> list[AttackRow]:
    """Rows with the label that the model gives them; every fourth with the other one."""
    drawn = random.Random(1)
    texts = [
        {column: " ".join(drawn.choices(WORDS, k=drawn.randint(4, 9))) for column in columns} for _ in range(NUM_ROWS)
    ]
    predictions = attack.goal_function.model([tuple(text.values()) for text in texts]).argmax(dim=1).tolist()
    return [
        AttackRow(index, text, 1 - label if index % 4 == 1 else label)
        for index, (text, label) in enumerate(zip(texts, predictions, strict=True))
    ]


def run(folder: Path, path: Path, shard: Shard = WHOLE, settings: AttackSettings = SETTINGS, kill_at: int = -1) -> Any:
    attack = toy_attack(folder)
    attack.transformation.kill_at = kill_at
    return attack_rows(attack, toy_rows(attack), path, settings, shard=shard, show_progress=False)


@pytest.fixture(scope="module")
def whole(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run that nothing interrupts."""
    return run(tiny_checkpoint, tmp_path_factory.mktemp("whole") / "toy.jsonl")


def _bytes(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), header_path(path).read_bytes()


def _copy(whole: Any, folder: Path, records: bytes | None = None) -> Path:
    path = folder / "copy.jsonl"
    content, header = _bytes(whole.path)
    path.write_bytes(content if records is None else records)
    header_path(path).write_bytes(header)
    return path


def test_records_tell_what_happened(whole: Any, tiny_checkpoint: Path) -> None:
    outcomes = Counter(record.outcome for record in whole.records)
    assert set(outcomes) == {"failed", "succeeded", "skipped"}
    assert outcomes["failed"] + outcomes["succeeded"] == NUM_EXAMPLES
    assert [record.index for record in whole.records] == list(range(whole.header.rows))
    assert whole.records[-1].outcome != "skipped"
    assert whole.is_finished
    scores = toy_attack(tiny_checkpoint).goal_function.model
    for record in whole.records:
        text = record.original["sentence"]
        assert record.words == len(text.split())
        assert record.original_scores == pytest.approx(scores([text])[0].tolist(), abs=1e-6)
        assert (record.original_prediction == record.label) == (record.outcome != "skipped")
        if record.outcome == "skipped":
            assert (record.perturbed, record.perturbed_scores, record.queries) == (None, None, 1)
            continue
        after = record.perturbed["sentence"]
        assert record.perturbed_scores == pytest.approx(scores([after])[0].tolist(), abs=1e-6)
        assert (record.perturbed_prediction == record.label) == (record.outcome == "failed")
        # Every change is a swap, of a quarter of the words at most.
        changed = sum(before != now for before, now in zip(text.split(), after.split(), strict=True))
        assert record.words_changed == changed <= record.words / 4 + 1
        assert record.queries > 1


def test_the_header_says_what_was_attacked(whole: Any) -> None:
    header = json.loads(header_path(whole.path).read_text())
    assert header["settings"]["recipe"] == "toy"
    assert header["settings"]["resources"] == {"words": "twenty"}
    assert (header["rows"], header["rows_available"]) == (len(whole.records), NUM_ROWS)
    assert header["shard"] == {"number": 1, "count": 1}


def test_outcomes_are_those_of_textattack_itself(whole: Any, tiny_checkpoint: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    named = {"SuccessfulAttackResult": "succeeded", "FailedAttackResult": "failed", "SkippedAttackResult": "skipped"}
    for record in whole.records:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(SETTINGS.seed + record.index)
        result = attack.attack(OrderedDict(record.original), record.label)
        assert named[type(result).__name__] == record.outcome
        assert result.num_queries == record.queries
        if record.perturbed is not None:
            assert result.perturbed_text() == record.perturbed["sentence"]


def test_another_seed_is_another_attack(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = run(tiny_checkpoint, tmp_path / "toy.jsonl", settings=replace(SETTINGS, seed=8))
    assert [record.perturbed for record in other.records] != [record.perturbed for record in whole.records]


def test_a_killed_run_goes_on_as_if_it_had_not_been(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])}
    command = [sys.executable, __file__, str(tiny_checkpoint), str(path), "60"]
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert 0 < len(read_run(path).records) < len(whole.records)
    resumed = run(tiny_checkpoint, path)
    assert resumed.records == whole.records
    assert _bytes(path) == _bytes(whole.path)
    [table], [uninterrupted] = (tabulate([summarise(one)]) for one in (resumed, whole))
    assert table.render() == uninterrupted.render()


@pytest.mark.parametrize("missing", [1, 2, 100, 400, 10**9], ids=lambda missing: f"{missing} bytes")
def test_a_torn_line_is_attacked_again(whole: Any, tiny_checkpoint: Path, tmp_path: Path, missing: int) -> None:
    content, _ = _bytes(whole.path)
    path = _copy(whole, tmp_path, content[: max(0, len(content) - missing)])
    assert run(tiny_checkpoint, path).records == whole.records
    assert _bytes(path) == _bytes(whole.path)


def test_a_finished_run_is_left_as_it_is(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = _copy(whole, tmp_path)
    assert run(tiny_checkpoint, path, kill_at=1).records == whole.records


@pytest.mark.parametrize("count", [2, 3])
def test_merged_shards_are_one_run(whole: Any, tiny_checkpoint: Path, tmp_path: Path, count: int) -> None:
    paths = []
    for number in range(1, count + 1):
        paths.append(tmp_path / f"{number}.jsonl")
        part = run(tiny_checkpoint, paths[-1], Shard(number, count))
        assert [record.index % count for record in part.records] == [number - 1] * len(part.records)
    out = tmp_path / "merged.jsonl"
    assert merge(paths[::-1], out).records == whole.records
    assert _bytes(out) == _bytes(whole.path)


def test_a_merge_that_was_killed_is_repeated_and_one_that_was_not_left_as_it_is(
    whole: Any, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.jsonl" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        run(tiny_checkpoint, path, Shard(number, 2))
    out = _copy(whole, tmp_path)
    out.unlink()  # the header is written first
    for _ in range(2):
        assert merge(paths, out).records == whole.records
        assert _bytes(out) == _bytes(whole.path)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(AlignAttnError, match="not what its shards make"):
        merge(paths, out)


def test_records_of_other_rows_than_the_headers_are_refused(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    one, two = (tmp_path / f"{number}.jsonl" for number in (1, 2))
    run(tiny_checkpoint, one, Shard(1, 2))
    run(tiny_checkpoint, two, Shard(2, 2))
    two.write_bytes(one.read_bytes())
    with pytest.raises(AlignAttnError, match=r"2.jsonl, line 1 is of toy on row 0 .* and not of toy on row 1"):
        merge([one, two], tmp_path / "out.jsonl")
    lines = whole.path.read_bytes().splitlines(keepends=True)
    with pytest.raises(AlignAttnError, match="line 2 is of toy on row 0"):
        read_run(_copy(whole, tmp_path, b"".join([lines[0], *lines])))
    with pytest.raises(AlignAttnError, match=f"holds {len(lines) + 1} records of {len(lines)} rows"):
        read_run(_copy(whole, tmp_path, b"".join([*lines, lines[-1]])))


def test_two_processes_do_not_write_the_same_records(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    attack = toy_attack(tiny_checkpoint)
    program = (
        "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(); time.sleep(60)"
    )
    lock = str(tmp_path / ".toy.jsonl.lock")
    with subprocess.Popen(
        [sys.executable, "-uc", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(AlignAttnError, match="another process writes"):
            attack_rows(attack, toy_rows(attack), path, SETTINGS, show_progress=False)
        other.kill()
    assert run(tiny_checkpoint, path).records == whole.records


def test_shards_that_do_not_belong_together_are_not_merged(tiny_checkpoint: Path, tmp_path: Path) -> None:
    one, two, other, out = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "other", "out"))
    run(tiny_checkpoint, one, Shard(1, 2))
    run(tiny_checkpoint, two, Shard(2, 2))
    run(tiny_checkpoint, other, Shard(2, 2), replace(SETTINGS, resources={"words": "ten"}))
    with pytest.raises(AlignAttnError, match=r"different runs: resources .*ten.*twenty"):
        merge([one, other], out)
    with pytest.raises(AlignAttnError, match=r"each of the 2 shards once, and these are 1/2"):
        merge([one], out)
    with pytest.raises(AlignAttnError, match=r"these are 1/2, 1/2"):
        merge([one, one], out)
    with pytest.raises(AlignAttnError, match=r"one.jsonl is there, and not what its shards make"):
        merge([one, two], one)
    two.write_bytes(two.read_bytes()[:-1])
    with pytest.raises(AlignAttnError, match="shard 2/2: start it again"):
        merge([one, two], out)
    with pytest.raises(AlignAttnError, match="nothing to merge"):
        merge([], out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "seed 7 and 8"),
        ({"recipe": "bae"}, "recipe 'toy' and 'bae'"),
        ({"resources": {"words": "ten"}}, "resources"),
        ({"run": "another"}, "run 'toy' and 'another'"),
    ],
)
def test_a_run_of_other_settings_is_not_continued(
    whole: Any, tiny_checkpoint: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = _copy(whole, tmp_path)
    with pytest.raises(AlignAttnError, match=message) as raised:
        run(tiny_checkpoint, path, settings=replace(SETTINGS, **change))
    assert "\n" not in str(raised.value)
    assert _bytes(path) == _bytes(whole.path)


def test_another_shard_other_rows_and_foreign_files_are_refused(
    whole: Any, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path = _copy(whole, tmp_path)
    with pytest.raises(AlignAttnError, match="shard '1/1' and '1/2'"):
        run(tiny_checkpoint, path, Shard(1, 2))
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack)
    with pytest.raises(AlignAttnError, match=f"rows available {NUM_ROWS} and {NUM_ROWS - 1}"):
        attack_rows(attack, rows[:-1], path, SETTINGS, show_progress=False)
    rows[2] = replace(rows[2], texts={"sentence": "a cat"})
    with pytest.raises(AlignAttnError, match="SHA-256 of the rows"):
        attack_rows(attack, rows, path, SETTINGS, show_progress=False)
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(AlignAttnError, match="line 1: expected an object"):
        run(tiny_checkpoint, path)
    path.write_text("a file of something else, without a line end")
    header_path(path).unlink()
    with pytest.raises(AlignAttnError, match="the header of"):
        run(tiny_checkpoint, path)
    assert path.read_text().startswith("a file of")


def test_more_examples_go_on_with_those_there_are(tiny_checkpoint: Path, tmp_path: Path) -> None:
    few, many = replace(SETTINGS, num_examples=3), replace(SETTINGS, num_examples=NUM_EXAMPLES)
    for shard in (WHOLE, Shard(2, 2)):
        path, at_once = (tmp_path / f"{name}-{shard.number}.jsonl" for name in ("later", "at_once"))
        before = run(tiny_checkpoint, path, shard, few).records
        run(tiny_checkpoint, path, shard, many)
        run(tiny_checkpoint, at_once, shard, many)
        assert _bytes(path) == _bytes(at_once)
        assert 0 < len(before) < len(read_run(path).records)
        with pytest.raises(AlignAttnError, match=f"num_examples {NUM_EXAMPLES} and 3"):
            run(tiny_checkpoint, path, shard, few)


def test_a_header_without_records_stands_in_nobodys_way(whole: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    run(tiny_checkpoint, path, settings=replace(SETTINGS, seed=9))
    path.write_bytes(b"")
    assert run(tiny_checkpoint, path).records == whole.records
    assert _bytes(path) == _bytes(whole.path)


def test_rows_that_cannot_be_used_keep_their_numbers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    rows = [row for row in toy_rows(attack) if row.index not in (0, 4)]
    settings = replace(SETTINGS, num_examples=1000)
    parts = []
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        parts.append(attack_rows(attack, rows, path, settings, shard=Shard(number, 2), left_out=(0, 4)))
    records = merge([part.path for part in parts], tmp_path / "whole.jsonl").records
    assert [record.index for record in records] == [row.index for row in rows]
    assert [record.seed for record in records] == [SETTINGS.seed + row.index for row in rows]


def test_fewer_rows_than_examples_are_used_whole(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = run(tiny_checkpoint, tmp_path / "toy.jsonl", settings=replace(SETTINGS, num_examples=1000))
    assert done.is_finished
    assert len(done.records) == done.header.rows == done.header.rows_available == NUM_ROWS


def test_nothing_to_attack_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    with pytest.raises(AlignAttnError, match="0 rows"):
        attack_rows(attack, [], tmp_path / "toy.jsonl", SETTINGS)
    with pytest.raises(AlignAttnError, match="0 examples"):
        attack_rows(attack, toy_rows(attack), tmp_path / "toy.jsonl", replace(SETTINGS, num_examples=0))
    assert not list(tmp_path.iterdir())


def test_strange_rows_are_counted(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    attack.goal_function.query_budget = 100  # one step on 600 words
    texts = ["1234 , 5 !!! ...", "", " ".join(WORDS * 30), "!!", "the cat \x00 \u2028 sees", "the cat sees"]
    labels = attack.goal_function.model(texts).argmax(dim=1).tolist()
    labels[-1] = 5
    rows = [
        AttackRow(index, {"sentence": text}, label)
        for index, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    path = tmp_path / "toy.jsonl"
    records = attack_rows(attack, rows, path, SETTINGS, show_progress=False).records
    assert [record.index for record in records] == list(range(len(rows)))
    assert [record.original["sentence"] for record in records] == texts
    # Nothing can be swapped in these: the model withstands, and no error is at work.
    assert [records[index].outcome for index in (0, 1, 3)] == ["failed"] * 3
    assert [records[index].error for index in range(5)] == [None] * 5
    assert records[2].words == 600
    assert records[2].outcome in ("failed", "succeeded")
    assert records[5].outcome == "skipped"
    assert records[5].error == "label 5 is none of the model's 2 classes"
    assert read_run(path).records == records


def test_a_text_that_the_tokenizer_breaks_on_is_counted(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack)
    rows[2] = replace(rows[2], texts={"sentence": "half a pair: \ud83d"})
    records = attack_rows(attack, rows, tmp_path / "toy.jsonl", SETTINGS, show_progress=False).records
    assert records[2].outcome == "skipped"
    assert records[2].error is not None
    assert sum(record.outcome != "skipped" for record in records) == NUM_EXAMPLES


class Raising(textattack.transformations.WordSwap):
    """Stands for a part of an attack that some text breaks."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def _get_replacement_words(self, word: str) -> list[str]:
        if word == "broken":
            raise self.error
        return ["dog"]


def _breaking(folder: Path, error: Exception) -> tuple[Any, list[AttackRow]]:
    attack = toy_attack(folder)
    attack = textattack.Attack(attack.goal_function, [], Raising(error), textattack.search_methods.GreedySearch())
    texts = ["a cat", "a broken cat", "the small bird"]
    labels = attack.goal_function.model(texts).argmax(dim=1).tolist()
    return attack, [
        AttackRow(index, {"sentence": text}, label)
        for index, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


@pytest.mark.parametrize("error", [IndexError("list\nindex"), ZeroDivisionError("by zero"), KeyError("x")])
def test_an_attack_that_breaks_off_is_counted_as_skipped(tiny_checkpoint: Path, tmp_path: Path, error) -> None:
    attack, rows = _breaking(tiny_checkpoint, error)
    records = attack_rows(attack, rows, tmp_path / "toy.jsonl", SETTINGS, show_progress=False).records
    assert [record.outcome == "skipped" for record in records] == [False, True, False]
    assert records[1].error is not None
    assert records[1].error.startswith(type(error).__name__ + ": ")
    assert "\n" not in records[1].error
    assert records[1].original_prediction == records[1].label


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LookupError("Resource wordnet not found"), AlignAttnError),
        (OSError("no network"), OSError),
        (AlignAttnError("no flair"), AlignAttnError),
    ],
)
def test_what_would_befall_every_row_stops_the_run(tiny_checkpoint: Path, tmp_path: Path, error, raised) -> None:
    attack, rows = _breaking(tiny_checkpoint, error)
    path = tmp_path / "toy.jsonl"
    with pytest.raises(raised):
        attack_rows(attack, rows, path, SETTINGS, show_progress=False)
    assert [record.index for record in read_run(path).records] == [0]


def test_pairs_keep_their_columns(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack, ("sentence1", "sentence2"))
    records = attack_rows(attack, rows, tmp_path / "toy.jsonl", SETTINGS, show_progress=False).records
    assert {record.outcome for record in records} == {"failed", "succeeded", "skipped"}
    for record, row in zip(records, rows, strict=False):
        assert record.original == row.texts
        assert record.words == sum(len(text.split()) for text in row.texts.values())
        if record.perturbed is not None:
            assert list(record.perturbed) == ["sentence1", "sentence2"]
            both = [" ".join(texts.values()).split() for texts in (record.original, record.perturbed)]
            assert record.words_changed == sum(before != now for before, now in zip(*both, strict=True))


def test_the_bar_shows_the_running_rate(
    whole: Any, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack = toy_attack(tiny_checkpoint)
    attack_rows(attack, toy_rows(attack), tmp_path / "toy.jsonl", SETTINGS)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "toy sst2 soft" in printed.err
    failed = sum(record.outcome == "failed" for record in whole.records)
    shown = re.findall(r"([\d.]+) % of (\d+) failed", printed.err)[-1]
    assert shown == (f"{100 * failed / NUM_EXAMPLES:.1f}", str(NUM_EXAMPLES))


def test_goals_hand_over_all_texts_at_once(tiny_checkpoint: Path, tmp_path: Path) -> None:
    attack = toy_attack(tiny_checkpoint)
    attack.goal_function.batch_size = 1
    calls: list[int] = []
    score = attack.goal_function.model._score
    attack.goal_function.model._score = lambda texts: (calls.append(len(texts)), score(texts))[1]
    attack_rows(attack, toy_rows(attack), tmp_path / "toy.jsonl", SETTINGS, show_progress=False)
    # The first call asks which rows to walk; a step of the search asks for all its candidates.
    assert calls[0] == NUM_ROWS
    assert max(calls[2:]) > 4


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", "1/2/3", ""])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(AlignAttnError, match="shard"):
        Shard.parse(text)


def test_shards_deal_each_row_once() -> None:
    dealt = [Shard.parse(f"{number}/3").deal(list(range(8))) for number in (1, 2, 3)]
    assert dealt == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize(
    ("name", "value"),
    [("outcome", "won"), ("index", "3"), ("original", ["a"]), ("original_scores", [None]), ("perturbed", 3)],
)
def test_lines_of_other_kinds_are_refused(whole: Any, name: str, value: Any) -> None:
    line = whole.records[0].to_line()
    assert AttackRecord.from_line(line) == whole.records[0]
    with pytest.raises(ValueError, match=name):
        AttackRecord.from_line(json.dumps(json.loads(line) | {name: value}))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), kill_at=int(sys.argv[3]))
