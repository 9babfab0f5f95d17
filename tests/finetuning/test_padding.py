"""Runs on decoders whose tokenizer has no padding token, against plain transformers on single rows."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import alignattn
from alignattn.cli import main

WORDS = "the cat sees a dog red blue old young not small big".split()  # noqa: SIM905
VOCABULARY = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "llama": lambda **fields: transformers.LlamaConfig(**SIZES, **fields),
    "gpt2": lambda **fields: transformers.GPT2Config(**SIZES, **fields),
}
TRAINING = "--max_steps 3 --learning_rate 1e-2 --use_cpu true --disable_tqdm true --save_strategy no --attention aa-ct"


def save_decoder(folder, family="llama", special=None, **fields):
    """Save a decoder with random weights, and a tokenizer with these special tokens besides the unknown one."""
    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special or {})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(CONFIGS[family](**fields)).save_pretrained(folder)
    return folder


@pytest.fixture
def texts():
    """Texts of different lengths, so that batches are padded."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 1 + number % 8)) for number in range(24)]


def finetune(model, texts, folder, *more):
    rows = pd.DataFrame({"text": texts, "label": ["no", "yes"] * (len(texts) // 2)})
    rows.to_csv(folder / "rows.csv", index=False)
    words = f"finetune --model {model} --train_file {folder / 'rows.csv'} --text_columns text --validation_share 0.25"
    return main([*words.split(), *TRAINING.split(), "--output_dir", str(folder / "run"), *more])


@pytest.mark.parametrize(
    ("family", "fields", "more"),
    [
        ("llama", {}, ()),
        ("gpt2", {}, ()),
        ("llama", {"pad_token_id": 5}, ()),
        ("llama", {}, ("--lora_r", "2")),
    ],
)
def test_a_decoder_without_a_padding_token_pads_by_eos(family, fields, more, texts, tmp_path):
    model = save_decoder(tmp_path / "model", family, {"eos_token": "</s>"}, **fields)
    assert finetune(model, texts, tmp_path, *more) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["pad_token_id"] == VOCABULARY["</s>"]
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    with torch.no_grad():
        # Alone, no row is padded: the last word decides.
        ids = [torch.tensor([[VOCABULARY[word] for word in text.split()]]) for text in texts]
        expected = torch.cat([plain.score(plain.base_model(row).last_hidden_state[:, -1]) for row in ids])
    predicted = alignattn.load_run(tmp_path / "run").predict(texts, batch_size=8, by_length=False)
    found = [{one["label"]: one["probability"] for one in row["probabilities"]} for row in predicted]
    assert [[row["no"], row["yes"]] for row in found] == pytest.approx(expected.softmax(-1).numpy(), abs=1e-5)


def test_without_padding_and_eos_token_a_model_is_refused_in_one_line(texts, tmp_path, capsys):
    model = save_decoder(tmp_path / "model")
    assert finetune(model, texts, tmp_path) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn: ")]
    assert "neither a padding token nor an EOS token" in line


def test_inspect_pads_by_eos(texts, tmp_path):
    model = save_decoder(tmp_path / "model", special={"eos_token": "</s>"})
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "texts.csv", index=False)
    words = f"inspect --model {model} --validation_file {tmp_path / 'texts.csv'} --text_columns text"
    assert main([*words.split(), "--output_dir", str(tmp_path / "out")]) == 0
