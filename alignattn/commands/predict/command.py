"""Predictions of a run's model for new rows: of a file, of standard input, of texts, of a folder of files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignattn.commands.predict import RAY, STANDARD_STREAM, PredictOptions
from alignattn.commands.predict.folder import check_record, folder_jobs, pending, writing
from alignattn.commands.predict.inputs import JSON_LINES, Source, file_source, stdin_source, text_source
from alignattn.commands.predict.outputs import TEXT_WRITERS, Write, file_writer
from alignattn.commands.predict.seen import SeenRows
from alignattn.finetuning.run_folder import FinishedRun, read_finished_run, warn_plain
from alignattn.reports.plots import write_figure
from alignattn.tasks import LabelledTask
from alignattn.tasks.task_types import check_generates, processor_class
from alignattn.utils.compression import plain_stem
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import OWN_PREFIX, replacing
from alignattn.utils.folder_lock import folder_lock
from alignattn.utils.json_records import read_json
from alignattn.utils.progress import progress

MANY_CLASSES = 100
"""Of more, the probabilities of a row fill a page."""

ENDING = "-predicted"
"""Of the name of a file of predictions beside that of its rows."""

SETTINGS = ("top_k", "num_beams", "skip_bad_rows", "batch_size", "in_order")
"""Options that make other predictions of the same rows."""


def predict(options: PredictOptions) -> None:
    """Predict the rows that the options name, and write them with what is predicted beside their own columns."""
    run = read_finished_run(Path(options.run), "--run")
    temperature = _temperature(options, run)
    _check_run(options, run)
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
    options: PredictOptions, run: FinishedRun, temperature: float, source: Source, target: Path | None
) -> None:
    # They import torch, for which no mistake above waits.
    from alignattn.commands.predict.rows import load_prediction

    prediction = load_prediction(run, temperature, options)
    prediction.check(source)
    picture = None
    if options.explain is not None:
        from alignattn.commands.predict.explanation import draw_explanation

        picture = draw_explanation(prediction.predictor, next(source.parts(1)).inputs, options)
    with progress("predict", source.num_rows, "row") as bar, _writer(target, source) as write:
        for table in prediction.tables(source, bar.update):
            write(table)
    _say(prediction.seen)
    if picture is not None:
        write_figure(picture, Path(str(options.explain)))
        print(f"{options.explain} shows the attention in row 1", file=sys.stderr)


def _predict_folder(options: PredictOptions, run: FinishedRun, temperature: float) -> None:
    folder = Path(str(options.file))
    output = Path(options.output_dir or folder.resolve().with_name(f"{folder.resolve().name}{ENDING}"))
    jobs = folder_jobs(options, output, run)
    settings = {name: getattr(options, name) for name in SETTINGS} | {"temperature": temperature}
    with writing(output, options.part):
        check_record(output, run, settings)
        left = pending(jobs)
        if left and options.launcher == RAY:
            from alignattn.commands.predict.on_ray import predict_on_ray

            _say(predict_on_ray(options, temperature, list(left)))
        elif left:
            from alignattn.commands.predict.rows import load_prediction

            with progress("predict", sum(source.num_rows for source in left.values()), "row") as bar:
                prediction = load_prediction(run, temperature, options)
                for job, source in left.items():
                    prediction.write(source, job.target, bar.update)
            _say(prediction.seen)
    print(f"written to {output}")


def _say(seen: SeenRows) -> None:
    """Say on standard error, as predictions may be on the other, what is odd of the rows."""
    for remark in seen.remarks():
        print(remark, file=sys.stderr)


def _source(options: PredictOptions, run: FinishedRun) -> Source:
    if options.text is not None:
        return text_source(run.task, options.text)
    if options.file == STANDARD_STREAM:
        return stdin_source(run.task, encoding=options.encoding)
    return file_source(Path(str(options.file)), run.task, encoding=options.encoding)


def _target(options: PredictOptions, source: Source) -> Path | None:
    """The file to write; None for standard output."""
    if options.output_file is not None:
        return Path(options.output_file)
    if options.text is not None or options.file == STANDARD_STREAM:
        return None
    path = Path(str(options.file))
    target = path.with_name(f"{plain_stem(path)}{ENDING}{source.format}")
    _check_new(target)
    return target


def _check_new(target: Path) -> None:
    if target.exists():
        raise AlignAttnError(f"{target} is there already: give another name to --output_file")


@contextmanager
def _writer(target: Path | None, source: Source) -> Iterator[Write]:
    if target is not None:
        with replacing(target) as temporary, file_writer(temporary, target.suffix.lower()) as write:
            yield write
        return
    written_as = source.format if source.format in TEXT_WRITERS else JSON_LINES
    with TEXT_WRITERS[written_as](sys.stdout) as write:
        yield write


def _temperature(options: PredictOptions, run: FinishedRun) -> float:
    if options.temperature is None:
        return 1.0
    _check_has_classes(run)
    if options.temperature_number is not None:
        return options.temperature_number
    path = Path(options.temperature)
    if not path.is_file():
        raise AlignAttnError(f"--temperature {path} is no number and no file: give one, or calibration.json")
    found = read_calibration(path)
    print(f"temperature {found:.4g} of {path}", file=sys.stderr)
    return found


def read_calibration(path: Path) -> float:
    """Return the one temperature that a file of `alignattn calibrate` holds."""
    try:
        fitted = [file["temperature"] for file in read_json(path)["files"]]
        values = {float(one["value"]) for one in fitted if one is not None}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, AlignAttnError):
            raise
        raise AlignAttnError(f"{path} is no file of `alignattn calibrate`: give its calibration.json") from error
    if len(values) != 1:
        many = "several temperatures" if values else "no temperature: give --fit_on to calibrate"
        raise AlignAttnError(f"{path} holds {many}; or give the number itself to --temperature")
    return values.pop()


def _check_run(options: PredictOptions, run: FinishedRun) -> None:
    if options.explain is not None and not run.has_heads:
        raise AlignAttnError(
            f"--explain: {run.folder} is a run of {run.options.model.model}, whose words attend to none"
        )
    if options.explain is not None and not processor_class(run.task).reads_only_texts:
        raise AlignAttnError(
            f"--explain: {run.folder} reads no texts alone, whose tokens the picture shows: leave it out"
        )
    task = run.task
    if options.num_beams is not None:
        check_generates(task)
    if isinstance(task, LabelledTask) and task.num_labels > MANY_CLASSES and options.top_k is None:
        print(f"{task.num_labels} classes, all told of each row: --top_k 5 tells the best", file=sys.stderr)


def _check_has_classes(run: FinishedRun) -> None:
    if not isinstance(run.task, LabelledTask) or run.task.is_regression:
        raise AlignAttnError(f"--temperature is for probabilities of classes, and task {run.task.name!r} has none")
