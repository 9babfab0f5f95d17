"""An alignment separates the samples that the model's attention separates, where only positions mark them."""

import itertools
import warnings

import pytest
import torch
import transformers
from conftest import tiny_model, without_dropout
from decoders import MODELS, decoder
from sgd_settings import SGD_SETTINGS, stacked
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask

import alignattn
from alignattn.patching.masks import packing_by_positions
from alignattn.training.weights import BatchSize

LENGTHS = ((3, 5), (4, 4))
TOKENS = 8
MIXED = "does not separate the samples"


def by_position(module, query, key, value, attention_mask, position_ids=None, **kwargs):
    """Replace flash attention, which needs a GPU: it separates the samples of a single row without padding."""
    if attention_mask is not None or position_ids is None or len(query) > 1:
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()[None, None]
        return sdpa_attention_forward(module, query, key, value, causal if mask is None else causal & mask, **kwargs)
    starts = [*(position_ids[0] == 0).nonzero()[:, 0].tolist(), query.shape[2]]
    attended = [
        sdpa_attention_forward(module, *(side[:, :, start:end] for side in (query, key, value)), None, **kwargs)[0]
        for start, end in itertools.pairwise(starts)
    ]
    return torch.cat(attended, dim=1), None


AttentionInterface.register("flash_by_position", by_position)
AttentionMaskInterface.register("flash_by_position", flash_attention_mask)


def packed(rows=2):
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 30, (rows, TOKENS), generator=draw)
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS[:rows]])
    return {"input_ids": ids, "position_ids": positions}


def padded(batch):
    rows = zip(batch["input_ids"], LENGTHS, strict=False)
    samples = [sample for ids, lengths in rows for sample in ids.split(list(lengths))]
    ids = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(sample) for sample in samples], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def block_mask(rows=2):
    """Return the causal mask of pairs in which samples are separated, made from their lengths."""
    return torch.stack(
        [torch.block_diag(*(torch.ones(length, length) for length in row)).tril().bool() for row in LENGTHS[:rows]]
    )[:, None]


def arguments(how, rows, dtype=torch.float64):
    added = {
        "as it is": {},
        "no cache": {"use_cache": False},
        "a mask of ones": {"attention_mask": torch.ones(rows, TOKENS, dtype=torch.long), "use_cache": False},
        "a mask of ones and a cache": {"attention_mask": torch.ones(rows, TOKENS, dtype=torch.long)},
        "a mask of blocks": {"attention_mask": block_mask(rows)},
        "an added mask of blocks": {
            "attention_mask": torch.zeros(rows, 1, TOKENS, TOKENS, dtype=dtype).masked_fill(
                ~block_mask(rows), torch.finfo(dtype).min
            )
        },
    }
    return packed(rows) | added[how]


WAYS = ("as it is", "no cache", "a mask of ones", "a mask of ones and a cache")
CASES = [
    *itertools.product(("sdpa", "eager", "flash_by_position"), WAYS),
    ("sdpa", "a mask of blocks"),
    ("sdpa", "an added mask of blocks"),
    ("eager", "an added mask of blocks"),
]


def separates(model, batch):
    """Tell whether the first token of a second sample does not see the last of the first, by its hidden states."""
    before, changed = batch, batch | {"input_ids": batch["input_ids"].clone()}
    rows = torch.arange(len(batch["input_ids"]))
    last = torch.tensor([row[0] - 1 for row in LENGTHS])[rows]
    changed["input_ids"][rows, last] = 4 + (changed["input_ids"][rows, last] - 3) % 26
    with torch.no_grad():
        states = [model.base_model(**inputs).last_hidden_state[rows, last + 1] for inputs in (before, changed)]
    return torch.equal(*states)


def gradients(model, batch):
    model.zero_grad()
    model.base_model(**batch)
    loss = alignattn.alignment_loss(model)
    loss.backward()
    return loss.detach(), {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def check(model, batch, is_separated, rows=2):
    """Check loss, gradient and size: of each sample as a row of its own, or of each row as one sample."""
    expected = gradients(model, padded(batch) if is_separated else {"input_ids": batch["input_ids"]})
    # Gemma normalises in single precision.
    torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-6, atol=1e-9)
    assert BatchSize.of(batch, model=model).samples == (2 * rows if is_separated else rows)


@pytest.mark.filterwarnings(f"ignore:.*{MIXED}")
@pytest.mark.parametrize(("implementation", "how"), CASES)
@pytest.mark.parametrize("rows", [1, 2])
def test_an_alignment_separates_what_the_attention_separates(implementation, how, rows):
    model = decoder("llama", num_hidden_layers=1)
    # Not by the public setter, which looks for the kernel of an implementation with "flash" in its name.
    model.config._attn_implementation_internal = implementation
    batch = arguments(how, rows)
    is_separated = separates(model, batch)
    check(alignattn.patch(model, "aa-ct").train(), batch, is_separated, rows)


@pytest.mark.filterwarnings(f"ignore:.*{MIXED}")
@pytest.mark.parametrize("how", ["as it is", "no cache", "a mask of ones"])
@pytest.mark.parametrize("name", MODELS)
def test_each_family_of_decoders_is_followed(name, how):
    model, batch = decoder(name, num_hidden_layers=1), arguments(how, 2)
    is_separated = separates(model, batch)
    assert is_separated == (how == "no cache")
    check(alignattn.patch(model, "aa-ct").train(), batch, is_separated)


