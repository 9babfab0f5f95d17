"""The result of a domain shift: its record in `results.json`, and its table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alignattn.evaluation.calibration import FIGURES, Estimate, EstimatesByState
from alignattn.evaluation.calibration.scaling import BOUND_NOTE, is_at_bound
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL
from alignattn.evaluation.statistics.seeds import over_seeds, with_deviation
from alignattn.finetuning.results import RESULTS_FILE
from alignattn.models.packaged import seen_before
from alignattn.reports.diagrams import percent_text
from alignattn.tasks.truncation import TruncatedRows
from alignattn.utils.files import write_json
from alignattn.utils.json_records import read_record
from alignattn.utils.text_tables import render_table

IN_DOMAIN, OUT_OF_DOMAIN = "in-domain", "out-of-domain"
HELD_OUT = "held-out"
"""The reported half of a development set."""
TABLE_FIGURES = ("accuracy", "expected_calibration_error", "area_under_risk_coverage")
HEADER = ["side", "task", "rows", "temperature", *(FIGURES[figure].heading for figure in TABLE_FIGURES)]


@dataclass(frozen=True)
class SideResult:
    """The result of one side.

    Attributes:
        task: name of the task.
        split: name of the task's development set.
        train_rows: number of training rows; 0 out of domain.
        development_rows: number of rows of the half that is not reported; in domain the temperature is fitted on it.
        held_out_rows: number of rows of the reported half.
        dropped_rows: number of unlabelled rows left out, by split.
        bad_rows: bad rows left out, each with its number and its problem, by split.
        derived_splits: origin of each split that the data set does not have, by name.
        figures: figures of the held-out rows before and after temperature scaling; shares are fractions.
        truncated_rows: truncated rows of the development set; None if there are none.
    """

    task: str
    split: str
    train_rows: int
    development_rows: int
    held_out_rows: int
    dropped_rows: Mapping[str, int]
    bad_rows: Mapping[str, list[dict[str, Any]]]
    derived_splits: Mapping[str, str]
    figures: EstimatesByState
    truncated_rows: TruncatedRows | None


@dataclass(frozen=True)
class DomainShiftResult:
    """The content of `results.json`.

    Attributes:
        pair: the two tasks, such as `snli-mnli`.
        model: the model as the user named it.
        attention: name of the preset.
        attention_config: fields of the `AttentionConfig`.
        seed: seed of the training.
        stratify: whether the halves are drawn class by class.
        halving_seed: seed of the halves.
        num_bins: number of bins of the calibration errors.
        temperature: temperature fitted on the in-domain development half.
        development_nll: mean negative log-likelihood on that half, in nats, before and after scaling.
        sides: results by side, `in-domain` and `out-of-domain`.
        versions: versions of Python and the packages.
        device: device of the evaluation; the run's folder has that of the training.
        constant_prediction: by side, the class predicted for every row of its development set, if there is one.
        shift_auroc: AUROC of confidence, in-domain against out-of-domain held-out rows, before and after scaling.
    """

    pair: str
    model: str
    attention: str
    attention_config: dict[str, Any]
    seed: int
    stratify: bool
    halving_seed: int
    num_bins: int
    temperature: float
    development_nll: Mapping[str, float]
    sides: Mapping[str, SideResult]
    versions: dict[str, str]
    device: str
    constant_prediction: Mapping[str, str]
    shift_auroc: Mapping[str, Estimate]


def read_domain_shift(folder: Path) -> DomainShiftResult | None:
    """Return the result in `folder`, or None if there is none yet; raises the errors of `read_record`."""
    return read_record(folder / RESULTS_FILE, DomainShiftResult, "evaluate")


def render_domain_shift(result: DomainShiftResult) -> str:
    """Return a table of accuracy and calibration error with intervals, and notes."""
    lines = [
        [
            *(name, side.task, str(side.held_out_rows), f"{result.temperature if state == 'after' else 1:.3f}"),
            *(percent_text(estimates[figure], 2) for figure in TABLE_FIGURES),
        ]
        for name, side in result.sides.items()
        for state, estimates in side.figures.items()
    ]
    bound = BOUND_NOTE if is_at_bound(result.temperature) else ""
    before, after = (result.development_nll[state] for state in ("before", "after"))
    caption = [
        f"In brackets {CONFIDENCE_LEVEL:.0%} bootstrap intervals over rows. ECE: {result.num_bins} bins;",
        "noise inflates it, and its intervals (basic bootstrap) correct for it, so they may lie below the value, and",
        "are too short on few rows.",
        *(_describe(name, side, result) for name, side in result.sides.items()),
        *(f"{name}: {answer} is predicted for every row" for name, answer in result.constant_prediction.items()),
        *(
            f"{_auroc_words(state)} {percent_text(estimate, 2)} % (50 % is uninformative)"
            for state, estimate in result.shift_auroc.items()
        ),
        f"temperature {result.temperature:.3f}{bound}: fitted on the development half of the in-domain task (NLL there "
        f"{before:.3f} before, {after:.3f} after)",
        *seen_before([result.model], (side.task for side in result.sides.values())),
    ]
    return "\n".join([render_table(HEADER, lines), "", *caption])


def write_seed_table(folder: Path, results: Sequence[DomainShiftResult]) -> str:
    """Write mean and standard deviation over the seeds to `results.json` in `folder`; return them as a table.

    The standard deviation is that of a sample (n - 1); for a single seed it is None.
    """
    first = results[0]
    temperature = over_seeds([result.temperature for result in results])
    sides: dict[str, dict[str, Any]] = {}
    lines = []
    for name, side in first.sides.items():
        figures = {
            state: {
                figure: over_seeds([result.sides[name].figures[state][figure].value for result in results])
                for figure in estimates
            }
            for state, estimates in side.figures.items()
        }
        sides[name] = asdict(side) | {"figures": figures}
        for state, spreads in figures.items():
            scaling = with_deviation(temperature, "{:.3f}") if state == "after" else "1.000"
            cells = [with_deviation(spreads[name], "{:.2f}", 100) for name in TABLE_FIGURES]
            lines.append([name, side.task, str(side.held_out_rows), scaling, *cells])
    aurocs = {state: over_seeds([result.shift_auroc[state].value for result in results]) for state in first.shift_auroc}
    content = {
        "pair": first.pair,
        "model": first.model,
        "attention": first.attention,
        "seeds": [result.seed for result in results],
        "temperature": temperature,
        "sides": sides,
        "shift_auroc": aurocs,
    }
    write_json(folder / RESULTS_FILE, content)
    caption = [
        f"mean ± standard deviation over {len(results)} seed(s)",
        *(f"{_auroc_words(state)} {with_deviation(spread, '{:.2f}', 100)} %" for state, spread in aurocs.items()),
        *seen_before([first.model], (side.task for side in first.sides.values())),
    ]
    return "\n".join([render_table(HEADER, lines), "", *caption])


def _auroc_words(state: str) -> str:
    return f"AUROC of the largest probability, in-domain against out-of-domain rows, {state} temperature scaling:"


def _describe(name: str, side: SideResult, result: DomainShiftResult) -> str:
    trained = f"trained on {side.train_rows} rows, " if name == IN_DOMAIN else ""
    how = "halved class by class" if result.stratify else "halved"
    dropped = sum(side.dropped_rows.values())
    notes = [
        *([f"{dropped} unlabelled rows left out"] if dropped else []),
        *(f"{len(bad)} bad rows of {split} left out, listed in {RESULTS_FILE}" for split, bad in side.bad_rows.items()),
        *(f"split {split} is {origin}" for split, origin in side.derived_splits.items()),
    ]
    return "; ".join(
        [
            f"{side.task}: {trained}split {side.split} {how} with seed {result.halving_seed} into "
            f"{side.development_rows} development and {side.held_out_rows} held-out rows; the report is on the "
            "latter",
            *notes,
        ]
    )
