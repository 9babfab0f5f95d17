"""A run as ONNX in float32 and in int8, and what each costs on labelled texts: a minute on a CPU.

python export_onnx.py RUN FILE TEXT_COLUMN LABEL_COLUMN (a file that `finetune` reads: CSV, TSV, JSON lines, Parquet)
"""

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic

import alignattn
from alignattn.tasks.reading import read_file

run, file, text_column, label_column = sys.argv[1:]
predictor = alignattn.load_run(run, device="cpu")
model, tokenizer = predictor.model, predictor.tokenizer
model = model if model.alignattn.config.changes_function else alignattn.unpatch(model)  # an alignment only observes
texts, labels = read_file(Path(file)).to_pandas()[[text_column, label_column]].astype(str).to_numpy().T.tolist()


def encode(part):
    return tokenizer(part, truncation=True, max_length=predictor.options.max_length, padding=True, return_tensors="pt")


example = encode([texts[0] + " and more", texts[1]])  # a dimension of 1 would be taken for a constant
batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
torch.onnx.export(
    model,
    kwargs=dict(example),
    f="model.onnx",
    dynamo=True,
    verbose=False,
    external_data=False,
    input_names=list(example),
    output_names=["logits"],
    dynamic_shapes={name: {0: batch, 1: length} for name in example},
)
quantize_dynamic("model.onnx", "model-int8.onnx", per_channel=True)  # one scale per output, not per matrix


def measure(name, predict):
    start = time.perf_counter()
    logits = np.concatenate([predict(encode(texts[first : first + 32])) for first in range(0, len(texts), 32)])
    seconds = time.perf_counter() - start
    right = [predictor.task.labels[number] == label for number, label in zip(logits.argmax(1), labels, strict=True)]
    print(f"{name}: accuracy {np.mean(right):.4f}, {seconds:.1f} s")
    return logits


with torch.inference_mode():
    plain = measure("PyTorch", lambda inputs: model(**inputs).logits.numpy())
for path in (Path("model.onnx"), Path("model-int8.onnx")):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = measure(path.name, lambda inputs, s=session: s.run(None, {k: v.numpy() for k, v in inputs.items()})[0])
    flips = np.mean(found.argmax(1) != plain.argmax(1))
    print(f"{path.stat().st_size / 1e6:.1f} MB, largest difference {abs(found - plain).max():.2g}, flips {flips:.4f}")
