"""One rule of batches for the classifier, the sentence encoder and the masked-language model: by the device."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SHARED, WORDS, tiny_model
from transformers import AutoTokenizer

from alignattn.robustness.batches import CPU_TOKENS, GPU_ROWS, padded_batches, rows_at_once
from alignattn.robustness.encoders import MeanPooling
from alignattn.robustness.library import find_spec, load_textattack

CPU = torch.device("cpu")
MAX_LENGTH = 40
NLTK_DATA = SHARED / "resources" / "nltk_data"
needs_textattack = pytest.mark.skipif(
    find_spec("textattack") is None or not NLTK_DATA.is_dir(), reason=f"needs textattack (make attack) and {NLTK_DATA}"
)


def _texts(count: int) -> list[str]:
    drawn = random.Random(0)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 60))) for _ in range(count)]


def _shapes(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Rows and tokens of each forward from now on."""
    shapes: list[tuple[int, int]] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_a_cpu_is_given_tokens_and_a_gpu_rows() -> None:
    assert [rows_at_once(CPU, longest) for longest in (0, 8, 16, 512, 4096)] == [512, 64, 32, 2, 2]
    assert {rows_at_once(torch.device("cuda"), longest) for longest in (8, 512)} == {GPU_ROWS}


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_batches_hold_each_row_once_and_no_needless_padding(
    tiny_checkpoint: Path, padding_side: str, batch_size: int | None
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint, padding_side=padding_side)
    texts = _texts(50)
    seen: list[int] = []
    longest_of_all = MAX_LENGTH
    for rows, batch in padded_batches(tokenizer, [texts], max_length=MAX_LENGTH, device=CPU, batch_size=batch_size):
        seen += rows.tolist()
        alone = [tokenizer(texts[row], truncation=True, max_length=MAX_LENGTH)["input_ids"] for row in rows]
        longest = max(len(tokens) for tokens in alone)
        assert batch["input_ids"].shape == (len(rows), longest)
        assert longest <= longest_of_all
        longest_of_all = longest
        assert len(rows) == batch_size or len(rows) * longest <= CPU_TOKENS or len(seen) == len(texts)
        for tokens, real, expected in zip(batch["input_ids"], batch["attention_mask"], alone, strict=True):
            assert tokens[real.bool()].tolist() == expected
    assert sorted(seen) == list(range(len(texts)))


def test_the_sentence_encoder_is_batched_by_the_device(tiny_checkpoint: Path) -> None:
    model = tiny_model("bert").base_model
    shapes = _shapes(model)
    MeanPooling(model, AutoTokenizer.from_pretrained(tiny_checkpoint))(["a cat", "the dog runs"] * 100)
    assert shapes[0][0] == CPU_TOKENS // shapes[0][1]
    assert sum(rows for rows, _ in shapes) == 200


def _masked_language_model(folder: Path, **options: Any) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    from alignattn.robustness.substitutes import PaddedToLongest

    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=32
    )
    tokenizer.add_tokens(["##s"])  # the mark of a part of a word, by which TextAttack knows its rule
    config.vocab_size = len(tokenizer)
    return PaddedToLongest(
        masked_language_model=BertForMaskedLM(config), tokenizer=tokenizer, method="bae", min_confidence=0.0, **options
    )


@needs_textattack
def test_the_masked_language_model_is_batched_by_the_device(tiny_checkpoint: Path) -> None:
    text = load_textattack(NLTK_DATA).shared.AttackedText("the cat sees the dog " * 8)
    swap = _masked_language_model(tiny_checkpoint, max_candidates=5)
    shapes = _shapes(swap._language_model)
    together = swap._bae_replacement_words(text, range(40))
    assert shapes[0][0] == CPU_TOKENS // shapes[0][1]
    assert sum(rows for rows, _ in shapes) == len(together) == 40
    assert together == [swap._bae_replacement_words(text, [index])[0] for index in range(40)]
    assert all(len(words) == 5 for words in together)


@needs_textattack
@pytest.mark.parametrize("size", [3, 128, 1000])
@pytest.mark.parametrize("levels", [2, 10_000])
def test_ranked_tokens_are_those_of_a_full_stable_sort(size: int, levels: int) -> None:
    load_textattack(NLTK_DATA)
    from alignattn.robustness.substitutes import _ranked

    values = torch.randint(levels, (size,), generator=torch.Generator().manual_seed(0)) / levels
    expected = values.sort(descending=True, stable=True)
    assert list(_ranked(values)) == list(zip(expected.values.tolist(), expected.indices.tolist(), strict=True))
