"""Long texts as windows: their tokens, and how their logits are pooled by row."""

import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from conftest import WORDS, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from task_rows import make_rows

from alignattn.finetuning.options import DataOptions
from alignattn.tasks import MultiLabelClassification, TextClassification, long_texts
from alignattn.tasks.answers.windows import encode_windows
from alignattn.tasks.definitions import TASK_TYPES, TASKS
from alignattn.tasks.long_texts import (
    MAX_TRAIN_WINDOWS,
    WindowCollator,
    WindowedRows,
    WindowPooling,
    pool_windows,
    pooled_outputs,
    window_counts,
)
from alignattn.tasks.names import IS_TRUNCATED, WINDOW_COUNTS, WINDOW_OF, WINDOWS
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.tasks.truncation import count_unknown_rows, truncated_rows
from alignattn.utils.errors import AlignAttnError

LENGTH, STRIDE = 12, 4
TEXT = TextClassification(name="text", text_columns=("a",), labels=("no", "yes"), metrics=("accuracy",))
PAIR = TextClassification(name="pair", text_columns=("a", "b"), labels=("no", "yes"), metrics=("accuracy",))
LABELS = MultiLabelClassification(name="labels", text_columns=("a",), label_columns=("x", "y"))


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def encode(task: Any, rows: list[dict[str, Any]], tokenizer: Any, **options: Any) -> EncodedSplit:
    chosen = TaskOptions(**{"max_length": LENGTH, "long_texts": WINDOWS, "doc_stride": STRIDE, **options})
    dataset = datasets.Dataset.from_list(rows)
    return EncodedSplit(dataset, task.encode(dataset, tokenizer, chosen), chosen, tokenizer)


def without_special(ids: list[int], tokenizer: Any) -> list[int]:
    return [token for token in ids if token not in tokenizer.all_special_ids]


@pytest.mark.parametrize("task", [TEXT, PAIR, LABELS])
def test_a_text_that_fits_is_one_window_equal_to_its_truncation(task: Any, tokenizer: Any) -> None:
    rows = [{"a": text(n, n), "b": text(3, n), "label": n % 2, "x": 1, "y": n % 2} for n in range(1, LENGTH - 5)]
    split, truncated = (encode(task, rows, tokenizer, long_texts=way) for way in (WINDOWS, "truncate"))
    assert split.encoded[WINDOW_OF][:] == list(range(len(rows)))
    assert truncated_rows(task, split) is None
    assert split.encoded.remove_columns([WINDOW_OF, IS_TRUNCATED])[:] == truncated.encoded[:]


@pytest.mark.parametrize("stride", [0, STRIDE, LENGTH - 3])
def test_windows_cover_all_tokens_and_share_doc_stride_tokens(stride: int, tokenizer: Any) -> None:
    rows = [{"a": text(n, n), "label": n % 2} for n in (60, 3, 10, 11)]
    encoded = encode(TEXT, rows, tokenizer, doc_stride=stride).encoded
    counts = window_counts(encoded)
    assert encoded["label"][:] == [row["label"] for row, count in zip(rows, counts, strict=True) for _ in range(count)]
    for number, row in enumerate(rows):
        whole = tokenizer(row["a"], add_special_tokens=False)["input_ids"]
        windows = [without_special(one["input_ids"], tokenizer) for one in encoded if one[WINDOW_OF] == number]
        room = LENGTH - 2
        starts = range(0, max(1, len(whole) - stride), room - stride)
        assert windows == [whole[start : start + room] for start in starts]


def test_a_version_of_tokenizers_that_loses_windows_is_refused(monkeypatch: Any, tokenizer: Any) -> None:
    monkeypatch.setattr(long_texts, "_keeps_windows", lambda: False)
    with pytest.raises(AlignAttnError, match="loses the end of a text that does not fit into one window"):
        encode(TEXT, [{"a": text(30), "label": 0}], tokenizer)
    rows = [{"question": "a", "context": text(30), "answers": {"text": [], "answer_start": []}}]
    with pytest.raises(AlignAttnError, match="loses the end"):
        encode_windows(datasets.Dataset.from_list(rows), tokenizer, max_length=LENGTH, doc_stride=STRIDE)


