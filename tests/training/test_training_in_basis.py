"""Training whose alignment moves only a basis: bitwise that of plain attention, until the basis is folded in."""

import pytest
import torch
from conftest import tiny_batch, tiny_model
from safetensors.torch import load_file
from test_trainer import logged, train

import alignattn
from alignattn.utils.errors import AlignAttnError

FAST = {"alignment_learning_rate": 0.1, "save_strategy": "epoch", "logging_steps": 1}


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("variant", ["aa-ct", "aa-sliced"])
def test_the_task_is_learned_bitwise_as_by_plain_attention(variant, tmp_path):
    soft = train(alignattn.patch(tiny_model("bert"), "soft"), tmp_path / "soft", **FAST)
    model = alignattn.patch(tiny_model("bert"), variant, gradient_scope="basis", alignment_weight=10)
    trainer = train(model, tmp_path / "basis", **FAST)
    for name, other in (("loss", "task_loss"), ("grad_norm", "grad_norm"), ("learning_rate", "learning_rate")):
        assert logged(soft, name) == logged(trainer, other)
    # A checkpoint has the basis unfolded; at the end it is folded in, which keeps the function.
    raw, expected = weights_of(tmp_path / "basis" / "checkpoint-4"), soft.model.state_dict()
    assert all(torch.equal(raw[name], values) for name, values in expected.items())
    assert raw["alignattn.alignments.8.generator"].abs().max() > 0.05
    moved = {name for name, values in expected.items() if not torch.equal(values, model.state_dict()[name])}
    assert {name.split(".self.")[-1] for name in moved} == {
        f"{role}.{part}" for role in ("query", "key") for part in ("weight", "bias")
    }
    batch = {name: values for name, values in tiny_batch(seed=5).items() if name != "labels"}
    with torch.no_grad():
        logits = [part.eval()(**batch).logits for part in (soft.model, model)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)
    assert 1 < logged(trainer, "basis_condition")[-1] <= 10 * (1 + 1e-9)


def test_a_run_resumes_bitwise_from_a_checkpoint(tmp_path):
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        model = alignattn.patch(tiny_model("bert"), "aa-sliced", gradient_scope="basis")
        trainer = train(model, tmp_path, resume=resume, **FAST)
        ends.append((model.state_dict(), weights_of(tmp_path / "checkpoint-4"), logged(trainer, "basis_condition")))
    for states in zip(*(end[:2] for end in ends), strict=True):
        assert all(torch.equal(states[0][name], values) for name, values in states[1].items())
    assert ends[0][2] == ends[1][2]


def test_a_basis_that_cannot_be_folded_is_refused_before_training(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "aa-ot", gradient_scope="basis")
    layers = model.bert.encoder.layer
    layers[1].attention.self.query.weight = layers[0].attention.self.query.weight
    with pytest.raises(AlignAttnError, match="share their weights"):
        train(model, tmp_path)
