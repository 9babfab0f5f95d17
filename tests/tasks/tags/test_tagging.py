"""Tags of words as labels of word pieces, and back from a model's outputs."""

import json
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import transformers
from datasets import Dataset
from needs import skip_without
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from alignattn.tasks.tags.entities import entity_scores
from alignattn.tasks.tags.tagging import (
    IGNORED,
    WORD_STARTS,
    WORDS_READ,
    TagCollator,
    check_tokenizer,
    encode_tags,
    tag_names,
    tag_problem,
    word_tags,
)
from alignattn.utils.errors import AlignAttnError

NAMES = ("O", "B-PER", "I-PER", "B-LOC")
ZERO_WIDTH, CONTROL = "\u200b", "\x07"


def rows(*pairs):
    """Rows of words and their tags; a tag may be its number in `NAMES`."""
    named = [[tag if isinstance(tag, str) else NAMES[tag] for tag in tags] for _, tags in pairs]
    return Dataset.from_dict({"words": [words for words, _ in pairs], "tags": named})


def encoded(dataset, tokenizer, names=NAMES, max_length=64):
    return encode_tags(dataset.select_columns(["words", "tags"]), tokenizer, names, max_length=max_length)


def padded_labels(data, tokenizer):
    """The labels as the collator pads them."""
    collate = TagCollator(tokenizer)
    return collate(list(data.remove_columns(WORDS_READ)))["labels"].numpy()


def perfect_logits(labels, classes):
    """Logits that are highest at each label; noise, and infinity, where there is no label."""
    noise = np.random.default_rng(0).normal(size=(*labels.shape, classes))
    noise[labels == IGNORED, 0] = np.inf
    at = np.nonzero(labels != IGNORED)
    noise[(*at, labels[at])] = 50.0
    return noise


def recovered(data, tokenizer, names=NAMES):
    labels = padded_labels(data, tokenizer)
    return word_tags(perfect_logits(labels, len(names)), labels, names, data[WORDS_READ])


@pytest.fixture(scope="module")
def bert(minilm):
    return transformers.AutoTokenizer.from_pretrained(minilm)


