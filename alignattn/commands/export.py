"""`alignattn export`: write a run's model as ONNX, and compare it with PyTorch on the run's evaluation rows."""

import functools
import logging
import sys
import warnings
from dataclasses import dataclass, replace
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.results import score_text
from alignattn.finetuning.run_folder import (
    FinishedRun,
    check_run_folder,
    is_run_folder,
    read_finished_run,
    warn_plain,
)
from alignattn.models import capabilities_of
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, check_installed, in_megabytes, one_line
from alignattn.utils.files import write_json
from alignattn.utils.options import REQUIRED, Options, OutputDir, option
from alignattn.utils.paths import check_free, unfinished

if TYPE_CHECKING:
    from alignattn.finetuning.predictor import Predictor

ONNX_FILE, INT8_FILE, EXPORT_FILE = "model.onnx", "model-int8.onnx", "export.json"
MAX_DIFFERENCE = 1e-3  # of float32 outputs, relative to the largest: more is no rounding


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """The options of `alignattn export`."""

    run: str = option(REQUIRED, "Folder of a finished run.", metavar="DIR", place=check_run_folder)
    output_dir: OutputDir = option(REQUIRED, f"Folder for {ONNX_FILE}, the tokenizer and {EXPORT_FILE}.")
    int8: bool = option(False, f"Also write {INT8_FILE}, with weights of 8 bits.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for module in ("onnx", "onnxscript", "onnxruntime"):
            check_installed(module, "export", "`alignattn export`")


COMMAND = Command(
    "export",
    "write a run's model as ONNX, in float32 and in int8, and compare it with PyTorch",
    ExportOptions,
    run="alignattn.commands.export:export",
    examples=("alignattn export --run runs/mrpc --output_dir exported --int8",),
)


def export(options: ExportOptions) -> dict[str, Any]:
    """Write the ONNX model, its tokenizer and `export.json`; print how it compares with PyTorch, and return that."""
    import alignattn
    from alignattn.finetuning.predictor import load_predictor
    from alignattn.patching.checkpoints import merge_adapters

    run, folder = read_finished_run(Path(options.run), "--run"), Path(options.output_dir)
    _check_exports(run, int8=options.int8)
    if is_run_folder(folder) and not folder.samefile(run.folder):
        raise AlignAttnError(f"{folder} is another run, whose tokenizer would be replaced: give another --output_dir")
    check_free(folder, (EXPORT_FILE, ONNX_FILE, INT8_FILE))
    warn_plain(run.folder, run.options)
    predictor = load_predictor(run, device="cpu")
    model: Any = merge_adapters(predictor.model)
    if alignattn.is_patched(model) and not run.options.attention.changes_function:
        model = alignattn.unpatch(model)  # an alignment only observes: the function stays
    predictor = replace(predictor, model=model)
    files = [folder / ONNX_FILE, *([folder / INT8_FILE] if options.int8 else [])]
    with unfinished(folder):
        names = _write_onnx(predictor, files)
        predictor.tokenizer.save_pretrained(folder)
        about: dict[str, Any] = {"task": run.task.name, "labels": list(getattr(run.task, "labels", ())), **names}
        about |= {"max_length": predictor.options.max_length, "compared": _compare(predictor, files)}
        write_json(folder / EXPORT_FILE, about)
    print("\n".join(f"written to {file} ({in_megabytes(file.stat().st_size)})" for file in files))
    return about


def _check_exports(run: FinishedRun, *, int8: bool) -> None:
    """Refuse a run whose model ONNX or onnxruntime cannot express, by the name of its part."""
    name, attention, reason = run.options.model.model, run.options.attention, ""
    can_export = run.task.reads_only_texts and capabilities_of(name).is_pretrained
    if not can_export or run.options.model.has_crf:
        reason = f"{name} for task {run.task.name!r}: only pretrained encoders of texts export, without a CRF"
    for slot, choice in attention.choices.items():
        if choice.exports == "no" or (int8 and choice.exports == "float32"):
            reason = f"{slot} {getattr(attention, slot)!r} does not export"
            reason += " to int8: leave --int8 out" if choice.exports == "float32" else ": ONNX lacks its operations"
    if reason:
        raise AlignAttnError(f"--run {run.folder}: {reason}")


def _write_onnx(predictor: "Predictor", files: list[Path]) -> dict[str, list[str]]:
    """Write the model in float32, and in int8 if there is a second file; return the names of its inputs and outputs."""
    import torch
    from onnxruntime.quantization import quantize_dynamic

    from alignattn.finetuning.rows import input_batches

    model, task = predictor.model, predictor.task
    # Two rows of some tokens: a dimension of 1 would be taken for a constant.
    rows = predictor.encode(predictor.dataset([task.row_of(["a few words"] * task.texts_of_a_row)] * 2))
    example = next(input_batches(task, rows, predictor.tokenizer, range(2), 2))
    names = {"inputs": list(example), "outputs": list(model(**example))}
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    settings: Any = {"input_names": names["inputs"], "output_names": names["outputs"], "verbose": False}
    settings["dynamic_shapes"] = {name: {0: batch, one.ndim - 1: length} for name, one in example.items()}
    logging.disable(logging.WARNING)  # the libraries warn about themselves
    try:
        with warnings.catch_warnings(action="ignore"):
            print(f"writing {files[0]}", file=sys.stderr)
            torch.onnx.export(model, kwargs=example, f=str(files[0]), dynamo=True, external_data=False, **settings)
            for file in files[1:]:
                print(f"writing {file}, with weights of 8 bits", file=sys.stderr)
                # One scale per channel: one per matrix costs more accuracy (docs/serving.md).
                quantize_dynamic(files[0], file, per_channel=True)
    except torch.onnx.errors.OnnxExporterError as error:
        raise AlignAttnError(f"{type(model).__name__} does not export: {one_line(error)}") from error
    finally:
        logging.disable(logging.NOTSET)
    return names


def _compare(predictor: "Predictor", files: list[Path]) -> list[dict[str, Any]]:
    """Return the scores of PyTorch and of each file on each split, and how their outputs differ from PyTorch's."""
    import numpy as np
    import onnxruntime
    import torch

    from alignattn.finetuning.predictor import Batching
    from alignattn.finetuning.rows import encode_split, load_run_evaluation
    from alignattn.tasks.rows import max_samples

    def in_onnx(session: Any, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        arrays = session.run(None, {node.name: batch[node.name].numpy() for node in session.get_inputs()})
        return {node.name: torch.from_numpy(array) for node, array in zip(session.get_outputs(), arrays, strict=True)}

    run, model, compared = predictor.run, predictor.model, []
    forwards: dict[str, Any] = {"PyTorch": model.forward}
    for file in files:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        forwards[file.name] = functools.wraps(model.forward)(functools.partial(in_onnx, session))
    loaded, data = load_run_evaluation(run.options), run.options.data
    for split, dataset in loaded.evaluation.items():
        rows = max_samples(loaded.task, dataset, data.max_eval_samples, data.take)
        encoded, expected = encode_split(loaded.task, rows, predictor.tokenizer, data), None
        for name, forward in forwards.items():
            print(f"predicting {len(rows)} rows of {split} with {name}", file=sys.stderr)
            model.forward = forward
            outputs, labels = predictor.outputs(encoded, Batching())
            evaluation = loaded.task.evaluate(encoded, outputs, labels)
            flat = np.concatenate([np.ravel(array) for array in (outputs if isinstance(outputs, tuple) else [outputs])])
            predicted = evaluation.predictions["prediction"].to_pylist()
            answers = [round(answer, 3) if isinstance(answer, float) else answer for answer in predicted]
            expected = expected or (flat, answers)
            difference, differing = float(np.abs(flat - expected[0]).max()), sum(map(ne, answers, expected[1]))
            # It is NaN where an output is.
            if name == ONNX_FILE and not difference <= MAX_DIFFERENCE * max(1, np.abs(expected[0]).max()):
                raise AlignAttnError(f"{files[0]} differs from PyTorch by {difference:.2g}: do not use it")
            report = {"split": split, "model": name, "rows": len(rows), "metrics": evaluation.metrics}
            compared.append({**report, "difference": difference, "differing_predictions": differing})
            scores = ", ".join(f"{metric} {score_text(metric, value)}" for metric, value in evaluation.metrics.items())
            summary = f"{differing} of {len(rows)} predictions differ, outputs by at most {difference:.2g}"
            print(f"{split}, {name}: {scores} ({summary})")
    if not compared:
        print("the run has no evaluation rows, so nothing is compared")
    return compared
