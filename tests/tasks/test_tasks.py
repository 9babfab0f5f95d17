"""The table of tasks, and how rows become token ids."""

import subprocess
import sys

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import TASKS, get_task
from alignattn.tasks.task import TaskOptions
from alignattn.utils.errors import AlignAttnError

GLUE = {name: task for name, task in TASKS.items() if task.sources.hub == "nyu-mll/glue"}

VALIDATION = ("validation",)
# Columns, number of classes, the class of number 1, metrics and evaluation splits, from the GLUE paper's table 1 and
# the data set card of nyu-mll/glue.
FACTS = {
    "mrpc": (("sentence1", "sentence2"), 2, "equivalent", ("accuracy", "f1"), VALIDATION),
    "cola": (("sentence",), 2, "acceptable", ("matthews_correlation",), VALIDATION),
    "rte": (("sentence1", "sentence2"), 2, "not_entailment", ("accuracy",), VALIDATION),
    "mnli": (
        ("premise", "hypothesis"), 3, "neutral", ("accuracy",), ("validation_matched", "validation_mismatched")
    ),
    "qnli": (("question", "sentence"), 2, "not_entailment", ("accuracy",), VALIDATION),
    "qqp": (("question1", "question2"), 2, "duplicate", ("accuracy", "f1"), VALIDATION),
    "sst2": (("sentence",), 2, "positive", ("accuracy",), VALIDATION),
    "stsb": (("sentence1", "sentence2"), 1, None, ("pearson", "spearmanr"), VALIDATION),
    "wnli": (("sentence1", "sentence2"), 2, "entailment", ("accuracy",), VALIDATION),
}  # fmt: skip
PAIR = TextClassification(name="pair", text_columns=("a", "b"), labels=("no", "yes"), metrics=("accuracy",))
SCORE = TextClassification(name="score", text_columns=("a",), label_column="y", metrics=("pearson",))


def encode(rows, task, tokenizer, max_length, num_proc=1):
    return task.encode(rows, tokenizer, TaskOptions(max_length, num_proc=num_proc))


@pytest.fixture
def tokenizer():
    """A word-level tokenizer with BERT's template, whose file sets padding."""
    words = ["[PAD]", "[CLS]", "[SEP]", "one", "two", "three", "four"]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[PAD]"))
    core.pre_tokenizer = Whitespace()
    core.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    core.enable_padding(length=20)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        model_max_length=16,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def test_table_holds_the_nine_tasks_of_glue():
    for name, task in GLUE.items():
        second = None if task.is_regression else task.labels[1]
        assert FACTS[name] == (task.text_columns, task.num_labels, second, task.metrics, task.evaluation_splits)
        assert (task.sources.config, task.sources.folder) == (name, f"glue/{name}")
        assert task.main_metric == task.metrics[0]
    assert GLUE.keys() == FACTS.keys()
    assert TASKS["stsb"].label_range == (0, 5)


@pytest.mark.parametrize(
    ("written", "name"),
    [("mrpc", "mrpc"), ("SST-2", "sst2"), ("STS-B", "stsb"), ("sst_2", "sst2"), ("CoLA", "cola")],
)
def test_get_task_accepts_the_usual_spellings(written, name):
    assert get_task(written) is TASKS[name]


def test_unknown_task_lists_the_choices():
    with pytest.raises(AlignAttnError, match=rf"'winograd'.*{', '.join(TASKS)}.* YAML file") as caught:
        get_task("winograd")
    assert "\n" not in str(caught.value)


def test_the_table_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'datasets', 'evaluate', 'numpy', 'pandas', 'sklearn', 'scipy', 'pydantic'}"
    code = f"import sys, alignattn.tasks; list(alignattn.tasks.TASKS); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_encode_joins_a_pair_and_does_not_pad(tokenizer):
    rows = Dataset.from_dict({"a": ["one two", "three"], "b": ["four", "one two three"], "label": [1, 0]})
    encoded = encode(rows, PAIR, tokenizer, 16)
    assert encoded[:] == {
        "input_ids": [[1, 3, 4, 2, 6, 2], [1, 5, 2, 3, 4, 5, 2]],
        "token_type_ids": [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1]],
        "attention_mask": [[1] * 6, [1] * 7],
        "label": [1, 0],
    }


def test_encode_truncates_the_longer_text_first(tokenizer):
    rows = Dataset.from_dict({"a": ["one"], "b": ["one two three four"], "label": [1]})
    assert encode(rows, PAIR, tokenizer, 6)["input_ids"][0] == [1, 3, 2, 3, 4, 2]


def test_encoded_rows_suit_the_collator(tokenizer):
    rows = Dataset.from_dict({"a": ["one two", "three"], "b": ["four", "one two three"], "label": [1, 0]})
    encoded = encode(rows, PAIR, tokenizer, 16)
    batch = DataCollatorWithPadding(tokenizer)([encoded[0], encoded[1]])
    assert batch["input_ids"].shape == (2, 7)
    assert batch["attention_mask"].sum(dim=1).tolist() == [6, 7]
    assert batch["labels"].tolist() == [1, 0]
    assert not batch["labels"].is_floating_point()


def test_scores_stay_floats_even_when_written_as_integers(tokenizer):
    rows = Dataset.from_dict({"a": ["one", "two"], "y": [1, 3]})
    encoded = encode(rows, SCORE, tokenizer, 16)
    batch = DataCollatorWithPadding(tokenizer)([encoded[0], encoded[1]])
    assert batch["labels"].is_floating_point()
    assert batch["labels"].tolist() == [1.0, 3.0]
    assert sorted(encoded.column_names) == ["attention_mask", "input_ids", "label", "token_type_ids"]


def test_encode_with_two_processes_gives_the_same(tokenizer):
    rows = Dataset.from_dict({"a": ["one two", "three"], "b": ["four", "one"], "label": [1, 0]})
    alone = encode(rows, PAIR, tokenizer, 16)
    assert encode(rows, PAIR, tokenizer, 16, num_proc=2)[:] == alone[:]


@pytest.mark.parametrize("max_length", [-1, 0, 4, 17])
def test_impossible_max_length_is_refused(tokenizer, max_length):
    rows = Dataset.from_dict({"a": ["one"], "b": ["two"], "label": [1]})
    with pytest.raises(AlignAttnError, match=rf"max_length {max_length} .* at least 5 .* at most 16"):
        encode(rows, PAIR, tokenizer, max_length)
