"""Targets of `alignattn robustness`: complete models that fit their task, and rows with the numbers of the split."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import tiny_model
from huggingface_hub import constants
from robustness_helpers import WEIGHTS, pickle_weights
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from alignattn.commands.robustness import RobustnessOptions, target_loaders
from alignattn.models.lengths import most_tokens
from alignattn.robustness.models import longest_input
from alignattn.robustness.resources import Resources
from alignattn.utils.errors import AlignAttnError

SST2 = {"sentence": ["the cat sees", "a dog runs", "old cat sleeps", "the bird"], "label": [1, 0, 1, 0]}


@pytest.fixture
def classifier(tiny_checkpoint, tmp_path):
    """A function that saves a small classifier of random weights, and returns its folder."""

    def save(name="classifier", tokenizer=None, **config_fields):
        folder = tmp_path / name
        model = BertForSequenceClassification(BertConfig.from_pretrained(tiny_checkpoint, **config_fields))
        model.save_pretrained(folder)
        (tokenizer or AutoTokenizer.from_pretrained(tiny_checkpoint)).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def unlimited(tiny_checkpoint):
    """A tokenizer without a maximum length."""
    return BertTokenizer(str(tiny_checkpoint / "vocab.txt"))


@pytest.fixture
def data(tmp_path):
    """A function that writes the development rows of a task, and returns the folder of the data."""

    def save(rows, place="glue/sst2"):
        (tmp_path / "data" / place).mkdir(parents=True)
        pq.write_table(pa.table(rows), tmp_path / "data" / place / "validation.parquet")
        return str(tmp_path / "data")

    return save


def load(model, data_dir, task="sst2", **options):
    (loader,) = target_loaders(RobustnessOptions(model=str(model), task=task, data_dir=data_dir, **options))
    return loader()


def refused(*args, **options):
    with pytest.raises(AlignAttnError) as error:
        load(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def cut_weights(folder):
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(pickle_weights, "give a folder with weights as safetensors"), (cut_weights, "cannot load the model '{}'")],
)
def test_weights_that_cannot_be_read_are_refused(spoil, said, classifier, data):
    folder = classifier()
    spoil(folder)
    assert said.format(folder) in refused(folder, data(SST2))


def test_a_model_without_a_classifier_or_with_other_classes_is_refused(tiny_checkpoint, classifier, data):
    rows = data(SST2)
    said = f"{tiny_checkpoint} holds no classifier: fine-tune it first with `alignattn finetune`"
    assert said in refused(tiny_checkpoint, rows)
    said = "has 3 outputs, and task 'sst2' has 2 classes"
    assert said in refused(classifier(num_labels=3), rows)


def test_rows_keep_the_numbers_of_the_split(classifier, data):
    rows = {"premise": ["a cat", "", "old", "red", "a"], "hypothesis": ["the"] * 5, "label": [0, 1, -1, 2, 1]}
    target = load(classifier(num_labels=3), data(rows, "snli"), task="snli", skip_bad_rows=True)
    assert [(row.index, row.texts["premise"], row.label) for row in target.rows] == [
        (0, "a cat", 0),
        (3, "red", 2),
        (4, "a", 1),
    ]


def test_no_row_is_longer_than_the_model_accepts(classifier, unlimited, data):
    arguments = RobustnessOptions(model=str(classifier(tokenizer=unlimited)), task="sst2", data_dir=data(SST2))
    (loader,) = target_loaders(arguments)
    target = loader()
    with pytest.raises(AlignAttnError, match="--max_length 65"):
        target.wrapper(replace(arguments, max_length=65))
    wrapper = target.wrapper(replace(arguments, max_length=64))
    assert wrapper(["the cat " * 100]).isfinite().all()
    assert target.wrapper(arguments)(["the cat " * 100]).isfinite().all()
    assert target.settings("bae", arguments, {}).max_length == 64


@pytest.mark.parametrize(("family", "longest"), [("bert", 64), ("roberta", 63), ("distilbert", 64), ("mpnet", 62)])
def test_a_model_accepts_as_many_tokens_as_it_has_positions(family, longest, unlimited):
    model = tiny_model(family)
    assert most_tokens(model, unlimited) == longest
    model(torch.full((1, longest), 3))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 3))


def test_only_the_tokenizer_limits_a_model_of_any_length(tiny_checkpoint, unlimited):
    config = XLNetConfig(vocab_size=50, d_model=8, n_layer=1, n_head=2, d_inner=8)
    model = XLNetForSequenceClassification(config)
    assert most_tokens(model, AutoTokenizer.from_pretrained(tiny_checkpoint)) == 64
    assert most_tokens(model, unlimited) > 10**6
    assert longest_input(model, unlimited) == 512


def test_records_of_a_model_are_named_by_its_folder(classifier, data, monkeypatch):
    folder, rows = classifier("mrpc/seed-1"), data(SST2)
    monkeypatch.chdir(folder)
    assert {load(model, rows).name for model in (folder, ".", "../seed-1")} == {"mrpc-seed-1"}
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert load("..", rows).name == "mrpc-seed-1"
    assert load(classifier("alone"), rows).name == "alone"


def test_two_revisions_of_a_hub_model_are_two_models(classifier, data, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository, rows, targets = tmp_path / "models--some--classifier", data(SST2), []
    (repository / "refs").mkdir(parents=True)
    for commit in ("0a1b", "2c3d"):
        classifier(repository / "snapshots" / commit)
        (repository / "refs" / "main").write_text(commit)
        targets.append(load("some/classifier", rows))
    assert [target.digest for target in targets] == ["some/classifier (0a1b)", "some/classifier (2c3d)"]
    assert {target.name for target in targets} == {"classifier"}


def test_other_rows_for_a_run_on_custom_files_are_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("model: m\ntrain_file: t.csv\nvalidation_file: v.csv\ntext_columns: [text]\n")
    (loader,) = target_loaders(RobustnessOptions(run=[str(tmp_path)], data_dir="elsewhere"))
    with pytest.raises(AlignAttnError, match=f"--data_dir does not go with {tmp_path}, a run on custom files"):
        loader()


def test_a_model_without_attention_is_called_by_its_own_name(made, monkeypatch):
    monkeypatch.chdir(made)
    arguments = RobustnessOptions(run=("finished/esim",))
    (loader,) = target_loaders(arguments)
    assert loader().settings("bae", arguments, {}).attention == "esim"


def test_rows_of_a_run_keep_its_max_length(made, monkeypatch):
    monkeypatch.chdir(made)
    arguments = RobustnessOptions(run=("finished/aa-ct",))
    (loader,) = target_loaders(arguments)
    target = loader()
    assert target.settings("bae", arguments, {}).max_length == 24
    assert target.settings("bae", replace(arguments, max_length=16), {}).max_length == 16


def test_the_words_to_swap_come_from_one_source(tmp_path):
    with pytest.raises(AlignAttnError, match="give one of word_vectors, neighbors and synonyms"):
        Resources(neighbors=tmp_path / "neighbors.parquet", synonyms="wordnet")


def test_outputs_are_matched_to_labels_by_class_names(classifier, data, tiny_checkpoint, capsys):
    """The outputs of a model with another order of classes are put in the order of the task."""
    torch.manual_seed(0)
    model = classifier(id2label={0: "POSITIVE", 1: "NEGATIVE"}, label2id={"POSITIVE": 0, "NEGATIVE": 1})
    saved = BertForSequenceClassification.from_pretrained(model)
    target = load(model, data(SST2))
    assert target.task.labels == ("negative", "positive")
    assert torch.equal(target.model.classifier.weight, saved.classifier.weight.flip(0))
    assert "POSITIVE, NEGATIVE" in capsys.readouterr().err
