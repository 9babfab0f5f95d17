"""`--balance`: queries and keys of a run's model balanced before, while or after it trains."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alignattn.finetuning.rows import input_batches
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_options import RANDOM_BASIS, TrainingOptions
from alignattn.patching.balance import BalanceReport, balance, balanced_parameters
from alignattn.tasks import Task
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.processors import processor_for
from alignattn.utils.errors import AlignAttnError

MOMENT_ROWS, HELD_BACK_ROWS = 256, 64
"""Of the training rows: the first give the moments, on the next the distances and the change are measured."""
HELD_BACK_SHARE = 5
"""Of few rows one in so many is held back."""
BATCH_ROWS = 16


class Balancing(TrainerCallback):
    """Balances a model in training, before the first step and, if asked to, after each epoch.

    Training is what it would be otherwise: nothing is drawn at random, and the mode of the model is restored. What the
    optimizer knows of the parameters is dropped with the basis that it was of.

    Args:
        run: balances a model, and tells.
        every_epoch: whether to do it after each epoch.
    """

    def __init__(self, run: Callable[[nn.Module, TrainerState], None], *, every_epoch: bool) -> None:
        self.run = run
        self.every_epoch = every_epoch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Balance what training starts from; a resumed run did so before."""
        if state.global_step == 0:
            self.run(kwargs["model"], state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Balance what an epoch has made."""
        if self.every_epoch:
            self.run(kwargs["model"], state)
            for parameter in balanced_parameters(kwargs["model"]):
                kwargs["optimizer"].state.pop(parameter, None)


def balance_at(
    options: TrainingOptions, trainer: TaskTrainer, task: Task, train: EncodedSplit, processor: Any
) -> Callable[[], None]:
    """Let a trainer balance its model when the options say; return what is to be called when it has trained.

    Args:
        options: of the training, which name the time and the form.
        trainer: of the run.
        task: of the rows.
        train: rows to take moments of.
        processor: of the model.
    """
    time = options.balance
    if time is None:
        return lambda: None
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise AlignAttnError(
            f"--balance {time} changes weights in place, which DeepSpeed and FSDP keep elsewhere: leave it out, and "
            "balance the finished model with `alignattn balance`"
        )
    moments, measured = split_rows(len(train.encoded), MOMENT_ROWS, HELD_BACK_ROWS)

    is_told = processor_for(task).is_generative

    def run(model: nn.Module, state: TrainerState) -> None:
        report = balance(
            model,
            input_batches(task, train, processor, moments, BATCH_ROWS, is_told=is_told),
            held_back=input_batches(task, train, processor, measured, BATCH_ROWS, is_told=is_told),
            centre=options.balance_centre,
            random_seed=trainer.args.seed if options.balance_basis == RANDOM_BASIS else None,
        )
        state.log_history.append(_logged(report) | {"epoch": state.epoch or 0.0, "step": state.global_step})
        if trainer.is_world_process_zero():
            means = report.means()
            print(
                f"balanced after step {state.global_step} by {len(moments)} training rows: query-key distance "
                f"{means['before']:.3f} to {means['after']:.3f} (floor {means['floor']:.3f}), largest change of an "
                f"output {report.largest_change:.2g}"
            )

    def finish() -> None:
        assert trainer.model is not None
        run(trainer.model, trainer.state)

    if time == "end":
        return finish
    # Before all others: what they measure is what training starts from.
    trainer.callback_handler.callbacks.insert(0, Balancing(run, every_epoch=time == "epoch"))
    return lambda: None


def _logged(report: BalanceReport) -> dict[str, float]:
    changed = {"largest_change": report.largest_change, "spread": report.spread}
    return {f"balance_{name}": value for name, value in (report.means() | changed).items()}


def split_rows(count: int, moments: int, held_back: int) -> tuple[range, range]:
    """Return the numbers of the rows that give moments, the first, and of those after them that are held back.

    Args:
        count: rows that there are; a single one is in both.
        moments: most that give moments.
        held_back: most that are held back, and most of a fifth of all.
    """
    held_back = min(held_back, max(1, count // HELD_BACK_SHARE))
    first = range(min(moments, max(1, count - held_back)))
    return first, range(len(first), len(first) + held_back) if count > 1 else first
