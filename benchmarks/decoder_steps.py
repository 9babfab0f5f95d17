"""What an alignment costs a decoder: training steps and greedy decoding of a small Llama, compared with a plain copy.

    python benchmarks/decoder_steps.py --repeats 13

In every repeat each model takes a turn, in rotating order, from the same weights. Processor time is compared, so that
other processes on the machine have little effect. A training step is forward, loss and backward, without the optimizer;
a decoding step is a forward of one token per row with a cache of keys.

Prints medians and quartiles of the ratios to the plain model of the same repeat, and whether the generated tokens are
equal. The ratio of a second plain model, `plain again`, shows the size of the noise.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import alignattn

LAYERS, WIDTH = 4, 256
STEP_SHAPE, PROMPT_SHAPE, NEW_TOKENS = (4, 256), (4, 32), 64
PLAIN, PLAIN_AGAIN = "plain", "plain again"
ALIGNMENTS = ("aa-ct", "aa-gan")
WARM_UP = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=13, help="repeats of the training step")
    parser.add_argument("--decodings", type=int, default=400, help="repeats of the decoding step")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="vocabulary size (default: Llama 2's 32,000)")
    parser.add_argument("--alignment_rows", type=int, help="drawn rows of the batch (default: 8, so all 4)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = (PLAIN, PLAIN_AGAIN, *ALIGNMENTS)
    models = {name: small_llama(name, options.vocabulary, options.alignment_rows) for name in names}
    batch = torch.randint(4, options.vocabulary, STEP_SHAPE)
    prompt = torch.randint(4, options.vocabulary, PROMPT_SHAPE)
    steps = {name: lambda model=model, name=name: train(model, batch, name) for name, model in models.items()}
    compare("training step", steps, options.repeats)
    for model in models.values():
        model.eval()
    tokens = {name: generate(model, prompt) for name, model in models.items()}
    equal = all(torch.equal(tokens[PLAIN], found) for found in tokens.values())
    print(f"generated tokens are {'equal' if equal else 'DIFFERENT'}")
    with torch.no_grad():
        caches = {name: model(prompt, use_cache=True).past_key_values for name, model in models.items()}
        turns = {name: partial(models[name], prompt[:, :1], past_key_values=cache) for name, cache in caches.items()}
        compare("decoding step", turns, options.decodings)


def small_llama(attention: str, vocabulary: int, rows: int | None) -> Any:
    """Return a Llama with the same random weights for every attention."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    return alignattn.patch(model, attention, alignment_rows=rows) if attention in ALIGNMENTS else model


def train(model: Any, batch: torch.Tensor, attention: str) -> None:
    """Take a training step."""
    model.train().zero_grad()
    loss = model(batch, labels=batch, use_cache=False).loss
    if attention in ALIGNMENTS:
        loss = loss + alignattn.alignment_loss(model)
    loss.backward()


def generate(model: Any, prompt: torch.Tensor) -> torch.Tensor:
    """Generate greedily."""
    mask = torch.ones_like(prompt)
    tokens: torch.Tensor = model.generate(prompt, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    return tokens


def compare(what: str, turns: Mapping[str, Callable[[], Any]], repeats: int) -> None:
    """Print the processor time of each turn over that of the plain model."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for repeat in range(-WARM_UP, repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            begin = time.process_time()
            turns[name]()
            if repeat >= 0:
                seconds[name].append(time.process_time() - begin)
    print(f"{what}: plain {statistics.median(seconds[PLAIN]):.3f} s of processor time")
    for name in names[1:]:
        ratios = [own / plain for own, plain in zip(seconds[name], seconds[PLAIN], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {name}: {middle:.3f} of plain ({low:.3f} to {high:.3f}), {repeats} repeats")


if __name__ == "__main__":
    main()
