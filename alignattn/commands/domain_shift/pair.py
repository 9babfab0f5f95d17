"""Two tasks with the same labels: one to train on, another to test the shift."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from alignattn.tasks import TASKS, LabelledTask, Task, get_task, is_definition, plain_name
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_yaml

PAIRS_FILE = Path(__file__).with_name("pairs.yaml")


@cache
def matching_pairs() -> Mapping[str, str]:
    """Return the pairs whose labels have different names and the same meaning, with the reason."""
    return dict(read_yaml(PAIRS_FILE))


def parse_pair(pair: str) -> tuple[LabelledTask, LabelledTask]:
    """Return the in-domain and the out-of-domain task of a pair such as `snli-mnli`; names as for `get_task`.

    Raises:
        AlignAttnError: if these are not two different tasks of one type and with the same labels.
    """
    first, second = map(get_task, names_of_pair(pair))
    return _checked_pair(pair, first, second)


def names_of_pair(pair: str) -> tuple[str, str]:
    """Return the two names of a pair, each of a built-in task or of a file that defines one."""
    words = pair.split("-")
    # A name may contain a hyphen, as in sst-2-mrpc: try each hyphen as the separator.
    for cut in range(1, len(words)):
        first, second = plain_name("-".join(words[:cut])), plain_name("-".join(words[cut:]))
        if all(is_definition(name) or name in TASKS for name in (first, second)):
            return first, second
    raise AlignAttnError(
        f"--pair {pair!r} must be two tasks joined by a hyphen, such as snli-mnli: choose from {', '.join(TASKS)}"
    )


def _checked_pair(pair: str, first: Task, second: Task) -> tuple[LabelledTask, LabelledTask]:
    if not (isinstance(first, LabelledTask) and isinstance(second, LabelledTask) and first.labels and second.labels):
        raise AlignAttnError(
            f"--pair {pair}: calibration needs one class per row, which {first.name} or {second.name} lacks: "
            "choose other tasks"
        )
    is_matching = first.labels == second.labels or (
        f"{first.name}-{second.name}" in matching_pairs() and len(first.labels) == len(second.labels)
    )
    if type(first) is not type(second) or not is_matching:
        described = " and ".join(f"{task.name} has {', '.join(task.labels)}" for task in (first, second))
        raise AlignAttnError(f"--pair {pair}: the labels differ ({described}): choose two tasks with the same labels")
    if first == second:
        raise AlignAttnError(f"--pair {pair} needs two different tasks")
    return first, second
