"""Averages of weights against averages by hand, and their bitwise resumption."""

from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_model
from test_trainer import TinyRows, arguments, train
from transformers import TrainerCallback

import alignattn
from alignattn.training.methods.weight_averaging import AVERAGE_FILE, WeightAveraging
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError


class Noting(TrainerCallback):
    """Records the weights after each step."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})


def exponential(weights, decay):
    average = weights[0]
    for count, one in enumerate(weights[1:], start=1):
        left = min(decay, (1 + count) / (10 + count))
        average = left * average + (1 - left) * one
    return average


def plain_mean(weights, start):
    later = [one for step, one in enumerate(weights, start=1) if step > start * len(weights)]
    return sum(later) / len(later)


@pytest.mark.parametrize(
    ("kind", "by_hand"), [("ema", lambda w: exponential(w, 0.999)), ("swa", lambda w: sum(w) / len(w))]
)
def test_the_average_of_weights_in_half_precision_keeps_small_steps(kind, by_hand, tmp_path):
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    options = SimpleNamespace(weight_averaging=kind, ema_decay=0.999, swa_start=0.0)
    averaging, weights = WeightAveraging(options, model), []
    for step in range(1, 601):
        with torch.no_grad():
            model.weight.fill_(1 + step / 600)
        averaging.after_step(model, step, 600)
        weights.append(model.weight.detach().double())
        if step == 300:
            averaging.save(tmp_path)
            averaging = WeightAveraging(options, model)
            averaging.load(tmp_path, model)
    averaging.after_training(model)
    torch.testing.assert_close(model.weight.double(), by_hand(weights), rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("kind", "by_hand"), [("ema", lambda w: exponential(w, 0.5)), ("swa", lambda w: plain_mean(w, 0.25))]
)
def test_running_statistics_of_batch_normalization_are_averaged_with_the_weights(kind, by_hand, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    # A constant of a model; its mean over steps would be NaN.
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    options = SimpleNamespace(weight_averaging=kind, ema_decay=0.5, swa_start=0.25)
    averaging, seen, generator = WeightAveraging(options, model), [], torch.Generator().manual_seed(0)
    for step in range(1, 9):
        model(torch.randn(6, 2, generator=generator) * step)
        averaging.after_step(model, step, 8)
        seen.append({name: getattr(model[1], name).clone().double() for name in ("running_mean", "running_var")})
        if step == 4:
            averaging.save(tmp_path)
            averaging = WeightAveraging(options, model)
            averaging.load(tmp_path, model)
    averaging.after_training(model)
    for name, last in seen[-1].items():
        averaged = getattr(model[1], name).double()
        torch.testing.assert_close(averaged, by_hand([one[name] for one in seen]), rtol=1e-5, atol=1e-7)
        assert not torch.allclose(averaged, last)
    assert model[1].num_batches_tracked == len(seen)
    assert model.mask.isneginf().all()


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({"weight_averaging": "ema", "ema_decay": 0.25}, lambda weights: exponential(weights, 0.25)),
        ({"weight_averaging": "ema"}, lambda weights: exponential(weights, 0.999)),
        ({"weight_averaging": "swa", "swa_start": 0.3}, lambda weights: plain_mean(weights, 0.3)),
    ],
    ids=["ema", "ema-by-default", "swa"],
)
def test_the_trained_model_is_the_average_by_hand(options, by_hand, tmp_path):
    model, noting = alignattn.patch(tiny_model("bert"), "aa-ct"), Noting()
    args = arguments(tmp_path, max_steps=6, **options)
    trainer = AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(), callbacks=[noting])
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    saved = alignattn.from_pretrained(tmp_path / "saved", type(model))
    for name, parameter in model.named_parameters():
        weights = [step[name].double() for step in noting.steps]
        torch.testing.assert_close(parameter.double(), by_hand(weights), rtol=1e-5, atol=1e-7)
        assert torch.equal(saved.get_parameter(name), parameter)
    moved = [name for name, last in noting.steps[-1].items() if not torch.equal(last, model.get_parameter(name))]
    assert len(moved) > len(noting.steps[-1]) / 2


@pytest.mark.parametrize(
    "chosen", [{"weight_averaging": "ema"}, {"weight_averaging": "swa", "swa_start": 0.2}], ids=["ema", "swa"]
)
def test_a_resumed_average_is_bitwise_that_of_an_uninterrupted_run(chosen, tmp_path):
    options = {**chosen, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = train(alignattn.patch(tiny_model("bert"), "aa-ct"), tmp_path, **options)
    for step in (2, 4):
        resumed = train(
            alignattn.patch(tiny_model("bert"), "aa-ct"),
            tmp_path,
            resume=str(tmp_path / f"checkpoint-{step}"),
            **options,
        )
        for name, parameter in whole.model.named_parameters():
            assert torch.equal(parameter, resumed.model.get_parameter(name)), name


def test_a_training_that_ends_before_its_first_averaged_step_warns(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True

    args = arguments(tmp_path, weight_averaging="swa", swa_start=0.5, max_steps=4)
    trainer = AlignmentTrainer(model=tiny_model("bert"), args=args, train_dataset=TinyRows(), callbacks=[Stop()])
    with pytest.warns(UserWarning, match="ended before the first averaged step"):
        trainer.train()


def test_a_checkpoint_without_the_average_or_with_another_models_is_refused(tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    train(tiny_model("bert"), tmp_path, weight_averaging="ema", **options)
    checkpoint = tmp_path / "checkpoint-1"
    average = checkpoint / AVERAGE_FILE
    kept = average.read_bytes()
    average.unlink()
    with pytest.raises(AlignAttnError, match="has no averaged weights"):
        train(tiny_model("bert"), tmp_path, resume=str(checkpoint), weight_averaging="ema", **options)
    other = train(tiny_model("distilbert"), tmp_path / "other", weight_averaging="ema", **options)
    average.write_bytes((tmp_path / "other/checkpoint-1" / AVERAGE_FILE).read_bytes())
    assert other.methods[0].count == 2
    with pytest.raises(AlignAttnError, match="of another model"):
        train(tiny_model("bert"), tmp_path, resume=str(checkpoint), weight_averaging="ema", **options)
    average.write_bytes(kept)
    train(tiny_model("bert"), tmp_path, resume=str(checkpoint), weight_averaging="ema", **options)
