"""Callbacks of a run: show progress, find its best checkpoint, measure the query-key distance, balance the model."""

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.attention.basis import cloud
from alignattn.attention.distance import equal_counts, sliced_wasserstein
from alignattn.finetuning.logs import DISTANCE_NAME
from alignattn.finetuning.options import TrainingOptions
from alignattn.finetuning.results import EVALUATION, NOT_SCORES, score_text
from alignattn.finetuning.rows import input_batches
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.patching import collect, is_patched
from alignattn.patching.balance import balance
from alignattn.tasks import Task
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.training.checkpoints import restore
from alignattn.utils.console import in_terminal, terminal_bar
from alignattn.utils.errors import AlignAttnError

LOSSES = ("loss", "task_loss", "align_loss")
"""Entries of a log that are shown."""

DISTANCE_ROWS = 64
"""Number of leading evaluation rows whose queries and keys are compared."""

MOMENT_ROWS, HELD_BACK_ROWS = 256, 64
"""Number of training rows for the moments, and of the rows after them for the distances and the change."""
HELD_BACK_SHARE = 5
"""With few rows, one row in this many is held back."""
BATCH_ROWS = 16


class Progress(TrainerCallback):
    """Shows the progress, the losses and the evaluations of a training, from the main process.

    In a terminal, it shows one bar on standard error and prints a line above it for each evaluation. Otherwise it
    prints a line on standard output for each log and each evaluation, with the elapsed and the remaining time.

    Args:
        disable_tqdm: whether to print lines instead of a bar; None = only if standard error is not a terminal.
    """

    def __init__(self, disable_tqdm: bool | None = None) -> None:
        self.in_a_bar = in_terminal() if disable_tqdm is None else not disable_tqdm
        self.bar: tqdm | None = None
        self.evaluated = self.first_step = 0
        self.start = time.perf_counter()

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock and draw the bar; for a resumed run, from its step."""
        self.start, self.first_step = time.perf_counter(), state.global_step
        if self.in_a_bar and state.is_world_process_zero:
            self.bar = terminal_bar("train", state.max_steps, "step", initial=state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count the step."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_prediction_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count the batch in the bar's name."""
        if self.bar is not None:
            self.evaluated += 1
            self.bar.set_description(f"evaluate, batch {self.evaluated}")

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Reset the bar to training."""
        self.evaluated = 0
        if self.bar is not None:
            self.bar.set_description("train")

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the losses, or the scores of an evaluation."""
        logs = logs or {}
        losses = ", ".join(f"{name} {logs[name]:.4g}" for name in LOSSES if name in logs)
        scores = ", ".join(
            f"{name.removeprefix(EVALUATION)} {score_text(name, value)}"
            for name, value in logs.items()
            if name.startswith(EVALUATION) and not name.endswith(NOT_SCORES)
        )
        if not state.is_world_process_zero or not (losses or scores):
            return
        if self.bar is not None and losses:
            self.bar.set_postfix_str(losses)
            return
        line = f"step {state.global_step} of {state.max_steps}: {losses or f'evaluation {scores}'}"
        if self.bar is not None:
            # The bar has the times.
            self.bar.write(line, file=sys.stderr)
            return
        seconds, done = time.perf_counter() - self.start, state.global_step - self.first_step
        left = seconds / max(1, done) * (state.max_steps - state.global_step)
        print(f"{line} ({tqdm.format_interval(seconds)}, {tqdm.format_interval(left)} left)", flush=True)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
        self.bar = None


class Runtime(TrainerCallback, ExportableState):
    """Measures the seconds of a training over all its processes; of an earlier one, those up to its checkpoint."""

    def __init__(self) -> None:
        self.earlier, self.start = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds until now."""
        return self.earlier + time.perf_counter() - self.start

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"args": {}, "attributes": {"earlier": self.seconds}}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock, from the seconds of the checkpoint or from 0."""
        self.start = time.perf_counter()
        restore(self, state, Runtime())


class BestBeside(TrainerCallback):
    """Points a resumed run to its best checkpoint, which lies beside the one it resumes from: the run may have moved.

    Args:
        checkpoint: the checkpoint that the run resumes from.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.folder = checkpoint.parent

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Replace the path that the checkpoint recorded, which may be that of another run now."""
        best = self.folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if best.is_dir():
            state.best_model_checkpoint = str(best)


