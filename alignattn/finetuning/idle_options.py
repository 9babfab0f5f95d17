"""Options that would do nothing beside the others: each is refused where it enters, before anything heavy is imported.

Left alone are those that hang on the machine and on how many processes there are (`ddp_backend`,
`torch_empty_cache_steps`), and those that a run may come to need when it is resumed (`ignore_data_skip`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.attention.config import BASIS
from alignattn.finetuning.training_options import PUSH_OPTIONS
from alignattn.models import MODELS
from alignattn.models.packaged import PACKAGED
from alignattn.tasks import GenerationTask, QuestionAnswering
from alignattn.tasks.task import BY_SEED
from alignattn.utils.compression import plain_suffix
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import options_of

if TYPE_CHECKING:
    from alignattn.finetuning.options import RunOptions

ALWAYS_DONE = ("do_train", "do_eval")
"""What a run does whether it is asked for or not."""

WITHOUT_WARMUP = frozenset({"constant", "reduce_lr_on_plateau", "greedy"})
WITHOUT_KWARGS = frozenset({"constant", "constant_with_warmup"})
"""Schedules of the learning rate that take none."""

WITHOUT_MOMENTS = frozenset({"sgd", "adagrad", "rmsprop", "adafactor"})
WITHOUT_ARGUMENTS = frozenset({"adamw_torch", "adamw_torch_fused", "adafactor"})
OF_TARGETS = ("galore", "apollo")
"""Optimizers, or what their names hold."""

NO_REPORT, EVERY_REPORT, TRACKIO = "none", "all", "trackio"

REPORTERS: Mapping[str, Sequence[str]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    **{name: (name,) for name in ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "codecarbon", "dvclive")},
    **{name: (name,) for name in ("dagshub", "swanlab", TRACKIO)},
}
"""The modules, any of which serves, that a value of `--report_to` needs."""


@dataclass(frozen=True)
class Rule:
    """When options do nothing.

    Attributes:
        names: of the options.
        holds: whether they do nothing beside the others.
        beside: what is the case then, for the message.
        instead: what else to do than leave them out.
    """

    names: Sequence[str]
    holds: Callable[["RunOptions"], bool]
    beside: str
    instead: str = ""


def _has_learned_slots(options: "RunOptions") -> bool:
    choices = options.attention.choices
    return any(choices[slot].is_learned for slot in choices.keys() - {"alignment"})


def _has_learned_alignment(options: "RunOptions") -> bool:
    alignment = options.attention.choices.get("alignment")
    return alignment is not None and (alignment.is_learned or options.attention.gradient_scope == BASIS)


def _is_local(options: "RunOptions") -> bool:
    model = options.model.model
    return model in PACKAGED or model in MODELS or Path(model).is_dir()


def _holds_no_text(options: "RunOptions") -> bool:
    files = filter(None, (options.data.train_file, options.data.validation_file))
    return all(plain_suffix(file) == ".parquet" for file in files)


def _reports(options: "RunOptions") -> set[str]:
    given = options.training.report_to
    return set(given if isinstance(given, tuple) else [given]) - {NO_REPORT, None}


def _chooses(options: "RunOptions") -> bool:
    """Whether a metric chooses a checkpoint, or the learning rate."""
    training = options.training
    return bool(
        training.metric_for_best_model
        or training.load_best_model_at_end
        or training.early_stopping_patience
        or training.save_strategy == "best"
        or training.lr_scheduler_type == "reduce_lr_on_plateau"
    )


def _always(options: "RunOptions") -> bool:
    return True


RULES = (
    Rule(
        (
            *("alignment_weight", "alignment_options", "gradient_scope", "head_reduction"),
            *("alignment_warmup_ratio", "alignment_learning_rate"),
        ),
        lambda options: options.attention.alignment is None,
        "without an alignment",
        "give one as well, as --attention aa-ct",
    ),
    Rule(
        ("alignment_learning_rate",),
        lambda options: not _has_learned_alignment(options),
        "beside an alignment that has no parameters of its own",
    ),
    Rule(
        ("balance_centre", "balance_basis"),
        lambda options: options.training.balance is None,
        "without --balance",
        "give it as well, as --balance start",
    ),
    Rule(
        ("slot_learning_rate",),
        lambda options: not _has_learned_slots(options),
        "beside scores, normalizers and values without parameters of their own",
        "give such a one, as --value qvi",
    ),
    Rule(
        ("doc_stride", "n_best_size", "max_answer_length"),
        lambda options: not isinstance(options.task, QuestionAnswering),
        "in a task other than question answering",
    ),
    Rule(
        ("num_beams",),
        lambda options: not isinstance(options.task, GenerationTask),
        "in a task that writes no sequences",
    ),
    Rule(
        ("take",),
        lambda options: options.data.max_train_samples is None and options.data.max_eval_samples is None,
        "where all rows are taken",
        "give --max_train_samples or --max_eval_samples",
    ),
    Rule(
        ("take",),
        lambda options: options.data.take == BY_SEED and options.data.max_train_samples is None,
        "where all training rows are taken",
        "give --max_train_samples",
    ),
    Rule(
        ("max_eval_samples", "laplace", "mc_dropout_passes"),
        lambda options: not options.data.has_evaluation_rows,
        "without evaluation rows",
        "give --validation_file or --validation_share",
    ),
    Rule(("encoding",), _holds_no_text, "with Parquet, which says its own"),
    Rule(("model_sha256",), lambda options: options.model.model in MODELS, "with a model that starts from nothing"),
    Rule(("model_revision",), _is_local, "with a model that is not read from the Hub"),
    Rule(("seed",), lambda options: options.training.seeds is not None, "beside --seeds"),
    Rule(
        ("num_train_epochs",),
        lambda options: options.training.max_steps > 0,
        "beside --max_steps, which takes its place",
        "give --max_steps -1",
    ),
    Rule(
        ("eval_steps",),
        lambda options: options.training.eval_strategy != "steps",
        "where steps do not say when to evaluate",
        "give --eval_strategy steps",
    ),
    Rule(
        ("eval_delay",),
        lambda options: options.training.eval_strategy == "no",
        "where nothing is evaluated on the way",
        "give --eval_strategy epoch",
    ),
    Rule(
        ("save_steps",),
        lambda options: options.training.save_strategy != "steps",
        "where steps do not say when to save",
        "give --save_strategy steps",
    ),
    Rule(
        ("save_total_limit", "save_only_model", "keep_checkpoints"),
        lambda options: options.training.save_strategy == "no",
        "beside --save_strategy no",
    ),
    Rule(
        ("logging_steps",),
        lambda options: (
            options.training.logging_strategy != "steps"
            and (options.training.eval_strategy != "steps" or options.training.eval_steps is not None)
        ),
        "where steps do not say when to log",
        "give --logging_strategy steps",
    ),
    Rule(
        ("warmup_steps",),
        lambda options: options.training.lr_scheduler_type in WITHOUT_WARMUP,
        "beside a --lr_scheduler_type that does not warm up",
        "give constant_with_warmup to that",
    ),
    Rule(
        ("lr_scheduler_kwargs",),
        lambda options: options.training.lr_scheduler_type in WITHOUT_KWARGS,
        "beside a --lr_scheduler_type that takes none",
    ),
    Rule(
        ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
        lambda options: not (options.training.activation_checkpointing or options.training.gradient_checkpointing),
        "without --activation_checkpointing true",
    ),
    Rule(
        ("liger_kernel_config",),
        lambda options: not options.training.use_liger_kernel,
        "without --use_liger_kernel true",
    ),
    Rule(("fsdp_config",), lambda options: not options.training.fsdp, "without --fsdp"),
    Rule(
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
        lambda options: options.training.optim in WITHOUT_MOMENTS,
        "beside an --optim that is no Adam",
    ),
    Rule(
        ("optim_args",),
        lambda options: options.training.optim in WITHOUT_ARGUMENTS,
        "beside an --optim that takes none",
    ),
    Rule(
        ("optim_target_modules",),
        lambda options: not any(name in options.training.optim for name in OF_TARGETS),
        "beside an --optim that takes all modules",
    ),
    Rule(
        (
            *("dataloader_persistent_workers", "dataloader_prefetch_factor"),
            *("dataloader_multiprocessing_context", "dataloader_in_order"),
        ),
        lambda options: options.training.dataloader_num_workers == 0,
        "without --dataloader_num_workers",
    ),
    Rule(
        ("freelb_step_size", "freelb_max_norm"),
        lambda options: options.training.freelb_steps is None,
        "without FreeLB",
        "give --freelb_steps 2",
    ),
    Rule(
        ("freelb_step_size",),
        lambda options: options.training.freelb_steps == 1,
        "beside --freelb_steps 1, which ascends nothing",
        "give --freelb_steps 2",
    ),
    Rule(
        ("ema_decay",),
        lambda options: options.training.weight_averaging != "ema",
        "where weights are not averaged by ema",
        "give --weight_averaging ema",
    ),
    Rule(
        ("swa_start",),
        lambda options: options.training.weight_averaging != "swa",
        "where weights are not averaged by swa",
        "give --weight_averaging swa",
    ),
    Rule(("greater_is_better",), lambda options: not _chooses(options), "where no metric chooses anything"),
    Rule(("run_name",), lambda options: not _reports(options), "without --report_to"),
    Rule(
        ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        lambda options: not _reports(options) & {TRACKIO, EVERY_REPORT},
        "without --report_to trackio",
    ),
    Rule(
        tuple(name for name in PUSH_OPTIONS if name != "push_to_hub"),
        lambda options: not options.training.push_to_hub,
        "without --push_to_hub",
    ),
    Rule(("use_cache",), _always, "in an encoder, which writes no text"),
    Rule(("include_for_metrics",), _always, "here: every task brings its own metrics"),
    Rule(("length_column_name",), _always, "here: lengths are counted"),
    Rule(("do_predict",), _always, "here: what is predicted is the evaluation rows"),
)


def idle_options(options: "RunOptions", given: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    """Yield the options that would do nothing, each with the rule that says why.

    Args:
        options: as resolved.
        given: the values that were given, by name; what is as by default counts as not given.
    """
    known = options_of(type(options))
    changed = {
        name for name, value in given.items() if value is not None and name in known and value != known[name].default
    }
    for rule in RULES:
        names = [name for name in rule.names if name in changed]
        if names and rule.holds(options):
            yield from ((name, rule) for name in names)


def check_use(options: "RunOptions", given: Mapping[str, Any]) -> None:
    """Refuse given options that would do nothing, or that need a package which is not there."""
    for name in ALWAYS_DONE:
        if given.get(name) is False:
            raise AlignAttnError(f"--{name} false: a run trains and evaluates, whatever is asked: leave it out")
    for name, rule in idle_options(options, given):
        instead = f", or {rule.instead}" if rule.instead else ""
        raise AlignAttnError(f"--{name} does nothing {rule.beside}: leave it out{instead}")
    for reporter in sorted(_reports(options) & REPORTERS.keys()):
        if not any(find_spec(module) for module in REPORTERS[reporter]):
            package = REPORTERS[reporter][0]
            raise AlignAttnError(f"--report_to {reporter} needs the package {package}: install it, or leave it out")
