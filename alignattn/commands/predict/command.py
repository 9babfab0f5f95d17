"""Predict new rows with a run's model: rows of a file, standard input, the command line or a folder of files.

Files of a folder that already have predictions are skipped.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from alignattn.commands.predict import RAY, STANDARD_STREAM, PredictOptions
from alignattn.commands.predict.files import PARQUET, Source, file_source, holds_predictions, stdin_source, text_source
from alignattn.finetuning.run_files import CALIBRATION_FOLDER, CALIBRATION_ROWS_FILE
from alignattn.finetuning.run_folder import FinishedRun, check_has_classes, read_finished_run, warn_plain
from alignattn.reports.plots.drawing import write_figure
from alignattn.robustness.resources import label_model
from alignattn.tasks import LabelledTask
from alignattn.tasks.task_types import check_generates, processor_class
from alignattn.utils.compression import plain_stem
from alignattn.utils.digests import digest_of, model_digest
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import OWN_PREFIX, entries, write_json
from alignattn.utils.folder_lock import folder_lock
from alignattn.utils.json_records import read_json
from alignattn.utils.progress import progress
from alignattn.utils.shard import WHOLE, Shard

MANY_CLASSES = 100
"""Classes above which the output suggests --top_k."""

ENDING = "-predicted"
"""Suffix of the names of prediction files."""

SETTINGS = ("top_k", "coverage", "sets", "max_error", "num_beams", "skip_bad_rows", "batch_size", "in_order")
"""Options that change the predictions."""

RECORD_FILE = "predictions.json"
"""File in a folder of predictions that records the model and the settings."""

SHARD_PREFIX = f"{OWN_PREFIX}-shard-"
"""Prefix of the folders that shards lock."""

HIDDEN = (".", "_")
"""Prefixes of other programs' files in a folder of Parquet files; they hold no rows."""


def predict(options: PredictOptions) -> None:
    """Predict the rows, and write the predictions next to the columns of the rows."""
    run = read_finished_run(Path(options.run), "--run")
    temperature = _temperature(options, run)
    _check_run(options, run)
    if options.decides:
        # The module imports SciPy, which other predictions need only after the model is loaded.
        from alignattn.finetuning.decisions import run_decisions

        run_decisions(run, temperature, options.coverage, options.max_error, options.sets)
    warn_plain(run.folder, run.options)
    if options.is_folder:
        _predict_folder(options, run, temperature)
        return
    source = _source(options, run)
    target = _target(options, source)
    if target is None:
        _predict_rows(options, run, temperature, source, None)
        return
    with folder_lock(target.parent / f"{OWN_PREFIX}-{target.name}"):
        _check_new(target)
        _predict_rows(options, run, temperature, source, target)
    print(f"written to {target}")


def _predict_rows(
    options: PredictOptions, run: FinishedRun, temperature: float | None, source: Source, target: Path | None
) -> None:
    # Imported here, so that the checks above do not wait for torch.
    from alignattn.commands.predict.prediction import draw_explanation, load_prediction

    prediction, picture = load_prediction(run, temperature, options), None
    if options.explain is not None:
        picture = draw_explanation(prediction.predictor, next(source.parts(1)).inputs, options)
    with progress("predict", source.num_rows, "row") as bar:
        prediction.write(source, target, bar.update)
    _print_remarks(prediction.seen)
    if picture is not None:
        write_figure(picture, Path(str(options.explain)))
        print(f"{options.explain} shows the attention in row 1", file=sys.stderr)


def _predict_folder(options: PredictOptions, run: FinishedRun, temperature: float | None) -> None:
    folder = Path(str(options.file))
    output = Path(options.output_dir or folder.resolve().with_name(f"{folder.resolve().name}{ENDING}"))
    jobs = _jobs(options, folder, output)
    sources = {target: file_source(rows, run.task, may_be_empty=True) for target, rows in jobs.items()}
    with writing(output, options.part):
        settings = {name: getattr(options, name) for name in SETTINGS} | {"temperature": temperature}
        if options.decides:
            settings["calibration"] = digest_of(run.folder / CALIBRATION_FOLDER / CALIBRATION_ROWS_FILE)
        _check_record(output, run, settings)
        left = _pending(sources)
        if left:
            from alignattn.commands.predict.prediction import load_prediction, predict_on_ray

            if options.launcher == RAY:
                seen = predict_on_ray(options, temperature, {target: jobs[target] for target in left})
            else:
                with progress("predict", sum(source.num_rows for source in left.values()), "row") as bar:
                    prediction = load_prediction(run, temperature, options)
                    for target, source in left.items():
                        prediction.write(source, target, bar.update)
                seen = prediction.seen
            _print_remarks(seen)
    print(f"written to {output}")


def _print_remarks(seen: Any) -> None:
    """Print remarks on the rows to standard error; standard output may hold predictions."""
    for remark in seen.remarks():
        print(remark, file=sys.stderr)


def _check_run(options: PredictOptions, run: FinishedRun) -> None:
    task = run.task
    if options.explain is not None and not run.has_heads:
        raise AlignAttnError(
            f"--explain: {run.folder} is a {run.options.model.model} run, which has no attention heads"
        )
    if options.explain is not None and not processor_class(task).reads_only_texts:
        raise AlignAttnError(
            f"--explain: {run.folder} reads more than texts, and the picture shows tokens only: leave it out"
        )
    if options.num_beams is not None:
        check_generates(task)
    if isinstance(task, LabelledTask) and task.num_labels > MANY_CLASSES and options.top_k is None:
        print(f"each row lists all {task.num_labels} classes: --top_k 5 lists the best", file=sys.stderr)


