"""`alignattn uncertainty`: measure whether a trained classifier is certain where it is right (PAvPU).

It makes passes with dropout over the evaluation rows, on their inputs and on noisy ones.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.run_folder import check_run_folder, read_finished_run
from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import REQUIRED, Count, InputDir, Options, OutputDir, Seed, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from alignattn.evaluation.calibration import PassScores
    from alignattn.evaluation.estimates import Estimate
    from alignattn.tasks import Task

UNCERTAINTY_FILE, PREDICTIONS_FILE = "uncertainty.json", "predictions.parquet"
ORIGINAL, NOISY = "original", "noisy"


@dataclass(frozen=True, kw_only=True)
class UncertaintyOptions(Options):
    """The options of `alignattn uncertainty`."""

    run: str = option(REQUIRED, "Run folder of a classifier.", metavar="DIR", place=check_run_folder)
    output_dir: OutputDir = option("uncertainty", f"Folder for {UNCERTAINTY_FILE}, {PREDICTIONS_FILE} and report.html.")
    passes: int = option(20, "Forward passes with dropout.", low=2, high=10_000)
    level: float = option(0.05, "p-value below which the two likeliest classes differ.", above=0, high=1)
    noise: float = option(1.0, "Input noise, relative to each feature's standard deviation; 0: none.", low=0)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all of the run's).")
    max_eval_samples: Count | None = option(None, "The first N rows of each split (default: all).")
    data_dir: InputDir | None = option(None, "Folder of Parquet files of rows (default: the run's).")
    batch_size: Count | None = option(None, "Batch size (default: the run's).")
    num_bins: Count = option(10, "Bins of the calibration error and of the diagrams.", high=1000)
    resamples: Count = option(1000, "Bootstrap resamples per interval.", high=100_000)
    seed: Seed = option(42, "Seed of dropout, noise and resamples.")


COMMAND = Command(
    "uncertainty",
    "measure whether a model is certain where it is right (PAvPU), on clean and on noisy inputs",
    UncertaintyOptions,
    run="alignattn.commands.uncertainty:uncertainty",
    results=TableResults(
        UNCERTAINTY_FILE,
        needs="finetune",
        withheld=("run", "seed", "data_dir"),
    ),
    examples=("alignattn uncertainty --run runs/mrpc --output_dir uncertainty",),
)


@dataclass(frozen=True)
class MeasuredInputs:
    """The measures of the passes over a split.

    Attributes:
        split: its name.
        inputs: `original` or `noisy`.
        labels: `[N]`.
        scores: the scores of the passes.
        estimates: the estimates by figure.
    """

    split: str
    inputs: str
    labels: "NDArray[np.int64]"
    scores: "PassScores"
    estimates: "Mapping[str, Estimate]"


def uncertainty(options: UncertaintyOptions) -> list[MeasuredInputs]:
    """Measure how certain a run's model is; print a table, and write `uncertainty.json`, predictions and a page.

    Returns:
        Each split on its inputs, and on noisy ones unless `--noise 0`.
    """
    from alignattn.finetuning.predictor import load_predictor
    from alignattn.finetuning.rows import encode_split, load_run_evaluation
    from alignattn.reports.pages import REPORT_FILE
    from alignattn.tasks.labels import UNLABELLED
    from alignattn.tasks.names import FIRST
    from alignattn.tasks.rows import max_samples
    from alignattn.training.methods.mc_dropout import can_drop
    from alignattn.utils.paths import check_free

    run, folder = read_finished_run(Path(options.run), "--run"), Path(options.output_dir)
    run.check_has_classes("`uncertainty`")
    evaluation = load_run_evaluation(run.options, options.data_dir).evaluation
    if not evaluation:
        raise AlignAttnError(f"--run {run.folder} has no evaluation rows: it was made without --validation_file")
    for name in options.split or ():
        if name not in evaluation:
            raise AlignAttnError(f"--split: there is no split {name!r}: choose among {', '.join(evaluation)}")
    splits = {
        name: max_samples(run.task, rows, options.max_eval_samples, FIRST)
        for name, rows in evaluation.items()
        if options.split is None or name in options.split
    }
    label_column: str = run.task.label_column  # type: ignore[attr-defined]
    for name, rows in splits.items():
        if UNLABELLED in rows[label_column][:]:
            raise AlignAttnError(
                f"--run {run.folder}: rows of {name} have answers that are none of the classes, and the figures need a "
                "class per row"
            )
    check_free(folder, [UNCERTAINTY_FILE, PREDICTIONS_FILE, REPORT_FILE])
    predictor = load_predictor(run)
    if not can_drop(predictor.model):
        raise AlignAttnError(
            f"--run {options.run}: {run.options.model.model} has no dropout, or only rates of 0, so all passes would "
            "be equal: give a run of another model"
        )
    encoded = {
        name: encode_split(run.task, rows, predictor.tokenizer, run.options.data) for name, rows in splits.items()
    }
    measured = [one for name, split in encoded.items() for one in _measured(predictor, name, split, options)]
    _report(run, measured, options)
    return measured


def _measured(predictor: Any, name: str, split: Any, options: UncertaintyOptions) -> Iterator[MeasuredInputs]:
    """Measure a split on its inputs, and on noisy ones if they are requested."""
    import numpy as np

    from alignattn.evaluation.calibration import PassScores, summarise_passes
    from alignattn.finetuning.predictor import Batching
    from alignattn.training.methods.mc_dropout import mc_dropout
    from alignattn.utils.console import counted

    task, model = predictor.task, predictor.model
    # The noise and the dropout of a row depend on its place, so rows keep their order.
    batching = Batching(
        options.batch_size or predictor.run.options.training.per_device_eval_batch_size, by_length=False
    )
    labels = np.asarray(split.rows[task.label_column][:], dtype=np.int64)
    for inputs in (ORIGINAL, NOISY) if options.noise else (ORIGINAL,):
        noise = None
        if inputs == NOISY:
            noise = InputNoise(model, task, amount=options.noise, seed=options.seed)
            with noise.measured():
                predictor.outputs(split, batching)
        passes: list[Any] = []
        with mc_dropout(model, options.seed, model.device):
            for _ in counted(range(options.passes), f"{name}, {inputs}", options.passes, "pass"):
                with nullcontext() if noise is None else noise.added():
                    passes.append(predictor.outputs(split, batching)[0])
                if len(passes) > 1 and (passes[-1] == passes[0]).all():
                    raise AlignAttnError(f"--run {options.run}: two passes with dropout are equal, so all would be")
        logits = np.stack(passes)
        drawn = {"num_bins": options.num_bins, "resamples": options.resamples, "seed": options.seed}
        estimates = summarise_passes(logits, labels, level=options.level, **drawn)
        yield MeasuredInputs(name, inputs, labels, PassScores.of(logits), estimates)


def _report(run: Any, measured: list[MeasuredInputs], options: UncertaintyOptions) -> None:
    """Print the table, and write the files; `uncertainty.json` last, because it marks the folder as complete."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import alignattn
    from alignattn.evaluation.calibration import FIGURES
    from alignattn.evaluation.calibration.passes import PASS_FIGURES
    from alignattn.evaluation.calibration.summary import interval_notes
    from alignattn.reports.charts import interval_text, reliability_chart, reliability_panel
    from alignattn.reports.pages import REPORT_FILE, Section, write_report
    from alignattn.utils.console import render_table
    from alignattn.utils.files import replacing, write_json
    from alignattn.utils.paths import publishable, unfinished

    # The table shows some measures; the file has all.
    shown = ("accuracy", *PASS_FIGURES, "expected_calibration_error", "area_under_risk_coverage")
    header = ["split", "inputs", "rows", *(PASS_FIGURES.get(name) or FIGURES[name].heading for name in shown)]
    lines, tables = [], []
    charts: dict[str, dict[str, Any]] = {}
    splits: dict[str, dict[str, Any]] = {}
    for one in measured:
        figures = [f"{100 * one.estimates[name].value:.1f}" for name in shown]
        lines.append([one.split, one.inputs, str(len(one.labels)), *figures])
        lines.append(["", "", "", *(interval_text(one.estimates[name]) for name in shown)])
        # As `alignattn calibrate` reads predictions.
        columns = {
            "split": [one.split if one.inputs == ORIGINAL else f"{one.split}, {one.inputs}"] * len(one.labels),
            "row": np.arange(len(one.labels)),
            "label": one.labels,
            "prediction": one.scores.probabilities.argmax(axis=1),
            "probabilities": list(one.scores.probabilities),
            "p_value": one.scores.p_value,
        }
        tables.append(pa.table(columns))
        panel = reliability_panel(one.scores.probabilities, one.labels, options.num_bins, f"{one.inputs} inputs")
        caption = f"{panel.title}, PAvPU {100 * one.estimates['pavpu'].value:.1f} %"
        charts.setdefault(f"{one.split}, {len(one.labels)} rows, mean of passes", {})[caption] = reliability_chart(
            panel
        )
        splits.setdefault(one.split, {})[one.inputs] = {
            "rows": len(one.labels),
            "counts": one.scores.counts(one.labels, options.level),
            **{name: asdict(estimate) for name, estimate in one.estimates.items()},
        }
    caption_lines = [
        f"{options.passes} passes with dropout; probabilities are their mean. A row is certain where the two likeliest",
        f"classes differ significantly over the passes, with p < {options.level:g} (paired t-test of their logits). "
        "PAvPU: rows that",
        "are right and certain, or wrong and uncertain.",
        *interval_notes("Below each figure", options.num_bins, options.resamples),
    ]
    if options.noise:
        caption_lines.append(
            f"{NOISY}: Gaussian noise on the inputs, {options.noise:g} times each feature's standard deviation."
        )
    settings = {name: value for name, value in asdict(options).items() if name not in ("run", "output_dir", "data_dir")}
    content = {
        "alignattn": alignattn.__version__,
        "run": publishable(str(run.folder)),
        "task": run.task.name,
        "model": publishable(run.options.model.model),
        "settings": settings,
        "splits": splits,
    }
    folder = Path(options.output_dir)
    with unfinished(folder):
        sections = [
            Section(title="Figures", notes=caption_lines, header=header, rows=lines, words=2),
            *(Section(title=title, charts=drawn) for title, drawn in charts.items()),
        ]
        write_report(folder / REPORT_FILE, f"Uncertainty of {Path(options.run).name}", {}, sections)
        with replacing(folder / PREDICTIONS_FILE) as temporary:
            pq.write_table(pa.concat_tables(tables), temporary)
        write_json(folder / UNCERTAINTY_FILE, content)
    print("\n".join([render_table(header, lines), "", *caption_lines, f"written to {folder}"]))