class DistanceLog(TrainerCallback):
    """Logs the `query_key_distance` before the first step and with each logged loss.

    Training is unchanged: gradients are off, no random numbers are drawn, and the mode of the model is restored.

    Args:
        trainer: the trainer of the run; the callback adds itself to it.
        evaluation: the evaluation splits; the first rows of the first split are measured.
    """

    def __init__(self, trainer: TaskTrainer, evaluation: Mapping[str, EncodedSplit]) -> None:
        if not evaluation:
            raise AlignAttnError("--log_query_key_distance needs evaluation rows: give --validation_file")
        if trainer.model is None or not is_patched(trainer.model):
            raise AlignAttnError("--log_query_key_distance needs a model with attention heads: leave it out")
        split = next(iter(evaluation.values()))
        first = range(min(DISTANCE_ROWS, len(split.encoded)))
        # A generative model needs the labels in its forward.
        with_labels = trainer.task.is_generative
        batches = input_batches(trainer.task, split, split.tokenizer, first, DISTANCE_ROWS, with_labels=with_labels)
        self.batch = next(batches)
        # First in the list: callbacks that report the logs must see the entries that this one adds.
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Log the distance before training; a resumed run has already logged it."""
        if state.global_step == 0:
            state.log_history.append(self._measure(kwargs["model"]) | {"epoch": 0.0, "step": 0})

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the distance to the logged loss, for reporters and in the state."""
        if logs is not None and "loss" in logs:
            measured = self._measure(kwargs["model"])
            logs.update(measured)
            state.log_history[-1].update(measured)

    def _measure(self, model: PreTrainedModel) -> dict[str, float]:
        was_training = model.training
        try:
            return {DISTANCE_NAME: query_key_distance(model, self.batch)}
        finally:
            model.train(was_training)


def query_key_distance(model: PreTrainedModel, batch: dict[str, Tensor]) -> float:
    """Return the sliced Wasserstein distance between queries and keys, averaged over heads and layers.

    Args:
        model: a patched model; it is left in evaluation mode.
        batch: `input_ids`, `attention_mask` and so on, `[B, n]`.
    """
    with torch.no_grad(), collect(model.eval()) as seen:
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    by_layer = []
    for layer in seen.layers:
        if layer.query is not None and (keys := layer.shared_key) is not None:
            # The real tokens' queries and keys, `[H, N, d]`.
            query, key = equal_counts(cloud(layer.query, layer.mask), cloud(keys, layer.key_mask))
            by_layer.append(sliced_wasserstein(query[None], key[None]).mean())
    return float(torch.stack(by_layer).mean())


class Balancing(TrainerCallback):
    """Balances a model before the first step, and logs and prints the change.

    Nothing else in training changes: no random numbers are drawn, and the mode of the model is restored.

    Args:
        trainer: the trainer of the run; the callback adds itself to it.
        options: the training options.
        train: the training rows, for the moments and the held-back rows.
    """

    def __init__(self, trainer: TaskTrainer, options: TrainingOptions, train: EncodedSplit) -> None:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise AlignAttnError(
                "--balance changes weights in place, which DeepSpeed and FSDP do not support: leave it out, and "
                "balance the model with `alignattn balance` first"
            )
        self.trainer = trainer
        self.options = options
        splits = split_rows(trainer.task, train.rows, train.tokenizer, train.options, MOMENT_ROWS, HELD_BACK_ROWS)
        self.num_rows = len(splits[0].rows)
        self.batches = [
            partial(input_batches, trainer.task, split, split.tokenizer, range(len(split.encoded)), BATCH_ROWS)
            for split in splits
        ]
        # First in the list: what other callbacks measure must be the balanced model.
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Balance the model; a resumed run was balanced when it started."""
        if state.global_step > 0:
            return
        # A generative model needs the labels in its forward.
        with_labels = self.trainer.task.is_generative
        moments, held_back = (batches(with_labels=with_labels) for batches in self.batches)
        report = balance(kwargs["model"], moments, held_back=held_back, centre=self.options.balance_centre)
        means = report.means()
        logged = means | {"largest_change": report.largest_change, "spread": report.spread}
        place = {"epoch": 0.0, "step": 0}
        state.log_history.append({f"balance_{name}": value for name, value in logged.items()} | place)
        if self.trainer.is_world_process_zero():
            print(
                f"balanced after step 0 by {self.num_rows} training rows: query-key distance "
                f"{means['before']:.3f} to {means['after']:.3f} (floor {means['floor']:.3f}), largest change of an "
                f"output {report.largest_change:.2g}"
            )


def split_rows(
    task: Task, rows: Dataset, tokenizer: Any, options: TaskOptions, moments: int, held_back: int
) -> list[EncodedSplit]:
    """Return the first rows, which give the moments, and the held-back rows after them, each with all its windows.

    Args:
        task: the task of the rows.
        rows: the rows; a single row is in both.
        tokenizer: the model's tokenizer.
        options: the options of the encoding.
        moments: the maximum number of rows for the moments.
        held_back: the maximum number of held-back rows; at most a fifth of all rows, at least one, are held back.
    """
    held_back = min(held_back, max(1, len(rows) // HELD_BACK_SHARE))
    first = range(min(moments, max(1, len(rows) - held_back)))
    parts = [rows.select(first), rows.select(range(len(first), len(first) + held_back) if len(rows) > 1 else first)]
    return [EncodedSplit(part, task.encode(part, tokenizer, options), options, tokenizer) for part in parts]