def _temperature(options: PredictOptions, run: FinishedRun) -> float | None:
    if options.temperature is None:
        return None
    check_has_classes(run.task)
    if options.temperature_number is not None:
        return options.temperature_number
    path = Path(options.temperature)
    if not path.is_file():
        raise AlignAttnError(f"--temperature {path} is neither a number nor a file: give one of them")
    found = read_calibration(path)
    print(f"temperature {found:.4g} of {path}", file=sys.stderr)
    return found


def read_calibration(path: Path) -> float:
    """Return the temperature from a file of `alignattn calibrate`."""
    content = read_json(path)
    try:
        values = {float(file["temperature"]["value"]) for file in content["files"] if file["temperature"] is not None}
    except (KeyError, TypeError, ValueError) as error:
        raise AlignAttnError(f"{path} is not a file of `alignattn calibrate`: give its calibration.json") from error
    if len(values) != 1:
        many = "several temperatures: give a file with one" if values else "no temperature: use `calibrate --fit_on`"
        raise AlignAttnError(f"{path} holds {many}, or pass the number as --temperature")
    return values.pop()


def _source(options: PredictOptions, run: FinishedRun) -> Source:
    if options.text is not None:
        return text_source(run.task, options.text)
    if options.file == STANDARD_STREAM:
        return stdin_source(run.task, encoding=options.encoding)
    return file_source(Path(str(options.file)), run.task, encoding=options.encoding)


def _target(options: PredictOptions, source: Source) -> Path | None:
    """Return the file to write; None for standard output."""
    if options.output_file is not None:
        return Path(options.output_file)
    if options.text is not None or options.file == STANDARD_STREAM:
        return None
    path = Path(str(options.file))
    # `.` and `..` have no name of their own to build on.
    path = path if path.name not in ("", "..") else Path(os.path.abspath(path))
    target = path.with_name(f"{plain_stem(path)}{ENDING}{source.format}")
    _check_new(target)
    return target


def _check_new(target: Path) -> None:
    if target.exists():
        raise AlignAttnError(f"{target} already exists: give another --output_file")


def _jobs(options: PredictOptions, folder: Path, output: Path) -> Mapping[Path, Path]:
    """Return the files of the shard, by the files of their predictions."""
    if output.resolve().is_relative_to(folder.resolve()):
        raise AlignAttnError(f"--output_dir {output} is inside {folder}, the folder of the rows: give another")
    names = sorted(
        path.relative_to(folder)
        for path in folder.rglob(f"*{PARQUET}")
        if path.is_file() and not any(part.startswith(HIDDEN) for part in path.relative_to(folder).parts)
    )
    if not names:
        raise AlignAttnError(f"{folder} contains no Parquet files (hidden ones do not count): give another --file")
    return {output / name: folder / name for name in options.part.deal(names)}


@contextmanager
def writing(output: Path, part: Shard) -> Iterator[None]:
    """Lock a folder of predictions, or a shard of it, for one process; others wait.

    A process that writes all files holds the folder's lock, so that no shard starts, and waits for the shards that have
    started. A process that writes a shard holds the shard's lock, and the folder's only while it starts.
    """
    with ExitStack() as held, ExitStack() as at_first:
        (held if part == WHOLE else at_first).enter_context(folder_lock(output))
        if part == WHOLE:
            for shard in sorted(output.glob(f"{SHARD_PREFIX}*")):
                with folder_lock(shard):
                    pass
        else:
            held.enter_context(folder_lock(output / f"{SHARD_PREFIX}{part.number}-of-{part.count}"))
        at_first.close()
        yield


def _check_record(output: Path, run: FinishedRun, settings: dict[str, Any]) -> None:
    """Refuse a folder with other predictions or files; record the model and the settings in a new one.

    Args:
        output: the folder.
        run: the run that predicts.
        settings: the options that change the predictions.
    """
    digest, path = model_digest(run.folder), output / RECORD_FILE
    if not path.is_file():
        if output.is_dir() and entries(output):
            raise AlignAttnError(f"{output} exists but does not contain predictions: give another --output_dir")
        write_json(path, {"run": label_model(run.folder, digest), "model": digest, "settings": settings})
    written = read_json(path)
    if written.get("model") != digest:
        raise AlignAttnError(f"{output} holds predictions of {written.get('run')}: give another --output_dir")
    differing = [name for name in settings if written.get("settings", {}).get(name) != settings[name]]
    if differing:
        raise AlignAttnError(f"{output} holds other predictions ({', '.join(differing)}): give another --output_dir")


def _pending(sources: Mapping[Path, Source]) -> Mapping[Path, Source]:
    """Return the files without predictions; refuse predictions of a file that has changed."""
    left = {}
    for target, source in sources.items():
        if not target.exists():
            left[target] = source
        elif not holds_predictions(target, source):
            raise AlignAttnError(
                f"{target} holds predictions of {source.origin} as it was: the file has changed; remove {target}"
            )
    if len(left) < len(sources):
        print(f"{len(sources) - len(left)} of {len(sources)} files already have predictions", file=sys.stderr)
    return left