def roberta(add_prefix_space):
    """A byte-level BPE whose vocabulary has whole words only with the blank before them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(["Ann is in London London"] * 3, trainer)
    model: dict[str, Any] = json.loads(core.to_str())["model"]
    merges: list[Any] = [tuple(merge) for merge in model["merges"]]
    return transformers.RobertaTokenizer(
        vocab=model["vocab"],
        merges=merges,
        add_prefix_space=add_prefix_space,
        model_max_length=64,
    )


# The names of a training split


def test_names_are_sorted_with_outside_first():
    assert tag_names([["I-PER", "O"], [], ["B-PER", "B-LOC"]], (), "a") == ("O", "B-LOC", "B-PER", "I-PER")
    assert tag_names([["VERB", "NOUN"]], (), "a") == ("NOUN", "VERB")
    assert tag_names([["I-PER", None], "O O", ["", "O"]], (), "a") == ("O", "I-PER")


def test_numbers_take_the_names_of_the_feature():
    assert tag_names([["O", "I-X"]], ["O", "B-X", "I-X"], "a") == ("O", "B-X", "I-X")
    numbers = [str(number) for number in range(11)]
    assert tag_names([numbers[::-1]], (), "a") == tuple(numbers)  # and not 0, 1, 10, 2


def test_codes_keep_their_zeros():
    assert tag_names([["02", "01"], ["1"]], (), "a") == ("01", "02", "1")
    assert tag_problem(["word"], ["01"], ("01", "02", "1")) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([["0", "2"]], "tags of a.jsonl are from 0 to 2: number them from 0"),
        ([["-100", "0"]], "are from -100 to 0"),
        (["O O", [], [None, ""]], "a.jsonl has no tags"),
    ],
)
def test_missing_or_wrongly_numbered_tags_are_refused(values, message):
    with pytest.raises(AlignAttnError, match=message):
        tag_names(values, (), "a.jsonl")


# The rows


@pytest.mark.parametrize(
    ("tokens", "tags", "problem"),
    [
        (["a"] * 12, ["O"] * 11, "it has 12 tokens and 11 tags"),
        (["a"], ["O", "O"], "it has 1 tokens and 2 tags"),
        ("a b", ["O", "O"], "its tokens are 'a b', not a list"),
        (["a"], None, "its tags are None, not a list"),
        ([], [], "it has no tokens"),
        (["a", ""], ["O", "O"], "its token 2 is empty"),
        (["a", 7], ["O", "O"], "its token 2 is 7, not text"),
        (["a", None], ["O", "O"], "its token 2 is None, not text"),
        (["a", "b"], ["O", "B-ORG"], "its tag 2, 'B-ORG', is not in the training split (O, B-PER, I-PER, B-LOC)"),
        (["a"], [4], "its tag 1, 4, is not in the training split (O, B-PER, I-PER, B-LOC)"),
        (["a"], [-100], "its tag 1, -100, is not in the training split (O, B-PER, I-PER, B-LOC)"),
        (["a"], [None], "its tag 1, None, is not in the training split (O, B-PER, I-PER, B-LOC)"),
        (["a"], [True], "its tag 1, True, is not in the training split (O, B-PER, I-PER, B-LOC)"),
        (["a", ZERO_WIDTH, "\u3000"], ["O", "I-PER", "O"], None),
    ],
)
def test_problems_of_a_row(tokens, tags, problem):
    assert tag_problem(tokens, tags, NAMES) == problem


def test_a_long_list_of_tags_is_shortened():
    names = tuple(f"B-{number}" for number in range(30))
    problem = tag_problem(["a"], ["O"], names)
    assert problem is not None
    assert problem.endswith("B-9 and 20 more)")


# The tokenizers


def test_byte_level_tokenizer_must_separate_words():
    with pytest.raises(AlignAttnError, match="does not separate the words of a list"):
        encoded(rows((["Ann"], [1])), roberta(add_prefix_space=False))
    tokenizer = roberta(add_prefix_space=True)
    check_tokenizer(tokenizer)
    ids = tokenizer(["Ann", "London"], is_split_into_words=True)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "ĠAnn", "ĠLondon", "</s>"]


def test_byte_level_tokenizer_may_separate_words_by_its_pre_tokenizer():
    tokenizer = roberta(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
    check_tokenizer(tokenizer)


def test_slow_tokenizer_is_refused():
    with pytest.raises(AlignAttnError, match="ByT5Tokenizer is slow"):
        check_tokenizer(transformers.ByT5Tokenizer())


def test_bert_tokenizer_is_accepted(bert):
    check_tokenizer(bert)


# Labels of word pieces


def test_the_first_piece_of_a_word_has_its_label(bert):
    words, tags = ["Ann", "tokenization", "Rome"], ["B-PER", "I-PER", "B-LOC"]
    (row,) = encoded(rows((words, tags)), bert)
    assert bert.convert_ids_to_tokens(row["input_ids"]) == ["[CLS]", "ann", "token", "##ization", "rome", "[SEP]"]
    assert row["labels"] == [IGNORED, 1, 2, IGNORED, 3, IGNORED]
    assert row[WORDS_READ] == [True, True, True]
    assert row[WORD_STARTS] == [0, 1, 1, 0, 1, 0]
    assert set(row) == {"input_ids", "token_type_ids", "attention_mask", "labels", WORDS_READ, WORD_STARTS}


@pytest.mark.parametrize("unread", [ZERO_WIDTH, CONTROL, "\u3000", "\ufffd"])
def test_a_word_without_a_piece_shifts_no_other(bert, unread):
    data = encoded(rows(([unread, "Ann", unread, unread, "Rome", unread], [2, 1, 2, 2, 3, 2])), bert)
    assert bert.convert_ids_to_tokens(data[0]["input_ids"]) == ["[CLS]", "ann", "rome", "[SEP]"]
    assert data[0]["labels"] == [IGNORED, 1, 3, IGNORED]
    assert recovered(data, bert) == [["O", "B-PER", "O", "O", "B-LOC", "O"]]


def test_words_of_a_row_without_pieces_are_outside(bert):
    data = encoded(rows(([ZERO_WIDTH], [1]), (["Ann"], [1])), bert)
    assert recovered(data, bert) == [["O"], ["B-PER"]]


def test_bytes_leave_no_word_unread():
    tokenizer = roberta(add_prefix_space=True)
    words, tags = ["Ann", ZERO_WIDTH, "中", "London"], ["B-PER", "O", "I-PER", "B-LOC"]
    data = encoded(rows((words, tags)), tokenizer)
    assert data[0][WORDS_READ] == [True] * 4
    assert len(data[0]["labels"]) > len(words) + 2
    assert recovered(data, tokenizer) == [tags]


def test_truncated_words_are_outside(bert):
    tags = ["B-PER", "I-PER", "O", "B-LOC"]
    data = encoded(rows((["Ann", "tokenization", "in", "Rome"], tags)), bert, max_length=4)
    assert data[0]["labels"] == [IGNORED, 1, 2, IGNORED]
    predicted = recovered(data, bert)
    assert predicted == [["B-PER", "I-PER", "O", "O"]]
    assert entity_scores(predicted, [tags])["recall"] == 0.5


# Back from the outputs


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_makes_no_difference(minilm, side):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm, padding_side=side)
    sentences = [(["Ann"], ["B-PER"]), (["Ann", "tokenization", "in", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"])]
    together = encoded(rows(*sentences), tokenizer)
    assert len(set(map(len, together["labels"]))) == 2
    alone = [recovered(encoded(rows(sentence), tokenizer), tokenizer)[0] for sentence in sentences]
    assert recovered(together, tokenizer) == alone == [tags for _, tags in sentences]


def test_perfect_outputs_of_chinese_characters(bert, shared_data):
    file = shared_data / "msra_ner" / "test.parquet"
    skip_without(file)
    data = Dataset.from_pandas(pandas.read_parquet(file).head(300), preserve_index=False)
    names = tag_names(data["ner_tags"], (), "msra")
    assert names == ("O", "B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER")
    assert not any(tag_problem(row["tokens"], row["ner_tags"], names) for row in data)
    tagged = encode_tags(data.select_columns(["tokens", "ner_tags"]), bert, names, max_length=512)
    assert all(all(read) for read in tagged[WORDS_READ])
    predicted = recovered(tagged, bert, names)
    assert predicted == list(data["ner_tags"])
    assert set(entity_scores(predicted, list(data["ner_tags"])).values()) == {1.0}


def test_outputs_of_a_model_through_the_trainer(tmp_path, bert):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(bert),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    config.num_labels = len(NAMES)
    model = transformers.BertForTokenClassification(config).eval()
    sentences = [(["Ann", "tokenization"], [1, 0]), (["Ann"], [1]), (["tokenization", ZERO_WIDTH, "Rome"], [0, 0, 3])]
    data = encoded(rows(*sentences), bert)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(tmp_path), per_device_eval_batch_size=1, report_to=[], use_cpu=True),
        data_collator=TagCollator(bert),
    )
    output = trainer.predict(data)
    predicted = word_tags(np.asarray(output.predictions), np.asarray(output.label_ids), NAMES, data[WORDS_READ])
    for row, tags in zip(data, predicted, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]])).logits[0]
        firsts = iter([NAMES[logits[at].argmax()] for at, label in enumerate(row["labels"]) if label != IGNORED])
        assert tags == [next(firsts) if read else "O" for read in row[WORDS_READ]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_diverged_outputs_are_refused_at_words_only(value):
    labels = np.array([[IGNORED, 1, IGNORED]])
    logits = np.zeros((1, 3, len(NAMES)))
    logits[0, 0], logits[0, 2] = value, value
    assert word_tags(logits, labels, NAMES, [[True]]) == [["O"]]
    logits[0, 1, 2] = value
    with pytest.raises(AlignAttnError, match="hold NaN or infinity: the training diverged"):
        word_tags(logits, labels, NAMES, [[True]])


@pytest.mark.parametrize("shape", [(1, 3, 5), (1, 2, 4), (2, 3, 4), (3, 4)])
def test_outputs_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="logits"):
        word_tags(np.zeros(shape), np.full((1, 3), IGNORED), NAMES, [[False]])


def test_labels_and_words_must_agree():
    logits, labels = np.zeros((1, 2, len(NAMES))), np.array([[0, 1]])
    with pytest.raises(ValueError, match="row 0 has 2 labels and 1 words that are read"):
        word_tags(logits, labels, NAMES, [[True, False]])