def test_the_longer_text_of_a_pair_is_split_and_the_other_is_whole_in_each_window(tokenizer: Any) -> None:
    rows = [
        {"a": text(30, 1), "b": text(2, 2), "label": 0},
        {"a": text(2, 3), "b": text(40, 4), "label": 1},
        {"a": text(2, 5), "b": text(2, 6), "label": 0},
        {"a": text(25, 7), "b": text(2, 8), "label": 1},
    ]
    encoded = encode(PAIR, rows, tokenizer).encoded
    assert encoded[WINDOW_OF][:] == sorted(encoded[WINDOW_OF][:])
    for number, row in enumerate(rows):
        split, kept = ("a", "b") if len(row["a"]) > len(row["b"]) else ("b", "a")
        sides: dict[str, list[list[int]]] = {"a": [], "b": []}
        for one in encoded:
            if one[WINDOW_OF] == number:
                for side, kind in (("a", 0), ("b", 1)):
                    ids = [i for i, k in zip(one["input_ids"], one["token_type_ids"], strict=True) if k == kind]
                    sides[side].append(without_special(ids, tokenizer))
        of = {side: tokenizer(row[side], add_special_tokens=False)["input_ids"] for side in "ab"}
        assert all(ids == of[kept] for ids in sides[kept])
        covered = [ids[STRIDE:] if place else ids for place, ids in enumerate(sides[split])]
        assert list(chain.from_iterable(covered)) == of[split]


def test_the_shorter_of_two_long_texts_is_truncated(tokenizer: Any) -> None:
    rows = [{"a": text(50, 1), "b": text(9, 2), "label": 0}, {"a": text(20, 3), "b": text(2, 4), "label": 0}]
    split = encode(PAIR, rows, tokenizer)
    found = truncated_rows(PAIR, split)
    assert found is not None
    assert (found.rows, found.share) == (1, 0.5)
    assert max(map(len, split.encoded["input_ids"])) <= LENGTH


@pytest.mark.parametrize(("task", "stride"), [(TEXT, LENGTH - 2), (PAIR, LENGTH - 4), (TEXT, 500)])
def test_windows_without_room_for_a_new_token_are_refused(task: Any, stride: int, tokenizer: Any) -> None:
    with pytest.raises(AlignAttnError, match=f"--doc_stride {stride} .*give --max_length"):
        encode(task, [{"a": text(50), "b": "a", "label": 0}], tokenizer, doc_stride=stride)


def test_a_model_without_a_length_limit_has_windows_of_the_task_length(tiny_checkpoint: Path) -> None:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint, model_max_length=int(1e30))
    options = DataOptions(long_texts=WINDOWS).task_options(TEXT, tokenizer)
    assert (options.max_length, options.doc_stride) == (128, 42)
    encoded = encode(TEXT, [{"a": text(300), "label": 0}], tokenizer, max_length=128, doc_stride=42).encoded
    assert [len(ids) for ids in encoded["input_ids"]] == [128, 128, 128, 50]


def test_only_rows_with_logits_may_have_windows() -> None:
    able = {name for name, record in TASK_TYPES.items() if record.can_pool_windows}
    assert able == {"text-classification", "multi-label-classification"}


def test_rows_of_unknown_words_alone_are_counted(tokenizer: Any) -> None:
    rows = [{"a": "zebra " * 30, "label": 0}, {"a": "zebra " * 30 + "cat", "label": 0}, {"a": "cat", "label": 0}]
    assert count_unknown_rows(encode(TEXT, rows, tokenizer), tokenizer) == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_row_has_the_largest_logits_of_its_windows(counts: list[int], drawn: random.Random) -> None:
    logits = torch.tensor([[drawn.uniform(-9, 9) for _ in range(3)] for _ in range(sum(counts))])
    expected = torch.stack([part.max(dim=0).values for part in logits.split(counts)])
    assert torch.equal(pool_windows(logits, torch.tensor(counts)), expected)


def test_a_score_is_the_mean_over_its_windows() -> None:
    found = pool_windows(torch.tensor([[1.0], [4.0], [0.7]]), torch.tensor([2, 1]))
    assert torch.equal(found, torch.tensor([[2.5], [0.7]]))


def test_the_gradient_reaches_only_the_largest_logits() -> None:
    logits = torch.tensor([[1.0, 5.0], [2.0, 4.0], [0.0, 0.0]], requires_grad=True)
    pool_windows(logits, torch.tensor([2, 1])).sum().backward()
    assert torch.equal(logits.grad, torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))


