"""`alignattn robustness train-mlm`: the head learns, the saved folder is the measured model, and errors are refused."""

import json
import shutil
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from conftest import WORDS
from robustness_helpers import pickle_weights, random_texts, run_robustness
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    set_seed,
)

from alignattn.commands.robustness import train_mlm as train_mlm_module
from alignattn.commands.robustness.masked_texts import (
    encode_texts,
    masked_batches,
    most_frequent_token,
    read_texts,
    split_texts,
)
from alignattn.commands.robustness.train_mlm import masked_accuracy
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_csv

train_mlm = partial(run_robustness, "train-mlm")
LENGTHS = range(6, 16)
FAST = ["--max_length", "20", "--disable_tqdm", "true", "--report_to", "none"]
LEARNING = ["--num_train_epochs", "15", "--learning_rate", "5e-3", "--per_device_train_batch_size", "16"]


def echoes():
    """Return texts of one repeated word, in which each word determines the others."""
    return [" ".join([word] * length) for word in WORDS for length in LENGTHS]


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(echoes()) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tiny_checkpoint, text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "mlm"
    train_mlm(*words(tiny_checkpoint, text_file, folder), *LEARNING)
    return folder


def words(model, text, folder):
    return ["--model", str(model), "--train_file", str(text), "--output_dir", str(folder), *FAST]


def results(folder):
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def held_out_batches(folder, max_length=20):
    found, tokenizer = results(folder), AutoTokenizer.from_pretrained(folder)
    held_out = encode_texts(split_texts(echoes(), found["seed"])[1], tokenizer, max_length)
    return masked_batches(held_out, tokenizer, found["mlm_probability"], 64, found["seed"])


def test_it_learns_what_the_texts_determine(trained):
    found = results(trained)
    accuracy = found["masked_accuracy"]
    assert accuracy["before"] < 0.3
    assert accuracy["most_frequent_token"] < 0.3
    assert accuracy["after"] > 0.8
    assert found["train_texts"] + found["held_out_texts"] == len(echoes())
    assert found["held_out_texts"] == len(echoes()) // 20
    assert found["training"]["steps"] > 0
    assert found["versions"]["transformers"]


def test_the_saved_folder_is_the_measured_model(trained, tiny_checkpoint):
    model, batches = AutoModelForMaskedLM.from_pretrained(trained), held_out_batches(trained)
    found = results(trained)
    assert masked_accuracy(model, batches) == found["masked_accuracy"]["after"]
    assert sum(int((batch["labels"] != -100).sum()) for batch in batches) == found["masked_tokens"]
    head, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert head.data_ptr() == embeddings.data_ptr()
    encoder = AutoModel.from_pretrained(trained, add_pooling_layer=False).state_dict()
    assert all(torch.equal(weights, encoder[name]) for name, weights in model.bert.state_dict().items())
    old = AutoModel.from_pretrained(tiny_checkpoint).state_dict()
    key = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(encoder[key], old[key])


def test_before_is_the_accuracy_of_the_untrained_head(trained, tiny_checkpoint):
    set_seed(results(trained)["seed"])
    model = AutoModelForMaskedLM.from_pretrained(tiny_checkpoint)
    assert masked_accuracy(model, held_out_batches(trained)) == results(trained)["masked_accuracy"]["before"]


def test_the_baseline_equals_a_count(trained):
    train, _ = split_texts(echoes(), results(trained)["seed"])
    counts = Counter(word for text in train for word in text.split())
    found, tokenizer = results(trained), AutoTokenizer.from_pretrained(trained)
    assert counts[found["most_frequent_token"]] == max(counts.values())
    hidden = [
        tokenizer.convert_ids_to_tokens(int(label))
        for batch in held_out_batches(trained)
        for label in batch["labels"].flatten()
        if label != -100
    ]
    share = hidden.count(found["most_frequent_token"]) / len(hidden)
    assert found["masked_accuracy"]["most_frequent_token"] == pytest.approx(share)


def test_the_same_seed_gives_the_same_figures(trained, tiny_checkpoint, text_file, tmp_path, capsys):
    train_mlm(*words(tiny_checkpoint, text_file, tmp_path / "again"), *LEARNING)
    again = results(tmp_path / "again")
    assert again["masked_accuracy"] == results(trained)["masked_accuracy"]
    printed = capsys.readouterr().out
    for share in again["masked_accuracy"].values():
        assert f"{share:.1%}" in printed
    assert f"--mlm {tmp_path / 'again'}" in printed


