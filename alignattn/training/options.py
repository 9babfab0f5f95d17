"""The training options of an alignment loss; torch is not imported, because `--help` loads them."""

from dataclasses import dataclass

from alignattn.utils.options import Options, option

ALIGNMENT_LEARNING_RATE = 1e-3
"""Learning rate of adversaries and navigators, new networks that would stay at chance at a pretrained model's rate."""

NAMES_AN_ALIGNMENT = ("attention", "alignment")
"""Options of `finetune` that name an alignment; what only an alignment reads needs one of them."""

L2_HELP = "L2 penalty in the loss, like Adam's weight decay (Kingma & Ba 2015)."


@dataclass(frozen=True, kw_only=True)
class AlignmentTrainingOptions(Options):
    """The options that `AlignmentArguments` adds to a trainer's, in addition to those of the training methods."""

    heading = "alignment"

    alignment_learning_rate: float = option(
        ALIGNMENT_LEARNING_RATE, "Learning rate of the alignment's networks.", above=0, requires=NAMES_AN_ALIGNMENT
    )
    slot_learning_rate: float | None = option(None, "Learning rate of slots (default: the model's).", above=0)
    alignment_warmup_ratio: float = option(
        0.0, "Share of steps over which λ rises (default: 0).", low=0, high=1, requires=NAMES_AN_ALIGNMENT
    )
    l2_penalty: float = option(0.0, L2_HELP, low=0, group="training", rare=True)
