"""Broken checkpoints are refused in one line by every loader; unusual ones are logged in one line and loaded."""

import json
import pickle
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import LOCAL_ATTACK, SPECIAL, WORDS, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertTokenizer

import alignattn
from alignattn.cli import main
from alignattn.patching.checkpoint_files import check_fills
from alignattn.patching.checkpoints import check_finite, load_pretrained
from alignattn.utils.errors import AlignAttnError

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def configure(**fields):
    def write(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return write


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut_weights(folder):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def spoil_weights(folder):
    weights = load_file(folder / WEIGHTS)
    weights["encoder.layer.0.output.dense.weight"][0, 0] = torch.nan
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def pickle_weights(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(print))


def remove_tokenizer(folder):
    for file in [*folder.glob("tokenizer*"), *folder.glob("vocab*")]:
        file.unlink()


def enlarge_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["walks"])
    tokenizer.save_pretrained(folder)


BROKEN_MODELS = {
    "config of albert": (
        configure(model_type="albert", embedding_size=24, architectures=None),
        "weights are not there or of another size",
    ),
    "config of roberta": (configure(model_type="roberta"), "is a BertModel, but its config.json says 'roberta'"),
    "more layers": (configure(num_hidden_layers=3), "weights are not there or of another size"),
    "another vocabulary": (configure(vocab_size=30), "weights are not there or of another size"),
    "no heads": (configure(num_attention_heads=0), "says num_attention_heads 0"),
    "a size of null": (configure(hidden_size=None), "says hidden_size None"),
    "config of null": (write("config.json", b"null"), "config.json holds no fields"),
    "a list as config": (write("config.json", b"[1]"), "cannot load the model"),
    "config cut": (write("config.json", b'{"model_type": "bert", "hid'), "cannot load the model"),
    "config nested": (write("config.json", b"[" * 100_000), "cannot load the model"),
    "config of bytes": (write("config.json", b"\xff\x00"), "cannot load the model"),
    "weights cut": (cut_weights, "cannot load the model"),
    "weights empty": (write(WEIGHTS, b""), "cannot load the model"),
    "weights of text": (write(WEIGHTS, b"no weights at all"), "cannot load the model"),
    "weights of an evil pickle": (pickle_weights, "cannot load the model"),
    "NaN": (spoil_weights, "1 weights that are not finite, such as"),
}
BROKEN_TOKENIZERS = {
    "no tokenizer": (remove_tokenizer, "has no tokenizer"),
    "a token without a row": (enlarge_tokenizer, "has more tokens than the model: token 25, and 25 rows"),
    "tokenizer of text": (write("tokenizer.json", b"words"), "cannot load the model"),
    "tokenizer of null": (write("tokenizer.json", b"null"), "cannot load the model"),
}
COMMANDS = {
    "finetune": "--model {model} --train_file {rows} --text_columns text --max_length 16 --output_dir {out}",
    "inspect": "--model {model} --validation_file {texts} --max_length 16 --output_dir {out}",
    "robustness": "--model {model} --task sst2 --data_dir {data} --output_dir {out} " + LOCAL_ATTACK,
}


def said(error):
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
@pytest.mark.parametrize("broken", BROKEN_MODELS)
def test_a_broken_model_is_refused_in_one_line(broken, auto_class, folder):
    break_it, words = BROKEN_MODELS[broken]
    break_it(folder)
    with pytest.raises(AlignAttnError) as error:
        alignattn.from_pretrained(folder, auto_class)
    assert words in said(error)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_one_byte_may_be_finite(dtype):
    # transformers builds such weights only from a quantised checkpoint, on a GPU.
    model = tiny_model("bert")
    weight = model.get_input_embeddings().weight
    weight.data = weight.data.to(dtype)
    check_finite("tiny", model)
    weight.data[3] = float("nan")
    with pytest.raises(AlignAttnError, match="1 weights that are not finite"):
        check_finite("tiny", model)


@pytest.mark.parametrize("broken", BROKEN_TOKENIZERS)
def test_a_broken_tokenizer_is_refused_in_one_line(broken, folder):
    break_it, words = BROKEN_TOKENIZERS[broken]
    break_it(folder)
    with pytest.raises(AlignAttnError) as error:
        load_pretrained(str(folder), AutoModel)
    assert words in said(error)


