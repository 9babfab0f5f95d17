"""What stands above and below a table: what was measured, what its marks mean, what its models saw before."""

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from alignattn.commands.reproduce.cell import NOT_APPLICABLE, Cell
from alignattn.commands.reproduce.experiment import MODEL_OPTION, SEED_OPTION
from alignattn.commands.reproduce.table import Table
from alignattn.evaluation.statistics.comparison import SIGNIFICANCE_LEVEL
from alignattn.evaluation.statistics.comparison_words import DETECTABLE, NOTHING, ONE_ANSWER_MARK, WORSE_MARK
from alignattn.models.packaged import seen_before
from alignattn.utils.errors import listing
from alignattn.utils.publishing import short_path

if TYPE_CHECKING:
    from alignattn.commands.reproduce.result import TableResult


def legend_of(table: "TableResult", better: str, published: str) -> list[str]:
    """Return sentences that explain the marks that the table bears.

    Args:
        table: that they stand below.
        better: how a difference for the better is marked, such as "Bold".
        published: how a published number is told from a measured one, such as "In brackets".
    """
    verdicts = {cell.verdict for cell in table.cells}
    counts = sorted({len(cell.numbers) for cell in table.cells if cell.numbers and not cell.row.ensemble})
    lines = []
    if counts and counts[-1] > 1:
        number = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[0])
        lines.append(f"Mean ± standard deviation (of a sample, n − 1) over {number} seeds.")
    if table.has_uneven_seeds:
        lines.append("Means of a column may be over other seeds than each other: their paired differences are not.")
    if table.published_source is not None:
        lines.append(f"{published}: published numbers, of the model and data named above, not of those measured here.")
    family = "its family" if table.primary else "this table"
    survives = f"the paired difference survives correction for all comparisons of {family} (p < {SIGNIFICANCE_LEVEL})"
    if table.primary:
        lines += _of_families(table)
    or_other = ", or than the row that its difference is to" if any(cell.row.against for cell in table.compared) else ""
    if "better" in verdicts:
        lines.append(f"{better}: better than soft{or_other}, and {survives}.")
    elif table.compared:
        lines.append(f"No number is better than that of soft{or_other} such that {survives}.")
    if "worse" in verdicts:
        lines.append(f"{WORSE_MARK}: worse than soft{or_other}, and {survives}.")
    if any(cell.is_one_answer for cell in table.cells):
        lines.append(f"{ONE_ANSWER_MARK}: of a model that predicts the same for every row, and tells nothing apart.")
    if any(cell.comparison is not None and cell.comparison.detectable for cell in table.cells):
        lines.append(DETECTABLE)
    tests = [cell.comparison.test for cell in table.cells if cell.comparison is not None]
    if verdicts & {"better", "worse"} and any(" examples" in test for test in tests):
        lines.append("A test over examples holds for the models of these seeds, and says nothing of other seeds.")
    if any(cell.numbers and cell.state != "done" for cell in table.cells):
        lines.append("“2 of 3” and the like: over those runs that are finished.")
    unfit = dict.fromkeys(cell.reason for cell in table.cells if cell.state == "unfit")
    lines += [f"{NOT_APPLICABLE}: {reason}." for reason in unfit]
    if any(cell.state == "missing" and not cell.numbers for cell in table.cells):
        lines.append(f"{NOTHING}: not measured yet.")
    return lines


def _of_families(table: "TableResult") -> list[str]:
    """Which comparisons were named before the runs were made, and what holds of others and of unfinished ones."""
    others = len(table.compared) - len(table.primary)
    named = dict.fromkeys(f"{cell.row.label} on {cell.heading}" for cell in table.primary)
    lines = [
        f"Primary, named before the runs were made: {listing(list(named))}, of a family of {table.named} comparisons; "
        f"the other {others} are exploratory, and another family."
    ]
    if any(cell.comparison is not None and cell.comparison.is_early for cell in table.compared):
        lines.append(
            "Where not all runs are there yet nothing is tested: what is looked at until it is significant is so in "
            "the end."
        )
    return lines


def contamination(table: Table) -> list[str]:
    """Return what is to be known of models that saw rows of the table's tasks before."""
    # Of a task, or of a pair of them.
    tasks = [task for column in table.columns for task in (column.name, *column.name.split("-"))]
    return seen_before(map(table.model_of, table.rows), tasks)


def measured_source(table: Table, cells: Sequence[Cell], done: Set[str]) -> str:
    """Return of what the measured numbers are: models, seeds, options.

    Args:
        table: the table.
        cells: its cells.
        done: digests of the runs that are finished.
    """
    models = dict.fromkeys(table.model_of(row) for row in table.rows)
    seeds: dict[Any, bool] = {}
    for experiment in (one for cell in cells for one in cell.experiments):
        if (seed := experiment.all_options.get(SEED_OPTION)) is not None:
            seeds[seed] = seeds.get(seed, False) or experiment.digest in done
    finished = [str(seed) for seed, is_done in seeds.items() if is_done]
    parts = [" and ".join(short_path(model) for model in models)]
    if seeds:
        of_all = f" of {len(seeds)}" if len(finished) < len(seeds) else ""
        parts.append(f"seeds {', '.join(finished) or 'none'}{of_all}")
    given = {name: value for name, value in table.given.items() if name != MODEL_OPTION}
    parts += [f"with {_listed(given)}"] if given else []
    return "; ".join(parts)


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in given.items()
    )
