"""The change of a model's function from plain transformers, and cases in which it is 0."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from conftest import tiny_model
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForTokenClassification,
    BertTokenizer,
)

import alignattn
from alignattn.attention.function_change import attention_change, product_change, total_variation
from alignattn.finetuning.function_change import measure_change
from alignattn.finetuning.heads import load_recorded_model
from alignattn.models.taggers.crf import tagger_with_crf
from alignattn.patching.balance import balance

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
BATCH = {
    "input_ids": torch.tensor([[2, 5, 6, 7, 3], [2, 6, 3, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}


def classifier(seed=0):
    with torch.random.fork_rng():
        model = AutoModelForSequenceClassification.from_config(tiny_model("bert", seed=seed).config)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.3)
    return model.eval()


def saved(folder, model):
    model.save_pretrained(folder)
    words = {word: index for index, word in enumerate(WORDS)}
    words |= {f"#{index}": index for index in range(len(words), model.config.vocab_size)}
    BertTokenizer(vocab=words).save_pretrained(folder)
    return load_recorded_model(str(folder), with_head=True)


@pytest.fixture
def plain():
    return classifier()


def changed(plain):
    model = copy.deepcopy(plain)
    for layer in model.bert.encoder.layer:
        layer.attention.self.query.weight.data *= 1.5
    return model


def test_change_equals_that_of_transformers_attention_and_probabilities(plain, tmp_path):
    model = changed(plain)
    found = measure_change(saved(tmp_path / "a", model), saved(tmp_path / "b", plain), [BATCH])
    outputs = []
    for one in (model, plain):
        one.set_attn_implementation("eager")
        with torch.no_grad():
            outputs.append(one(**BATCH, output_attentions=True))
    for layer, (own, other) in enumerate(zip(*(out.attentions for out in outputs), strict=True)):
        by_text = [((own - other)[text, :, :n].abs().sum(-1) / 2).mean(-1) for text, n in ((0, 5), (1, 3))]
        torch.testing.assert_close(found.attention[layer].float(), torch.stack(by_text).mean(0), atol=1e-6, rtol=1e-4)
    own, other = (out.logits.softmax(-1) for out in outputs)
    assert found.predictions == pytest.approx(float((own - other).abs().sum(-1).mean() / 2), abs=1e-6)
    assert found.differing == float((own.argmax(-1) != other.argmax(-1)).double().mean())
    torch.testing.assert_close(found.products, torch.full_like(found.products, 0.5))
    assert found.num_texts == 2


def test_another_basis_of_the_same_function_changes_nothing(plain, tmp_path):
    model = copy.deepcopy(plain)
    balance(model, [BATCH, BATCH])
    query = model.bert.encoder.layer[0].attention.self.query.weight
    assert not torch.allclose(query, plain.bert.encoder.layer[0].attention.self.query.weight)
    found = measure_change(saved(tmp_path / "a", model), saved(tmp_path / "b", plain), [BATCH])
    assert float(found.attention.max()) < 1e-4
    assert float(found.products.max()) < 1e-4
    assert found.predictions < 1e-4
    assert found.differing == 0


@pytest.mark.parametrize("head", [AutoModelForTokenClassification, AutoModelForQuestionAnswering])
def test_predictions_of_tokens_and_spans_ignore_padding(head, tmp_path):
    pair = []
    for name, seed in (("a", 1), ("b", 2)):
        config = tiny_model("bert").config
        config.num_labels = 2
        model = head.from_config(config)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.3)
        pair.append(saved(tmp_path / name, model.eval()))
    apart = [{name: values[[row], :n] for name, values in BATCH.items()} for row, n in ((0, 5), (1, 3))]
    together, alone = measure_change(*pair, [BATCH]), measure_change(*pair, apart)
    assert 0 < together.predictions < 1
    assert together.predictions == pytest.approx(alone.predictions, abs=1e-6)
    assert together.differing == alone.differing


@pytest.mark.parametrize("has_crf", [False, True])
def test_predictions_of_tags_are_those_of_words(has_crf, tmp_path):
    """[CLS], [SEP] and later pieces counted as words, and a CRF decoded them, too."""
    starts, names = torch.tensor([[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]), ["O", "B-A", "I-A"]
    models, recorded = [], []
    for seed in (1, 2):
        config = tiny_model("bert").config
        config.id2label, config.label2id = dict(enumerate(names)), {name: n for n, name in enumerate(names)}
        config.crf_tags = "bio"
        own_class = tagger_with_crf(config) if has_crf else BertForTokenClassification
        torch.manual_seed(seed)
        model = own_class(config).eval()
        for parameter in model.parameters():
            parameter.data.normal_(std=0.5)
        models.append(model)
        recorded.append(replace(saved(tmp_path / str(seed), classifier()), model=alignattn.patch(model, "soft")))
    found = measure_change(*recorded, [BATCH | {"word_starts": starts}])
    words = {"word_starts": starts} if has_crf else {}
    with torch.no_grad():
        outputs = [model(**BATCH, **words) for model in models]
    own, other = (one.logits[starts.bool()].softmax(-1) for one in outputs)
    classes = [one.tags[starts.bool()] if has_crf else one.logits[starts.bool()].argmax(-1) for one in outputs]
    assert found.predictions == pytest.approx(float((own - other).abs().sum(-1).mean() / 2), abs=1e-6)
    assert found.differing == pytest.approx(float((classes[0] != classes[1]).double().mean()))


def test_padding_does_not_enter(plain, tmp_path):
    pair = saved(tmp_path / "a", changed(plain)), saved(tmp_path / "b", plain)
    apart = [{name: values[[row], :n] for name, values in BATCH.items()} for row, n in ((0, 5), (1, 3))]
    together, alone = measure_change(*pair, [BATCH]), measure_change(*pair, apart)
    torch.testing.assert_close(together.attention, alone.attention, atol=1e-6, rtol=1e-4)
    assert together.predictions == pytest.approx(alone.predictions, abs=1e-6)


def test_quantities_that_a_model_lacks_are_undefined(plain, tmp_path):
    model = alignattn.patch(copy.deepcopy(plain), "bilinear")
    found = measure_change(saved(tmp_path / "a", model), saved(tmp_path / "b", plain), [BATCH])
    # The score has its own matrix and is not the product of the projections alone.
    assert found.products.isnan().all()
    assert float(found.attention.max()) < 1e-4
    headless = [saved(tmp_path / name, tiny_model("bert", seed=seed).base_model) for name, seed in (("c", 1), ("d", 2))]
    found = measure_change(*headless, [BATCH])
    assert found.predictions is None
    assert math.isfinite(float(found.products.mean()))


def test_total_variation_is_0_of_equal_and_1_of_disjoint_distributions():
    first = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    second = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]])
    torch.testing.assert_close(total_variation(first, second), torch.tensor([0.0, 1.0, 0.1], dtype=torch.float64))


def test_padded_queries_do_not_enter():
    generator = torch.Generator().manual_seed(0)
    weights, reference = (torch.rand(2, 3, 5, 5, generator=generator).softmax(dim=-1) for _ in range(2))
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    found = attention_change(weights, reference, mask)
    torch.testing.assert_close(found[:1], attention_change(weights[:1], reference[:1]))
    torch.testing.assert_close(found[1:], attention_change(weights[1:, :, :2], reference[1:, :, :2]))


def test_the_product_is_the_same_in_any_basis_and_not_after_a_change_of_the_queries_alone():
    generator = torch.Generator().manual_seed(1)
    query, key, basis = (torch.randn(2, *size, generator=generator) for size in ((4, 9), (4, 9), (4, 4)))
    inverse = torch.linalg.inv(basis).mT
    in_basis = product_change(basis @ query, inverse @ key, query, key)
    torch.testing.assert_close(in_basis, torch.zeros(2, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(product_change(1.5 * query, key, query, key), torch.full((2,), 0.5, dtype=torch.float64))
    assert (product_change(basis @ query, key, query, key) > 0.1).all()
