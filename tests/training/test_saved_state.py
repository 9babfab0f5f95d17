"""The state of every callback of this package is restored from a checkpoint."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from alignattn.training.callbacks import EarlyStopping, JointBest, LossMeter


def test_the_mean_of_losses_in_half_precision_is_that_in_single_precision():
    loss, meter = torch.tensor(0.7, dtype=torch.bfloat16), LossMeter()
    for _ in range(1000):
        meter.add(loss, {"task_loss": loss})
    meter.run_steps = meter.interval_steps = 1000
    assert meter.mean_run_loss() == pytest.approx(float(loss), rel=1e-4)
    assert meter.take_interval()["task_loss"] == pytest.approx(float(loss), rel=1e-4)


def measured_loss():
    meter = LossMeter()
    meter.add(torch.ones(()), {"task_loss": torch.ones(())})
    return meter


def measured_best():
    best = JointBest(2, {"eval_loss": False})
    best.on_evaluate(None, TrainerState(), TrainerControl(), {"eval_loss": 1.0})
    return best


def test_an_undefined_metric_is_never_the_best():
    best = JointBest(2, {"eval_loss": False, "eval_f1": True})
    found = []
    for loss, f1 in ((1.0, float("nan")), (0.9, 0.5), (float("nan"), 0.6), (0.8, 0.6)):
        best.on_evaluate(None, TrainerState(), TrainerControl(), {"eval_loss": loss, "eval_f1": f1})
        found.append((best.is_best, best.early_stopping_patience_counter))
    assert found == [(False, 0), (True, 0), (False, 0), (True, 0)]
    assert best.best == {"eval_loss": 0.8, "eval_f1": 0.6}
    best.on_evaluate(None, TrainerState(), TrainerControl(), dict.fromkeys(best.metrics, float("nan")))
    assert best.early_stopping_patience_counter == 1


@pytest.mark.parametrize("make", [measured_loss, measured_best, lambda: EarlyStopping(2)])
def test_a_resumed_callback_does_not_change_the_state_of_the_checkpoint(make, tmp_path):
    """The Trainer writes that state again at the end of a training that saved nothing since."""
    callback = make()
    state = TrainerState(global_step=3, stateful_callbacks={type(callback).__name__: callback.state()})
    kept = deepcopy(state.stateful_callbacks)
    callback.on_train_begin(SimpleNamespace(world_size=1), state, TrainerControl())
    for value in vars(callback).values():
        if isinstance(value, dict):
            value |= dict.fromkeys(value, torch.zeros(()))
    assert state.stateful_callbacks == kept
    state.save_to_json(str(tmp_path / "trainer_state.json"))
