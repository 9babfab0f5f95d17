"""What a run shows while it trains: one bar in a terminal, short lines elsewhere."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alignattn.finetuning.results import score_text
from alignattn.utils.progress import in_terminal, terminal_bar

LOSSES = ("loss", "task_loss", "align_loss")
"""What of a log is shown."""

EVALUATION = "eval_"
NOT_SCORES = ("_runtime", "_per_second", "_preparation_time")
"""How transformers' names of metrics begin, and how those end that tell of the evaluation itself."""


class Progress(TrainerCallback):
    """Shows how far a training is, its present losses and its evaluations, from the main process.

    Args:
        in_a_bar: one bar on standard error, and a line above it for each evaluation; otherwise a line on standard
            output for each log and each evaluation.
    """

    def __init__(self, *, in_a_bar: bool) -> None:
        self.in_a_bar = in_a_bar
        self.bar: tqdm | None = None
        self.evaluated = 0

    @classmethod
    def suiting(cls, disable_tqdm: bool | None) -> "Progress":
        """Return the one that suits where standard error goes, unless the option of a run says otherwise."""
        return cls(in_a_bar=in_terminal() if disable_tqdm is None else not disable_tqdm)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the bar, of a resumed run from where it is."""
        if self.in_a_bar and state.is_world_process_zero:
            self.bar = terminal_bar("train", state.max_steps, "step", initial=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count the step."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the batch in the bar's name."""
        if self.bar is not None:
            self.evaluated += 1
            self.bar.set_description(f"evaluate, batch {self.evaluated}")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Go back to training."""
        self.evaluated = 0
        if self.bar is not None:
            self.bar.set_description("train")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the losses, or what an evaluation found."""
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
        if self.bar is None:
            print(line, flush=True)
        else:
            self.bar.write(line, file=sys.stderr)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the bar as it is at last."""
        if self.bar is not None:
            self.bar.close()
        self.bar = None