@pytest.mark.parametrize(
    ("command", "broken"),
    [(command, "config of albert") for command in COMMANDS] + [(command, "no tokenizer") for command in COMMANDS],
)
def test_every_command_refuses_a_broken_model(command, broken, folder, tmp_path, capsys):
    break_it, words = (BROKEN_MODELS | BROKEN_TOKENIZERS)[broken]
    rows, texts = tmp_path / "rows.csv", tmp_path / "texts.txt"
    rows.write_text("text,label\n" + "the cat sees,a\na dog runs,b\n" * 4)
    texts.write_text("".join(f"the {word} sees\n" for word in 9 * WORDS))
    (tmp_path / "glue/sst2").mkdir(parents=True)
    pq.write_table(pa.table({"sentence": ["the cat"], "label": [1]}), tmp_path / "glue/sst2/validation.parquet")
    if command == "robustness":
        tiny_model("bert", num_labels=2).save_pretrained(folder)
    break_it(folder)
    line = COMMANDS[command].format(model=folder, rows=rows, texts=texts, data=tmp_path, out=tmp_path / "out")
    assert main([*command.split(), *line.split()]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("alignattn: ")
    assert words in error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"no_such_option": 1}, "no_such_option"),
        ({"device_map": "xpu"}, "XPU"),
        ({"attn_implementation": "flash_attention_2"}, "FlashAttention2"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "optimum"),
        ({"dtype": "float33"}, "float33"),
        ({"num_labels": "three"}, "str"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("preset", ["aa-ct", "sparsemax"])
def test_errors_that_the_folder_does_not_cause_keep_their_reason(preset, options, said, tmp_path):
    """A missing package, a missing device or a wrong argument is not reported as damage of the checkpoint."""
    alignattn.patch(tiny_model("bert"), preset).save_pretrained(tmp_path)
    with pytest.raises(AlignAttnError) as error:
        alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification, **options)
    assert "damaged" not in str(error.value)
    assert said in str(error.value) or "torch.dtype" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("auto_class", [None, "BertModel", torch.nn.Linear])
def test_only_model_classes_are_accepted(auto_class, folder):
    with pytest.raises(AlignAttnError, match="cannot load a model"):
        alignattn.from_pretrained(folder, auto_class)


def test_a_truncated_weight_file_is_reported_as_damaged(folder):
    cut_weights(folder)
    with pytest.raises(AlignAttnError, match="damaged"):
        alignattn.from_pretrained(folder, AutoModel)


def said_of_weights(caplog):
    """Return the log lines except the one about a checkpoint without a patch."""
    return [message for message in caplog.messages if "names no patch" not in message]


def test_new_and_unused_weights_are_logged_in_one_line(folder, caplog):
    configure(num_hidden_layers=1)(folder)
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    (line,) = said_of_weights(caplog)
    assert "2 new weights are initialised (classifier.bias, classifier.weight)" in line
    assert "16 weights of the checkpoint are not used (encoder.layer.1.attention.output.LayerNorm.bias" in line
    saved = load_file(folder / WEIGHTS)["embeddings.word_embeddings.weight"]
    assert torch.equal(model.get_input_embeddings().weight, saved)


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
def test_a_complete_checkpoint_is_loaded_without_a_warning(auto_class, tmp_path, caplog):
    tiny_model("bert").save_pretrained(tmp_path)
    alignattn.from_pretrained(tmp_path, auto_class)
    assert not said_of_weights(caplog)


def test_no_bar_is_drawn_for_the_weights(tiny_checkpoint, capsys):
    load_pretrained(str(tiny_checkpoint), AutoModel)
    assert "Loading weights" not in capsys.readouterr().err


def test_a_head_of_another_size_is_new_if_the_caller_allows_it(folder, tmp_path):
    tiny_model("bert").save_pretrained(tmp_path / "three")
    with pytest.raises(AlignAttnError, match=r"2 weights are not there or of another size, such as classifier\.bias"):
        alignattn.from_pretrained(tmp_path / "three", AutoModelForSequenceClassification, num_labels=2)
    model = alignattn.from_pretrained(
        tmp_path / "three", AutoModelForSequenceClassification, num_labels=2, ignore_mismatched_sizes=True
    )
    assert model.classifier.weight.shape[0] == 2


def test_a_padded_vocabulary_and_a_missing_pooler_are_accepted(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL + WORDS))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    tiny_model("bert").save_pretrained(tmp_path)  # of 50 rows
    weights = {name: values for name, values in load_file(tmp_path / WEIGHTS).items() if "pooler" not in name}
    save_file(weights, tmp_path / WEIGHTS, {"format": "pt"})
    model, tokenizer = load_pretrained(str(tmp_path), AutoModelForSequenceClassification)
    assert len(tokenizer) < model.config.vocab_size


def test_a_quantised_checkpoint_holds_several_weights_in_a_byte(tmp_path):
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(100_000_000)
    config = BertConfig(vocab_size=2_000_000, hidden_size=128, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(AlignAttnError, match="does not match its weights"):
        check_fills("it", str(tmp_path), AutoModel, config, {})
    config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    check_fills("it", str(tmp_path), AutoModel, config, {})