def test_measured_tokens_are_masked_and_special_tokens_are_not_measured(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    frame = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    for batch in held_out_batches(trained):
        is_hidden = batch["labels"] != -100
        assert (batch["input_ids"][is_hidden] == tokenizer.mask_token_id).all()
        assert not (batch["input_ids"][~is_hidden] == tokenizer.mask_token_id).any()
        assert not frame & set(batch["labels"][is_hidden].tolist())


def test_a_masked_language_model_keeps_the_head_that_it_has(trained, text_file, tmp_path):
    train_mlm(*words(trained, text_file, tmp_path / "more"), "--max_steps", "1", "--learning_rate", "0")
    more, first = results(tmp_path / "more")["masked_accuracy"], results(trained)["masked_accuracy"]
    assert more["before"] == more["after"] == first["after"]


def test_accumulated_batches_move_the_weights_as_one_batch_does(tiny_checkpoint, text_file, tmp_path):
    """Without dropout and with plain gradient descent, one step of 8 x 2 texts is near one step of 16."""
    moved = {}
    folder = tmp_path / "plain"
    config = BertConfig.from_pretrained(tiny_checkpoint, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(0)
    start = BertForMaskedLM(config)
    start.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(folder)
    for batch, accumulated in ((16, 1), (2, 8)):
        out = tmp_path / f"{batch}"
        sizes = ["--per_device_train_batch_size", str(batch), "--gradient_accumulation_steps", str(accumulated)]
        descent = ["--optim", "sgd", "--learning_rate", "0.1", "--max_grad_norm", "0", "--max_steps", "1"]
        train_mlm(*words(folder, text_file, out), *sizes, *descent)
        bias = BertForMaskedLM.from_pretrained(out).cls.predictions.bias - start.cls.predictions.bias
        moved[accumulated] = float(bias.detach().norm())
    assert moved[8] == pytest.approx(moved[1], rel=0.6)


class EvenTokensMasked(DataCollatorForLanguageModeling):
    """Masks the same tokens of a text in any batch, of some texts more than of others."""

    def torch_mask_tokens(self, inputs, special_tokens_mask=None, offset_mapping=None):
        is_masked = (inputs % 2 == 0) & ~special_tokens_mask.bool()
        labels = inputs.masked_fill(~is_masked, -100)
        return inputs.masked_fill(is_masked, self.tokenizer.mask_token_id), labels


@pytest.mark.parametrize("config_class", [BertConfig, ModernBertConfig])
def test_a_step_depends_on_its_tokens_and_not_on_its_batches(config_class, tiny_checkpoint, tmp_path, monkeypatch):
    """The plain Trainer takes 4 times larger steps here, or weighs a token by the rest of its batch."""
    monkeypatch.setattr(train_mlm_module, "DataCollatorForLanguageModeling", EvenTokensMasked)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "mlp_dropout")
    none = dict.fromkeys((*dropouts, "attention_dropout"), 0.0)
    ends = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    config = config_class(vocab_size=len(tokenizer), **sizes, **none, **ends)
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(random_texts(40, shortest=2, longest=12)))
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    trained = {}
    for batch, accumulated in ((8, 1), (2, 4)):
        out = tmp_path / f"{batch}"
        rows = ["--per_device_train_batch_size", str(batch), "--gradient_accumulation_steps", str(accumulated)]
        descent = ["--optim", "sgd", "--learning_rate", "0.1", "--max_grad_norm", "0", "--max_steps", "3"]
        train_mlm(*words(tmp_path / "start", text, out), *rows, *descent)
        trained[batch] = AutoModelForMaskedLM.from_pretrained(out).state_dict(), results(out)["training"]["mean_loss"]
    for name, expected in trained[8][0].items():
        torch.testing.assert_close(trained[2][0][name], expected, msg=name, rtol=1e-4, atol=1e-5)
    assert trained[2][1] == pytest.approx(trained[8][1], rel=1e-4)


def test_texts_are_read_from_tables_and_lines(tmp_path):
    table = tmp_path / "pairs.csv"
    write_csv(table, [{"a": "one", "b": "two", "label": 0}, {"a": "three", "b": "one", "label": 1}])
    lines = tmp_path / "lines.txt"
    lines.write_text("four\n\n  \ntwo\r\nfive\u2028six", encoding="utf-8")
    assert read_texts([table, lines], ["a", "b"]) == ["one", "three", "two", "four", "five\u2028six"]
    tabs = tmp_path / "pairs.tsv"
    tabs.write_text("a\tb\none\ttwo\nthree\tone\n", encoding="utf-8")
    assert read_texts([tabs], ["a"]) == ["one", "three"]


