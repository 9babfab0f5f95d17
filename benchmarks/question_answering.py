"""Seconds of question answering without the model: windows, answer spans, best answers and scores of 10,000 questions.

OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python benchmarks/question_answering.py DATA
"""

import sys
import time

import datasets
import numpy as np
from transformers import AutoTokenizer

from alignattn.models.packaged import model_source
from alignattn.tasks.definitions import get_task
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task import EncodedSplit, TaskOptions

datasets.disable_caching()
datasets.disable_progress_bars()
tokenizer, options = AutoTokenizer.from_pretrained(model_source("minilm")), TaskOptions(max_length=384)
for name in ("squad", "squadv2"):
    rows = load_rows(get_task(name), need_train=False, data_dir=sys.argv[1])
    task, split = rows.task, rows.evaluation["validation"]
    questions = datasets.concatenate_datasets([split] * 5).select(range(10_000))
    for _ in range(3):
        start = time.perf_counter(), time.process_time()
        windows = task.encode(questions, tokenizer, options)
        encoded = time.perf_counter(), time.process_time()
        logits = np.random.default_rng(0).standard_normal((2, len(windows), 384), dtype=np.float32)
        scored = time.perf_counter(), time.process_time()
        task.evaluate(EncodedSplit(questions, windows, options), tuple(logits), None)
        end = time.perf_counter(), time.process_time()
        print(f"{name}, {len(windows)} windows", flush=True)
        for step, begun, ended in (("encode", start, encoded), ("evaluate", scored, end)):
            print(f"{step}: {ended[0] - begun[0]:.1f} s, of a processor {ended[1] - begun[1]:.1f} s", flush=True)
