"""What all classifiers of words share, for single texts and for pairs: padding, training, slots, saving."""

import gc
from dataclasses import replace

import pytest
import torch
from autocast import assert_near_under_autocast
from slots_taken import FILLINGS, assert_takes, fill, with_fillings
from torch.nn.functional import pad
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainerCallback

import alignattn
from alignattn import AlignAttnError
from alignattn.finetuning.options import ModelOptions
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext
from alignattn.tasks import TextClassification

TASK = TextClassification(name="own", text_columns=("text",), labels=("a", "b", "c"), metrics=("accuracy",))
PAIR_TASK = replace(TASK, text_columns=("a", "b"))
TEXTS = [("a man sees the red bird . it sings !",), ("the dog sleeps",), ("no . no . no",), ("bird",)]
PAIRS = [
    ("a man sees the red bird", "a bird"),
    ("the dog sleeps", "the small dog does not sleep"),
    ("every woman likes some cat", "a woman likes a cat and a dog"),
    ("a", "a"),
]
SMALL = {"embedding_dim": 6, "hidden_dim": 8, "dropout": 0.0}
LABELS = torch.tensor([0, 1, 2, 0])


def reads(name, count):
    capabilities = capabilities_of(name)
    return capabilities.texts_per_row == (count,) and TextClassification in capabilities.tasks


TEXT_MODELS = [name for name in MODELS if reads(name, 1)]
PAIR_MODELS = [name for name in MODELS if reads(name, 2) and capabilities_of(name).reads_embeddings]
NAMES = [*TEXT_MODELS, *PAIR_MODELS]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def rows_of(name):
    return PAIRS if name in PAIR_MODELS else TEXTS


def built_of(name, rows=None, *, labels=TASK.labels, seed=0, **fields):
    task = replace(PAIR_TASK if name in PAIR_MODELS else TASK, labels=labels)
    columns = dict(zip(task.text_columns, zip(*(rows or rows_of(name)), strict=True), strict=True))
    columns = {column: list(texts) for column, texts in columns.items()}
    return MODELS.load(name).build(BuildContext(task, columns, seed=seed, config_fields=SMALL | fields))


def small_model(name, filling=None, **fields):
    """Return a small model in float64 and evaluation mode, and its tokenizer."""
    built = built_of(name, **fields)
    return fill(built.model.double(), filling), built.tokenizer


def batch_of(tokenizer, rows, **options):
    return tokenizer(*map(list, zip(*rows, strict=True)), padding=True, return_tensors="pt", **options)