def test_outputs_without_windows_are_unchanged(tokenizer: Any) -> None:
    rows = [{"a": text(50), "label": 1}, {"a": "cat", "label": 0}]
    plain = encode(TEXT, rows, tokenizer, long_texts="truncate").encoded
    outputs, labels = [[1.0, 2.0]] * 2, [1, 0]
    assert pooled_outputs(plain, outputs, labels) == (outputs, labels)


def windowed(tokenizer: Any, words: int = 200, rows: int = 3, seed: int = 1) -> WindowedRows:
    made = [{"a": text(words, row), "label": row % 2} for row in range(rows)]
    return WindowedRows(encode(TEXT, made, tokenizer).encoded, seed)


def test_a_training_row_has_a_bounded_number_of_windows_that_are_drawn_anew_each_epoch(tokenizer: Any) -> None:
    rows = windowed(tokenizer, rows=2)
    (count,) = set(rows.counts.tolist())
    assert count > 2 * MAX_TRAIN_WINDOWS
    of_row = [tuple(ids) for ids in rows.windows["input_ids"][:count]]
    seen: Counter[Any] = Counter()
    for epoch in range(200):
        rows.set_epoch(epoch)
        drawn = [tuple(ids) for ids in rows[0]["input_ids"]]
        assert len(drawn) == MAX_TRAIN_WINDOWS == len(rows[0]["attention_mask"])
        places = [of_row.index(ids) for ids in drawn]
        assert places == sorted(set(places))
        seen.update(places)
    assert set(seen) == set(range(count))
    assert max(seen.values()) < 1.6 * 200 * MAX_TRAIN_WINDOWS / count


def test_sampled_windows_depend_only_on_seed_epoch_and_row(tokenizer: Any) -> None:
    rows, others = windowed(tokenizer), windowed(tokenizer)
    rows[2], rows.set_epoch(3), others.set_epoch(3)
    assert [rows[row] for row in range(3)] == [others[row] for row in reversed(range(3))][::-1]
    assert rows[0] != windowed(tokenizer, seed=2)[0]
    rows.set_epoch(4)
    assert rows[0] != others[0]


def test_data_loading_processes_use_the_current_epoch(tokenizer: Any) -> None:
    rows = windowed(tokenizer)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=1, num_workers=1, persistent_workers=True, collate_fn=lambda one: one[0]["input_ids"]
    )
    epochs = []
    for epoch in range(2):
        rows.set_epoch(epoch)
        epochs.append(list(loader))
        assert epochs[-1] == [rows[row]["input_ids"] for row in range(len(rows))]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v3"])
def test_a_model_returns_pooled_logits_and_their_loss_for_any_padding(family: str, tokenizer: Any) -> None:
    model, rows = tiny_model(family, vocab_size=50), windowed(tokenizer, words=30)
    batch = WindowCollator(tokenizer)([rows[row] for row in range(3)])
    windows = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        plain = model(**windows).logits
        expected = torch.stack([part.max(dim=0).values for part in plain.split(batch[WINDOW_COUNTS].tolist())])
        WindowPooling(model)
        found = model(**windows, labels=batch["labels"], window_counts=batch[WINDOW_COUNTS])
        assert torch.equal(found.logits, expected)
        assert torch.equal(found.loss, torch.nn.functional.cross_entropy(expected, batch["labels"]))
        assert torch.equal(model(**windows).logits, plain)
        wider = {
            name: torch.nn.functional.pad(values, (0, 5), value=model.config.pad_token_id * (name == "input_ids"))
            for name, values in windows.items()
        }
        padded = model(**wider, window_counts=batch[WINDOW_COUNTS])
    torch.testing.assert_close(padded.logits, expected)
    assert padded.loss is None


@pytest.mark.parametrize("name", ["mrpc", "stsb", "cola"])
def test_a_catalogued_task_has_windows_too(name: str, tokenizer: Any) -> None:
    task = TASKS[name]
    rows = [{**row, task.text_columns[0]: row[task.text_columns[0]] + " " + text(80)} for row in make_rows(task, 4)]
    split = encode(task, rows, tokenizer, max_length=16)
    assert min(window_counts(split.encoded)) > 2
    assert set(map(type, split.encoded["label"])) == {float if task.is_regression else int}