@pytest.mark.parametrize("num_texts", [2, 19, 20, 45])
def test_the_held_out_texts_are_a_twentieth(num_texts):
    texts = [str(number) for number in range(num_texts)]
    train, held_out = split_texts(texts, seed=3)
    assert len(held_out) == max(1, num_texts // 20)
    assert sorted(train + held_out) == sorted(texts)
    assert split_texts(texts, seed=3) == (train, held_out)


def test_the_held_out_texts_depend_on_the_seed():
    texts = [str(number) for number in range(200)]
    assert split_texts(texts, seed=1)[1] != split_texts(texts, seed=2)[1]


def test_truncated_texts_are_marked(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    encoded = encode_texts(["the cat sees", "the cat", "a dog sees a bird"], tokenizer, 5)
    assert encoded["is_cut"][:] == [False, False, True]
    assert max(map(len, encoded["input_ids"])) == 5


def test_the_most_frequent_token_may_be_an_unknown_word(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    encoded = encode_texts(["the zebra", "zebra cat", "zebra"], tokenizer, 8)
    assert most_frequent_token(encoded) == tokenizer.unk_token_id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--model": "no/such"}, "no/such"),
        ({"--model": "./missing"}, "there is no such folder"),
        ({"--train_file": "missing.txt"}, "there is no file missing.txt"),
        ({"--train_file": "missing.csv", "--text_columns": "a"}, "there is no file missing.csv"),
        ({"--text_columns": "a"}, "--text_columns is for tables"),
        ({"--max_length": "2"}, "must be at least 3 and at most 64"),
        ({"--max_length": "65"}, "must be at least 3 and at most 64"),
        ({"--mlm_probability": "0"}, "must be above 0 and below 1"),
        ({"--mlm_probability": "1e-9"}, "is masked"),
        ({"--seed": "-1"}, "--seed -1"),
        ({"--learning_rate": "nan"}, "--learning_rate nan"),
        ({"--per_device_train_batch_size": "0"}, "--per_device_train_batch_size 0"),
        ({"--resume_from_checkpoint": "missing"}, "there is no folder missing"),
        ({"--report_to": "nobody"}, "nobody"),
        ({"--txt": "x"}, "unknown option --txt"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(change, said, tiny_checkpoint, text_file, tmp_path):
    given = {
        "--model": tiny_checkpoint,
        "--train_file": text_file,
        "--output_dir": tmp_path / "out",
        "--report_to": "none",
    }
    options = {"--max_length": 20, "--disable_tqdm": "true", **given, **change}
    with pytest.raises(AlignAttnError) as caught:
        train_mlm(*(str(word) for pair in options.items() for word in pair))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_weights_that_would_be_unpickled_are_refused(tiny_checkpoint, text_file, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_checkpoint, folder)
    pickle_weights(folder)
    with pytest.raises(AlignAttnError, match="give a folder with weights as safetensors"):
        train_mlm(*words(folder, text_file, tmp_path / "out"))


def test_a_bad_table_is_named(tiny_checkpoint, tmp_path):
    table = tmp_path / "rows.jsonl"
    table.write_text('{"text": "the cat"}\n{"text": null}\n')
    start = words(tiny_checkpoint, table, tmp_path / "out")
    for more, said in (
        ([], "name its text columns with --text_columns (there: text)"),
        (["--text_columns", "txt"], "has no column 'txt' (there: text)"),
        (["--text_columns", "text"], "row 2 of"),
    ):
        with pytest.raises(AlignAttnError) as caught:
            train_mlm(*start, *more)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "0 distinct"), (b"one\none\n", "1 distinct"), (b"\xff\xfe\n\xff", "as text in UTF-8")]
)
def test_too_little_text_is_refused(content, said, tiny_checkpoint, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(content)
    with pytest.raises(AlignAttnError, match=said):
        train_mlm(*words(tiny_checkpoint, path, tmp_path / "out"))


def test_a_folder_with_a_model_is_not_overwritten(trained, tiny_checkpoint, text_file):
    before = (trained / "results.json").read_bytes()
    with pytest.raises(AlignAttnError, match=r"already holds results\.json"):
        train_mlm(*words(tiny_checkpoint, text_file, trained))
    with pytest.raises(AlignAttnError, match=r"already holds config\.json"):
        train_mlm(*words(tiny_checkpoint, text_file, tiny_checkpoint))
    assert (trained / "results.json").read_bytes() == before


def test_a_loss_that_is_not_finite_saves_nothing(tiny_checkpoint, text_file, tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(AlignAttnError, match="the loss is not finite"):
        train_mlm(*words(tiny_checkpoint, text_file, folder), "--learning_rate", "1e30", "--num_train_epochs", "2")
    assert not (folder / "results.json").exists()
    assert not (folder / "config.json").exists()
