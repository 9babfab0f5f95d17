"""Batches of the classifier, the sentence encoder and the masked-language model: the device determines their size."""

import pytest
import torch
from conftest import tiny_model
from needs import needs_files
from robustness_helpers import NLTK_DATA, random_masked_language_model, random_texts, watch_inputs
from transformers import AutoTokenizer, BertConfig, ViTConfig

from alignattn.models.lengths import CPU_TOKENS, GPU_ROWS, picture_tokens, rows_at_once
from alignattn.robustness.library import load_textattack
from alignattn.robustness.models import MeanPooling, ModelInputs

CPU = torch.device("cpu")
MAX_LENGTH = 40


def _shape(ids):
    return tuple(ids.shape)


def test_batches_are_limited_by_tokens_on_a_cpu_and_by_rows_on_a_gpu():
    assert [rows_at_once(CPU, longest) for longest in (0, 8, 16, 512, 4096)] == [512, 64, 32, 2, 2]
    assert {rows_at_once(torch.device("cuda"), longest) for longest in (8, 512)} == {GPU_ROWS}
    configs = ViTConfig(), ViTConfig(image_size=8, patch_size=2), BertConfig()
    assert [picture_tokens(config) for config in configs] == [196, 16, 196]


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_batches_hold_each_row_once_and_no_needless_padding(tiny_checkpoint, padding_side, batch_size):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint, padding_side=padding_side)
    texts = random_texts(50, longest=60)
    seen: list[int] = []
    longest_of_all = MAX_LENGTH
    for rows, batch in ModelInputs.of(tokenizer, [texts], MAX_LENGTH).batches(CPU, batch_size=batch_size):
        seen += rows.tolist()
        alone = [tokenizer(texts[row], truncation=True, max_length=MAX_LENGTH)["input_ids"] for row in rows]
        longest = max(len(tokens) for tokens in alone)
        assert batch["input_ids"].shape == (len(rows), longest)
        assert longest <= longest_of_all
        longest_of_all = longest
        size = batch_size or rows_at_once(CPU, longest)
        assert len(rows) == size or (len(rows) < size and len(seen) == len(texts))
        for tokens, real, expected in zip(batch["input_ids"], batch["attention_mask"], alone, strict=True):
            assert tokens[real.bool()].tolist() == expected
    assert sorted(seen) == list(range(len(texts)))


def test_keys_depend_on_the_tokens_alone(tiny_checkpoint):
    def keys(*columns):
        return ModelInputs.of(AutoTokenizer.from_pretrained(tiny_checkpoint), columns, MAX_LENGTH).keys()

    padded = keys(["a zebra", "A  quokka", "a cat", "the cat sees the dog and runs"])
    assert padded[:3] == keys(["a zebra", "a gnu", "a cat"])
    assert padded[0] == padded[1]
    assert len(set(padded)) == 3
    # The same tokens in other texts of a pair.
    assert len(set(keys(["a [SEP] cat", "a"], ["dog", "cat [SEP] dog"]))) == 2


def test_the_sentence_encoder_is_batched_by_the_device(tiny_checkpoint):
    model = tiny_model("bert").base_model
    shapes = watch_inputs(model, _shape)
    texts = random_texts(200)
    MeanPooling(model, AutoTokenizer.from_pretrained(tiny_checkpoint)).encode(texts)
    assert shapes[0][0] == CPU_TOKENS // shapes[0][1]
    assert sum(rows for rows, _ in shapes) == len(set(texts))


def _masked_language_model(folder, **options):
    from alignattn.robustness.substitutes import PaddedToLongest

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["##s"])  # the mark of a subword, by which TextAttack recognises the tokenizer
    model = random_masked_language_model(tokenizer).double()  # in float64 the rest of a batch makes no tie
    return PaddedToLongest(
        masked_language_model=model, tokenizer=tokenizer, method="bae", min_confidence=0.0, **options
    )


@needs_files(NLTK_DATA)
def test_the_masked_language_model_is_batched_by_the_device(tiny_checkpoint):
    text = load_textattack().shared.AttackedText("the cat sees the dog " * 8)
    swap = _masked_language_model(tiny_checkpoint, max_candidates=5)
    shapes = watch_inputs(swap._language_model, _shape)
    together = swap._bae_replacement_words(text, range(40))
    assert shapes[0][0] == CPU_TOKENS // shapes[0][1]
    assert sum(rows for rows, _ in shapes) == len(together) == 40
    assert together == [swap._bae_replacement_words(text, [index])[0] for index in range(40)]
    assert all(len(words) == 5 for words in together)


@needs_files(NLTK_DATA)
@pytest.mark.parametrize(("size", "levels"), [(3, 2), (1000, 2), (1000, 10_000)])
def test_ranked_tokens_are_those_of_a_full_stable_sort(size, levels):
    load_textattack()
    from alignattn.robustness.substitutes import _ranked

    values = torch.randint(levels, (size,), generator=torch.Generator().manual_seed(0)) / levels
    expected = values.sort(descending=True, stable=True)
    assert list(_ranked(values)) == list(zip(expected.values.tolist(), expected.indices.tolist(), strict=True))