def gradients(model, logits):
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return torch.autograd.grad((logits * weights).sum(), list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize(("name", "filling"), with_fillings(NAMES))
def test_autocast_trains_near_full_precision(name, filling):
    model, tokenizer = small_model(name, filling)
    assert_near_under_autocast(model, {**batch_of(tokenizer, rows_of(name)), "labels": LABELS})


@pytest.mark.parametrize(("name", "filling"), with_fillings(NAMES))
def test_padding_on_either_side_changes_nothing(name, filling):
    model, tokenizer = small_model(name, filling)
    rows = rows_of(name)
    batch = batch_of(tokenizer, rows)
    logits = model(**batch).logits
    alone = torch.cat([model(**batch_of(tokenizer, [row])).logits for row in rows])
    left = model(**batch_of(tokenizer, rows, padding_side="left")).logits
    # Further padding has the ids of a word: only the mask marks it.
    further = {key: pad(value, (0, 3), value=2 if key == "input_ids" else 0) for key, value in batch.items()}
    expected = gradients(model, logits)
    for other in (alone, left, model(**further).logits):
        torch.testing.assert_close(other, logits)
        torch.testing.assert_close(gradients(model, other), expected, rtol=1e-5, atol=1e-7)
    del batch["attention_mask"]
    assert torch.equal(model(**batch).logits, logits)


@pytest.mark.parametrize("label_count", [3, 1])
def test_every_parameter_gets_a_gradient_and_an_empty_text_is_finite(name, label_count):
    model, tokenizer = small_model(name, labels=TASK.labels if label_count > 1 else ())
    labels = LABELS if label_count > 1 else LABELS + 0.5
    output = model(**batch_of(tokenizer, rows_of(name)), labels=labels)
    if label_count > 1:
        expected = -output.logits.log_softmax(1)[range(4), labels].mean()
    else:
        expected = ((output.logits[:, 0] - labels) ** 2).mean()
    torch.testing.assert_close(output.loss, expected, check_dtype=False)
    output.loss.backward()
    for path, parameter in model.named_parameters():
        # A bias of the keys shifts all scores of a query equally, which softmax ignores.
        if not path.endswith("attention.key_projection.bias"):
            assert parameter.grad.abs().max() > 0, path
    assert (model.embedding.weight.grad[tokenizer.pad_token_id] == 0).all()
    model.zero_grad()
    for row in rows_of(name):
        for place in range(len(row)):
            emptied = tuple("" if at == place else text for at, text in enumerate(row))
            for rows in ([emptied], [emptied, row], [("",) * len(row)]):
                logits = model(**batch_of(tokenizer, rows)).logits
                assert logits.isfinite().all()
                assert all(one is None or one.isfinite().all() for one in gradients(model, logits))


def test_dropout_acts_in_training_alone(name):
    model, tokenizer = small_model(name, dropout=0.5)
    batch = batch_of(tokenizer, rows_of(name))
    assert torch.equal(model(**batch).logits, model(**batch).logits)
    model.train()
    assert not torch.equal(model(**batch).logits, model(**batch).logits)


def test_learns_32_rows_by_heart(name):
    generator = torch.Generator().manual_seed(0)
    words = ["".join(chr(97 + letter) for letter in torch.randint(26, (3,), generator=generator)) for _ in range(40)]

    def text():
        return " ".join(words[i] for i in torch.randint(40, (6,), generator=generator)) + " ."

    rows = [tuple(text() for _ in rows_of(name)[0]) for _ in range(32)]
    labels = torch.randint(3, (32,), generator=generator)
    built = built_of(name, rows, hidden_dim=16, embedding_dim=16)
    model, batch = built.model, batch_of(built.tokenizer, rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    assert (model(**batch).logits.argmax(1) == labels).float().mean() > 0.9


def supported_or_first(filling):
    """Return the models that take a choice, and one that does not."""
    takes = [name for name in NAMES if filling.slot in capabilities_of(name).slots]
    return [*takes, *[name for name in NAMES if name not in takes][:1]]


@pytest.mark.parametrize(
    ("name", "filling"), [(name, filling) for filling in FILLINGS for name in supported_or_first(filling)], ids=str
)
def test_supports_its_declared_slots_and_no_others(name, filling, tmp_path):
    built, slot = built_of(name), filling.slot
    if slot not in capabilities_of(name).slots:
        with pytest.raises(AlignAttnError, match=r"attention|distribution"):
            ModelOptions(model=name, **{slot: filling.choice}).check(PAIR_TASK if name in PAIR_MODELS else TASK)
        with pytest.raises(AlignAttnError, match=r"no projections|names that alignattn knows|distribution"):
            fill(built.model, filling)
        return
    batch = batch_of(built.tokenizer, rows_of(name))
    model, loaded = assert_takes(
        filling, built.model, batch, AutoModelForSequenceClassification, tmp_path, labels=LABELS
    )
    assert loaded.alignattn.config == model.alignattn.config


@pytest.mark.parametrize("name", [name for name in NAMES if capabilities_of(name).has_attention])
def test_recorded_weights_are_zero_on_padding(name):
    model, tokenizer = small_model(name)
    alignattn.patch(model, "soft")
    with alignattn.collect(model) as seen:
        model(**batch_of(tokenizer, rows_of(name)))
    for layer in seen.layers:
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
        if layer.key_mask is not None:
            assert (layer.weights * ~layer.key_mask[:, None, None]).abs().max() == 0


@pytest.mark.parametrize("train_embeddings", [True, False])
def test_a_saved_model_loads_with_the_auto_classes(name, tmp_path, train_embeddings):
    built = built_of(name, train_embeddings=train_embeddings)
    torch.manual_seed(1)
    with torch.no_grad():  # other weights than the initial ones
        for parameter in built.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    built.model.eval().save_pretrained(tmp_path)
    built.tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    batch = batch_of(built.tokenizer, rows_of(name))
    again = batch_of(AutoTokenizer.from_pretrained(tmp_path), rows_of(name))
    assert {key: value.tolist() for key, value in again.items()} == {
        key: value.tolist() for key, value in batch.items()
    }
    assert type(loaded) is MODELS.load(name)
    assert not alignattn.is_patched(loaded)
    # After loading, the weights of an LSTM have another place in memory, which may change the last bit of a sum.
    torch.testing.assert_close(loaded(**again).logits, built.model(**batch).logits, rtol=1e-5, atol=1e-6)
    assert loaded.embedding.weight.requires_grad is train_embeddings
    assert loaded.get_input_embeddings() is loaded.embedding


def test_the_seed_alone_decides_the_weights(name):
    def weights(seed):
        return torch.cat([parameter.flatten() for parameter in built_of(name, seed=seed).model.parameters()])

    state = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


class LiveTensors(TrainerCallback):
    """Counts the bytes of all live tensors after each step."""

    def __init__(self):
        self.bytes = []

    def on_step_end(self, args, state, control, **kwargs):
        gc.collect()
        # By type: isinstance asks some proxies for the class of their referent, which may not exist.
        tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
        storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
        self.bytes.append(sum(storages.values()))


STEPS, WARM_STEPS = 12, 3
"""Steps of an epoch, and steps until the optimizer and the Trainer have all their state."""


# With an alignment, which records each forward, if the model takes one.
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_memory_is_constant_over_an_epoch(name, tmp_path):
    slots = capabilities_of(name).slots
    attention = next((filling for filling in FILLINGS if filling.slot == "alignment" and filling.slot in slots), None)
    built, live = built_of(name), LiveTensors()
    rows = [built.tokenizer(*row) | {"labels": label} for row, label in zip(TEXTS, (0, 1, 2, 0), strict=True)]
    args = alignattn.AlignmentTrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, num_train_epochs=1, per_device_train_batch_size=4, logging_steps=1,
        report_to=[], disable_tqdm=True, save_strategy="no", train_sampling_strategy="sequential",
    )  # fmt: skip
    alignattn.AlignmentTrainer(
        model=fill(built.model, attention),
        args=args,
        train_dataset=rows * STEPS,
        data_collator=DataCollatorWithPadding(built.tokenizer, padding="max_length", max_length=16),
        callbacks=[live],
    ).train()
    assert len(live.bytes) == STEPS
    # At the last step, no next batch is prefetched.
    assert len(set(live.bytes[WARM_STEPS:-1])) == 1, str(live.bytes)
