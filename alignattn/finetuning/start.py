"""A finished run that is the start of another: whether it can be, which one it was, told by its content."""

from pathlib import Path

from alignattn.attention.config import AttentionConfig
from alignattn.finetuning.data_files import is_run_folder, model_digest
from alignattn.finetuning.model_options import ModelOptions
from alignattn.finetuning.results import StartResult, read_result
from alignattn.finetuning.run_files import CONFIG_FILE
from alignattn.finetuning.run_folder import check_finished
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.publishing import publishable

SLOT_NAMES = ("score", "normalizer", "value")
"""Of what a model computes attention by."""


def check_start(arguments: ModelOptions) -> None:
    """Refuse a run as a model that has not finished, that holds other weights than it is to, and several seeds."""
    folder, asked = Path(arguments.model), arguments.model_sha256
    if is_run_folder(folder) or any(folder.glob(f"seed-*/{CONFIG_FILE}")):
        check_finished(folder, "--model")
    if asked is not None and (not is_run_folder(folder) or model_digest(folder) != asked):
        raise AlignAttnError(
            f"--model {folder} is no run that --model_sha256 {asked} is of: give the one that is meant"
        )


def check_attention(arguments: ModelOptions, theirs: AttentionConfig) -> None:
    """Refuse another attention function than that which the weights of a model were trained with.

    Args:
        arguments: the options of the run.
        theirs: of the model that it starts from.
    """
    mine = arguments.attention_config
    if mine.function_fields() == theirs.function_fields():
        return
    wanted = [f"--{slot} {getattr(theirs, slot)}" for slot in theirs.filled_slots if slot in SLOT_NAMES]
    for slot in SLOT_NAMES:
        options = getattr(theirs, f"{slot}_options")
        if options:
            wanted.append(f"--{slot}_options " + " ".join(f"{option}={value}" for option, value in options.items()))
    if theirs.layers is not None:
        wanted.append(f"--layers {' '.join(map(str, theirs.layers))}")
    raise AlignAttnError(
        f"{arguments.model!r} was saved with an attention of its own ({theirs.describe_slots()}), and this run has "
        f"another: give {' '.join(wanted)}, with whatever alignment"
    )


def start_of(name: str) -> StartResult | None:
    """Return what the run was that a run starts from; None where its model is no run.

    Args:
        name: of the model, as it was given.
    """
    folder = Path(name)
    result = read_result(folder) if is_run_folder(folder) else None
    if result is None:
        return None
    return StartResult(
        run=publishable(name),
        task=result.task,
        attention=result.attention,
        seed=result.seed,
        sha256=model_digest(folder),
    )
