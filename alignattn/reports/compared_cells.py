"""Comparison of the cells of a table with the baseline, and its significance."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from alignattn.evaluation.statistics.comparison import Comparison, compare, compare_early, compare_unpaired, correct
from alignattn.evaluation.statistics.paired_tests import PairedScores, UnpairedScores
from alignattn.reports.cells import Cell
from alignattn.reports.result_reader import UNREADABLE
from alignattn.utils.errors import one_line

ONE_OF_ALL_SEEDS = "an ensemble is one model of all seeds"
"""Reason for comparing an ensemble without paired seeds."""


def compare_cells(cells: Sequence[Cell], named: int = 0) -> tuple[list[Cell], list[str]]:
    """Return the cells with comparisons, corrected for their number, and the reasons for missing ones.

    The comparisons that were named before the runs were made form one family, all others another. If any were named,
    unfinished comparisons are not tested, and the correction is for all planned comparisons.

    Args:
        cells: the cells, row by row; a cell's baseline is the cell at the same place of the baseline's row.
        named: number of comparisons that were named before the runs were made.
    """
    rows = {label: list(row) for label, row in groupby(cells, lambda cell: cell.row)}
    width = len(next(iter(rows.values())))
    baselines = [
        rows[cell.baseline][place % width] if cell.baseline in rows else None for place, cell in enumerate(cells)
    ]
    pairs = list(zip(cells, baselines, strict=True))
    family_sizes = Counter(cell.is_primary for cell, baseline in pairs if baseline is not None)
    if named:
        family_sizes[True] = named
    comparisons: list[Comparison | None] = []
    problems = []
    for cell, baseline in pairs:
        comparison = None
        try:
            if baseline is not None:
                is_early = named > 0 and not _is_complete(cell, baseline)
                comparison = _compare(cell, baseline, family_sizes[cell.is_primary], is_early=is_early)
        except UNREADABLE as error:
            problems.append(f"{cell.row}, {cell.column}, is not compared: {one_line(error)}")
        comparisons.append(comparison)
    families = [
        correct(
            [one if cell.is_primary is own else None for cell, one in zip(cells, comparisons, strict=True)],
            family_sizes[own] if named else None,
        )
        for own in (True, False)
    ]
    corrected = [first or second for first, second in zip(*families, strict=True)]
    return [replace(cell, comparison=one) for cell, one in zip(cells, corrected, strict=True)], problems


def _compare(cell: Cell, baseline: Cell, family_size: int, *, is_early: bool) -> Comparison | None:
    """Compare over the seeds that both have finished, or over examples if they plan no common seed.

    Returns None if there is nothing to compare, or if the same runs fill both.
    """
    if cell.is_ensemble:
        return None if is_early else _compare_ensemble(cell, baseline)
    if not cell.values or not baseline.values:
        return None
    read = (lambda: None) if cell.samples_by_seed else partial(_unpaired_scores, cell, baseline)
    if not cell.runs.keys() & baseline.runs.keys():
        return compare_unpaired(cell.numbers, baseline.numbers, read)
    seeds = _common_seeds(cell, baseline)
    own, plain = ([run.digest for run in one.runs.values()] for one in (cell, baseline))
    if not seeds or own == plain:
        return None
    measured, compared = ([one.values[seed] for seed in seeds] for one in (cell, baseline))
    if is_early:
        return compare_early(measured, compared, planned=min(cell.planned, baseline.planned))
    if repeated := [one.row for one in (cell, baseline) if one.repeats_one_run]:
        reason = f"all seeds of {' and of '.join(repeated)} predict the same"
        return compare_unpaired(cell.numbers, baseline.numbers, read, reason=reason)
    scores = None if cell.samples_by_seed else partial(_paired_scores, cell, baseline, seeds)
    rows = cell.share_rows if cell.share_rows == baseline.share_rows else None
    return compare(measured, compared, scores, family_size=family_size, rows=rows)


def _common_seeds(cell: Cell, baseline: Cell) -> list[int]:
    return [seed for seed in baseline.values if seed in cell.values]


def _is_complete(cell: Cell, baseline: Cell) -> bool:
    """Whether all runs of a comparison are finished."""
    if cell.is_ensemble:
        return len(cell.finished) == cell.planned and cell.runs.keys() & baseline.runs.keys() <= baseline.values.keys()
    return len(_common_seeds(cell, baseline)) == min(cell.planned, baseline.planned)


def _compare_ensemble(cell: Cell, baseline: Cell) -> Comparison | None:
    """Compare one ensemble of all seeds with the baseline's runs of these seeds over their common examples."""
    values = {seed: value for seed, value in baseline.values.items() if seed in cell.runs}
    if not cell.values or not values:
        return None

    def scores() -> UnpairedScores | None:
        whole = cell.ensemble_scores()
        each = [baseline.runs[seed].examples(baseline.path) for seed in values]
        known = [one for one in each if one is not None]
        return ([whole], known) if whole is not None and len(known) == len(each) else None

    return compare_unpaired(cell.numbers, list(values.values()), scores, reason=ONE_OF_ALL_SEEDS)


def _paired_scores(cell: Cell, baseline: Cell, seeds: Sequence[int]) -> PairedScores | None:
    pairs = []
    for seed in seeds:
        measured, compared = (one.runs[seed].examples(one.path) for one in (cell, baseline))
        if measured is None or compared is None:
            return None
        pairs.append((measured, compared))
    return pairs


def _unpaired_scores(cell: Cell, baseline: Cell) -> UnpairedScores | None:
    systems = []
    for one in (cell, baseline):
        scores = [one.runs[seed].examples(one.path) for seed in one.values]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        systems.append(known)
    return systems[0], systems[1]
