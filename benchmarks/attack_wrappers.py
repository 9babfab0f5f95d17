"""Processor time of TextAttack's model wrapper over this package's, on texts that fill the limit of tokens.

OMP_NUM_THREADS=1 python benchmarks/attack_wrappers.py RUN
"""

import copy
import statistics
import sys
import time

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from alignattn.robustness.library import load_textattack
from alignattn.robustness.models import wrap_model

wrappers = load_textattack().models.wrappers
run = sys.argv[1]
model, tokenizer = AutoModelForSequenceClassification.from_pretrained(run), AutoTokenizer.from_pretrained(run)


def seconds(score, texts, size):
    """Return the processor time of scoring texts in batches."""
    start = time.process_time()
    with torch.no_grad():
        for first in range(0, len(texts), size):
            score(texts[first : first + size])
    return time.process_time() - start


for limit in (8, 16, 48, 128, 512):
    ours = wrap_model(model, tokenizer, max_length=limit, cache_size=0)
    cut = copy.deepcopy(tokenizer)
    cut.model_max_length = limit
    theirs = wrappers.HuggingFaceModelWrapper(model, cut)
    for count in (1, 8, 32):
        texts = [f"{number} " + "a good movie " * limit for number in range(count)]
        seconds(ours, texts, count)
        seconds(theirs, texts, 32)
        ratios = [seconds(theirs, texts, 32) / seconds(ours, texts, count) for _ in range(15)]
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"{limit:4} {count:3} {median:.2f} ({low:.2f} to {high:.2f})", flush=True)