@pytest.mark.filterwarnings(f"ignore:.*{MIXED}")
@pytest.mark.parametrize("how", ["no cache", "a mask of ones"])
def test_slots_that_change_the_function_are_followed(how):
    model, batch = alignattn.patch(decoder("llama", num_hidden_layers=1), "aa-ct+entmax15"), arguments(how, 2)
    is_separated = separates(model.eval(), batch)
    assert is_separated == (how == "no cache")
    check(model.train(), batch, is_separated)


@pytest.mark.parametrize("how", ["a mask of blocks", "no mask"])
def test_an_encoder_separates_samples_by_a_mask_of_pairs_alone(how):
    model, batch = tiny_model("bert").double(), packed()
    if how == "a mask of blocks":
        pairs = [torch.block_diag(*(torch.ones(length, length) for length in row)).bool() for row in LENGTHS]
        batch["attention_mask"] = torch.stack(pairs)[:, None]
    without_dropout(model)
    is_separated = separates(model.eval(), batch)
    assert is_separated == (how == "a mask of blocks")
    alignattn.patch(model, "aa-ct", layers=(0,)).train()
    assert BatchSize.of(batch, model=model).samples == (4 if is_separated else 2)
    if is_separated:
        # Positions of the padded rows are those of the samples.
        torch.testing.assert_close(gradients(model, batch), gradients(model, padded(batch)), rtol=1e-9, atol=1e-12)
    else:
        with pytest.warns(UserWarning, match=MIXED):
            gradients(model, batch)


def test_a_mask_for_flex_attention_separates_its_samples():
    sample = torch.tensor([[0] * 3 + [1] * 5, [0] * 4 + [1] * 4])

    def apart(row, _head, query, key):
        return (sample[row, query] == sample[row, key]) & (query >= key)

    def mixed(_row, _head, query, key):
        return query >= key

    positions = packed()["position_ids"]
    for mask_mod, lengths in ((apart, [3, 5, 4, 4]), (mixed, None)):
        mask = create_block_mask(mask_mod, 2, None, TOKENS, TOKENS, device="cpu")
        packing, is_mixed = packing_by_positions(positions, mask)
        assert is_mixed == (lengths is None)
        assert (None if packing is None else packing.is_real.sum(dim=1).tolist()) == lengths


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_separates_no_samples(side):
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, {"left": slice(0, 3), "right": slice(5, 8), "between": slice(2, 4)}[side]] = 0
    batch = {"input_ids": packed()["input_ids"], "attention_mask": mask}
    model = alignattn.patch(decoder("llama", num_hidden_layers=1), "aa-ct").train()
    expected = gradients(model, batch)
    for positions in (mask.cumsum(1) - 1, (mask.cumsum(1) - 1).clamp_min(0).masked_fill(mask == 0, 1)):
        with warnings.catch_warnings(action="error"):
            found = gradients(model, batch | {"position_ids": positions})
        torch.testing.assert_close(found, expected)


class Reads(TorchDispatchMode):
    """Counts how often a program waits for values of tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("how", ["plain", "padded"])
def test_plain_rows_are_not_waited_for(implementation, how):
    """An alignment reads no values of a decoder's batch, beyond what the plain decoder reads."""
    model = decoder("llama").train()
    model.set_attn_implementation(implementation)
    batch = padded(packed()) if how == "padded" else {"input_ids": packed()["input_ids"]}
    counts = []
    for is_aligned in (False, True):
        if is_aligned:
            alignattn.patch(model, "aa-moments")
        with Reads() as reads:
            model(**batch)
            if is_aligned:
                alignattn.alignment_loss(model)
        counts.append(reads.count)
    assert counts[1] == counts[0]


@pytest.mark.parametrize("how", ["as it is", "a mask of ones"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_samples_that_the_model_mixes_are_told_once(implementation, how):
    model = decoder("llama")
    model.set_attn_implementation(implementation)
    alignattn.patch(model, "aa-ct").train()
    with warnings.catch_warnings(record=True, action="always") as caught:
        for _ in range(3):
            gradients(model, arguments(how, 2))
    assert sum(MIXED in str(warning.message) for warning in caught) == 1


def test_plain_positions_are_told_nothing():
    model = alignattn.patch(decoder("llama"), "aa-ct").train()
    with warnings.catch_warnings(action="error"):
        gradients(model, packed() | {"position_ids": torch.arange(TOKENS).expand(2, -1)})
        gradients(model, arguments("no cache", 2))


@pytest.mark.filterwarnings(f"ignore:.*{MIXED}")
@pytest.mark.parametrize("how", ["no cache", "a mask of ones"])
def test_the_step_of_a_trainer_does_not_depend_on_its_split(how, tmp_path):
    """One row is two samples and the other one: separated samples give the batches of one row different weights."""
    trained = []
    for size in (1, 2):
        model = alignattn.patch(decoder("llama", num_hidden_layers=1), "aa-ct", alignment_weight=1.0)
        batch = arguments(how, 2) | {"labels": packed()["input_ids"]}
        batch["position_ids"][1] = torch.arange(TOKENS)
        batch.pop("use_cache")
        rows = [{name: values[row] for name, values in batch.items()} for row in range(2)]
        args = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=2 // size,
            learning_rate=0.1,
            **SGD_SETTINGS,
        )
        alignattn.AlignmentTrainer(model=model, args=args, train_dataset=rows, data_collator=stacked).train()
        trained.append(model.state_dict())
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-6, atol=1e-9)
