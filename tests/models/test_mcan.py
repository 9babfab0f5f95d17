"""MCAN: its masks, its guided attention against a loop, its slots, and what it refuses."""

import pytest
import torch
from torch.nn import functional as F

import alignattn
from alignattn.attention.choices import NORMALIZERS, SCORES, VALUES
from alignattn.attention.masks import CrossMask
from alignattn.models.build import build_model
from alignattn.models.vqa import McanForVisualQuestionAnswering
from alignattn.patching import patch_of
from alignattn.utils.errors import AlignAttnError

WORDS, BOXES, WIDTH, CLASSES = 20, 5, 6, 4
SIZES = {"hidden_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "embedding_dim": 8, "reduction_dim": 8}
PICTURES = {"conv_channels": [8, 8]}


def make_model(attention=None, *, width=WIDTH, **fields):
    fields = {"vocab_size": WORDS, "num_labels": CLASSES, "joint_dim": 12, "dropout": 0.0, **SIZES, **fields}
    torch.manual_seed(0)
    model = build_model(McanForVisualQuestionAnswering, {"feature_width": width, **fields}, seed=0)
    return model if attention is None else alignattn.patch(model, **attention)


@pytest.fixture
def inputs():
    """Three questions of 4, 2 and 3 words about images of 5, 3 and 4 regions, with padding that must be ignored."""
    torch.manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    regions = torch.arange(BOXES) < torch.tensor([[5], [3], [4]])
    image = torch.randn(3, BOXES, WIDTH).masked_fill(~regions[..., None], 100.0)
    ids = torch.randint(1, WORDS, (3, 4)) * mask
    return {"input_ids": ids, "attention_mask": mask, "image": image, "image_mask": regions}


def logits_of(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits


EVERY_CHOICE = [
    *({"attention": name} for name in ("soft", "aa-gan", "aa-ot", "aa-ct", "aa-ct+qvi+entmax15")),
    *({"attention": "soft", "score": name} for name in SCORES if not name.startswith("gat")),
    *({"attention": "soft", "normalizer": name} for name in NORMALIZERS),
    *({"attention": "soft", "value": name} for name in VALUES),
]


def name_of(choice):
    return "-".join(choice.values())


@pytest.mark.parametrize("attention", EVERY_CHOICE, ids=name_of)
def test_logits_of_a_padded_batch_are_those_of_its_samples(attention, inputs):
    model = make_model(attention)
    together = logits_of(model, inputs)
    for index in range(3):
        words, boxes = inputs["attention_mask"][index].sum(), inputs["image_mask"][index].sum()
        alone = {
            "input_ids": inputs["input_ids"][index : index + 1, :words],
            "image": inputs["image"][index : index + 1, :boxes],
        }
        torch.testing.assert_close(logits_of(model, alone)[0], together[index], atol=1e-5, rtol=1e-4)


def test_padding_on_either_side_changes_nothing(inputs):
    model = make_model()
    left = dict(inputs)
    shifts = 4 - inputs["attention_mask"].sum(dim=1)
    for name in ("input_ids", "attention_mask"):
        left[name] = torch.stack([row.roll(int(shift)) for row, shift in zip(inputs[name], shifts, strict=True)])
    assert not torch.equal(left["input_ids"], inputs["input_ids"])
    torch.testing.assert_close(logits_of(model, left), logits_of(model, inputs))
    with_more = left | {name: F.pad(left[name], (2, 3)) for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(logits_of(model, with_more), logits_of(model, inputs))


@pytest.mark.parametrize("alignment", ["gan", "ot", "ct"])
def test_the_alignment_of_a_padded_batch_is_the_mean_of_its_samples(alignment, inputs):
    model = make_model({"attention": f"aa-{alignment}"}).double().train()
    inputs["image"] = inputs["image"].double()

    def loss_of(rows):
        model(**rows)
        return alignattn.alignment_loss(model)

    alone = []
    for index in range(3):
        words, boxes = inputs["attention_mask"][index].sum(), inputs["image_mask"][index].sum()
        row = {name: values[index : index + 1] for name, values in inputs.items()}
        cut = {"input_ids": words, "attention_mask": words, "image": boxes, "image_mask": boxes}
        alone.append(loss_of({name: values[:, : cut[name]] for name, values in row.items()}))
    torch.testing.assert_close(loss_of(inputs), torch.stack(alone).mean(), atol=1e-9, rtol=1e-7)


def test_guided_attention_is_that_of_a_loop(inputs):
    model = make_model()
    unit = model.co_attention.decoder[0].guided_attention
    states, guide = torch.randn(3, BOXES, 16), torch.randn(3, 4, 16)
    mask = CrossMask(inputs["image_mask"], inputs["attention_mask"].bool())
    found = unit(states, guide, mask)
    for sample in range(3):
        real = guide[sample, mask.key[sample]]
        for region in range(BOXES):
            heads = []
            for part in range(2):
                rows = slice(8 * part, 8 * part + 8)
                query = F.linear(states[sample, region], unit.query_projection.weight[rows])
                keys = [F.linear(word, unit.key_projection.weight[rows]) for word in real]
                values = torch.stack([F.linear(word, unit.value_projection.weight[rows]) for word in real])
                weights = torch.stack([query @ key / 8**0.5 for key in keys]).softmax(dim=0)
                heads.append(weights @ values)
            expected = F.linear(torch.cat(heads), unit.output_projection.weight, unit.output_projection.bias)
            torch.testing.assert_close(found[sample, region], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("alignment", ["gan", "ot", "ct"])
def test_guided_attention_aligns_an_images_queries_with_a_questions_keys(alignment, inputs):
    model = make_model({"attention": f"aa-{alignment}", "layers": (3,)}).double().eval()
    inputs["image"] = inputs["image"].double()
    assert list(patch_of(model).paths.values()) == [["co_attention.decoder.0.guided_attention"]]
    with alignattn.collect(model) as seen, torch.no_grad():
        model(**inputs)
    (record,) = seen.layers
    assert torch.equal(record.mask, inputs["image_mask"])
    assert torch.equal(record.key_mask, inputs["attention_mask"].bool())
    assert list(record.weights.shape) == [3, 2, BOXES, 4]
    assert (record.weights * ~record.key_mask[:, None, None, :]).abs().max() == 0
    (loss_class,) = patch_of(model).alignments.values()
    expected = loss_class(record.query, record.key, record.mask, key_mask=record.key_mask)
    torch.testing.assert_close(record.loss, expected)


@pytest.mark.parametrize("images", [{"width": WIDTH}, {"width": 0, **PICTURES}], ids=["regions", "pictures"])
@pytest.mark.parametrize("attention", ["soft", "aa-ct+qvi"])
def test_every_parameter_gets_a_gradient(attention, images, inputs):
    model = make_model({"attention": attention}, **images).train()
    if not images["width"]:
        inputs["image"] = torch.rand(3, 3, 16, 16)
        del inputs["image_mask"]
    loss = model(**inputs, labels=torch.tensor([0, 1, 2])).loss
    (loss + alignattn.alignment_loss(model) if attention != "soft" else loss).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, path


def test_scores_of_several_answers_are_trained_on_by_class(inputs):
    model = make_model()
    ids, scores = torch.tensor([[0, 0], [1, 2], [3, 0]]), torch.tensor([[0.3, 0.0], [1.0, 0.6], [0.9, 0.0]])
    output = model(**inputs, answer_ids=ids, answer_scores=scores, labels=torch.tensor([0, 1, 3]))
    targets = torch.tensor([[0.3, 0, 0, 0], [0, 1, 0.6, 0], [0, 0, 0, 0.9]])
    expected = F.binary_cross_entropy(output.logits.sigmoid(), targets, reduction="none").sum(dim=1).mean()
    torch.testing.assert_close(output.loss, expected)


def test_it_is_saved_and_loaded_with_its_slots(inputs, tmp_path):
    model = make_model({"attention": "aa-ct+qvi"}, train_embeddings=False)
    expected = logits_of(model, inputs)
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, McanForVisualQuestionAnswering.auto_class)
    assert patch_of(loaded).config.name == patch_of(model).config.name
    assert torch.equal(logits_of(loaded, inputs), expected)
    assert not loaded.embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("fields", "image", "message"),
    [
        ({}, torch.zeros(3, BOXES, 2), "does not have the 6 features per region"),
        ({"width": 0, **PICTURES}, torch.zeros(3, BOXES, WIDTH), "height, width"),
    ],
    ids=["width", "picture"],
)
def test_images_of_another_shape_are_refused(fields, image, message, inputs):
    with pytest.raises(AlignAttnError, match=message):
        make_model(**fields)(**{**inputs, "image": image})


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(AlignAttnError, match="must be multiples of 8"):
        make_model(width=0, conv_channels=[12])


def test_balance_leaves_answers_as_they_are_with_unequal_lengths(inputs):
    model = make_model({"attention": "soft"})
    before = logits_of(model, inputs)
    report = alignattn.balance(model, [inputs] * 8)
    assert len(report.layers) == 6
    torch.testing.assert_close(logits_of(model, inputs), before, atol=1e-4, rtol=1e-3)