class InputNoise:
    """Adds noise to the continuous inputs of a model's forward passes: x + a σ ⊙ ε, with ε of mean 0 and variance 1.

    σ is the standard deviation of each feature over all measured inputs: a = 1 is noise of variance 1 on inputs
    standardised per feature. The inputs are the continuous input of the task, or the word embeddings of a text model,
    without padding.

    Args:
        model: the model whose inputs get noise.
        task_type: the class of the task.
        amount: the factor a.
        seed: the seed of the noise, which is the same in every context of `added` with the same inputs.

    Raises:
        AlignAttnError: if a text model has no word embeddings.
    """

    def __init__(self, model: "nn.Module", task_type: "type[Task]", *, amount: float, seed: int) -> None:
        from alignattn.training.trainer import embeddings_of

        self.model = model
        self.name = task_type.continuous_input
        self.amount = amount
        self.seed = seed
        self._embeddings: Any = embeddings_of(model, "--noise") if self.name is None else None
        # The number of inputs, and the sum and the sum of squares of each feature.
        self._sums: list[Tensor] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure σ over the forwards in the context."""

        def measure(inputs: "Tensor", is_real: "Tensor | None") -> "Tensor":
            rows = (inputs.flatten(0, -2) if is_real is None else inputs[is_real]).double()
            sums = [rows.new_tensor(len(rows)), rows.sum(dim=0), rows.square().sum(dim=0)]
            self._sums = sums if not self._sums else [old + new for old, new in zip(self._sums, sums, strict=True)]
            return inputs

        with self._hooked(measure):
            yield

    @contextmanager
    def added(self) -> Iterator[None]:
        """Add noise to the inputs of the forwards in the context."""
        import torch

        count, total, squares = self._sums
        deviation = (squares / count - (total / count).square()).clamp(min=0).sqrt()
        generator = torch.Generator().manual_seed(self.seed)

        def add(inputs: "Tensor", is_real: "Tensor | None") -> "Tensor":
            noise = torch.randn(inputs.shape, generator=generator).to(inputs.device) * deviation.to(inputs.device)
            if is_real is not None:
                noise = noise * is_real[..., None]
            return inputs + (self.amount * noise).to(inputs.dtype)

        with self._hooked(add):
            yield

    @contextmanager
    def _hooked(self, change: "Callable[[Tensor, Tensor | None], Tensor]") -> Iterator[None]:
        """Change inputs `[…, features]`, given the mask of real ones, `[…]` bool or None for all, in the context."""
        import torch

        from alignattn.tasks.vqa.images import PICTURE_DIMS

        def of_embeddings(module: Any, args: "tuple[Tensor, ...]", embedded: "Tensor") -> "Tensor":
            padding = self._embeddings.padding_idx
            return change(embedded, None if padding is None else args[0].ne(padding))

        def of_batch(module: Any, args: tuple[Any, ...], batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            assert self.name is not None
            inputs = batch[self.name]
            # Noise makes every feature nonzero, so sparse inputs become dense.
            dense = inputs if inputs.layout == torch.strided else inputs.to_dense()
            # Each feature has its own scale; those of an image are its colour channels.
            along = 1 if dense.dim() == PICTURE_DIMS else -1
            mask = batch.get(f"{self.name}_mask")
            changed = change(dense.movedim(along, -1), None if mask is None else mask.bool()).movedim(-1, along)
            return args, batch | {self.name: changed}

        if self._embeddings is not None:
            handle = self._embeddings.register_forward_hook(of_embeddings)
        else:
            handle = self.model.register_forward_pre_hook(of_batch, with_kwargs=True)
        with handle:
            yield
