"""What is said of words that a model from nothing does not know, and of texts that are one word for want of blanks."""

import pytest
from datasets import Dataset
from resumed import finetune

import alignattn
from alignattn.cli import main
from alignattn.models.words import build_tokenizer
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.truncation import count_unknown_rows, unknown_share

KNOWN, HALF, STRANGE = "the cat sees", "the zebra", "okapi zebra"
TOLD = "1 row(s) hold no word that the model knows"


def test_unknown_words_are_counted_by_word_and_by_row():
    tokenizer = build_tokenizer([KNOWN])
    texts = {"text": [KNOWN, HALF, STRANGE, ""]}
    encoded = Dataset.from_dict(dict(tokenizer(texts["text"])))
    split = EncodedSplit(Dataset.from_dict(texts), encoded, TaskOptions(max_length=8), tokenizer)
    assert unknown_share(split, tokenizer) == 3 / 7
    assert count_unknown_rows(split, tokenizer) == 1


@pytest.mark.parametrize(("dev", "said"), [(HALF, "validation: 50.0 % of the words are unknown"), (KNOWN, "")])
def test_a_run_and_its_predictions_say_it(dev, said, tmp_path, capsys, caplog):
    for name, text in (("train", KNOWN), ("dev", dev)):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{text},a\n{text},b\n")
    words = "--model cnn --text_columns text --model_config embedding_dim=4 hidden_dim=4 --num_train_epochs 1 "
    words += f"--train_file {tmp_path / 'train.csv'} --validation_file {tmp_path / 'dev.csv'}"
    finetune(words.split(), tmp_path / "run")
    told = capsys.readouterr().out
    assert said in told
    assert ("unknown" in told) == bool(said)
    for text in (HALF, STRANGE):
        assert main(["predict", "--run", str(tmp_path / "run"), "--text", text]) == 0
        assert (TOLD in capsys.readouterr().err) == (text == STRANGE)
    predictor = alignattn.load_run(tmp_path / "run")
    assert predictor.predict([KNOWN])
    assert TOLD not in caplog.text
    assert predictor.predict([KNOWN, STRANGE])
    assert TOLD in caplog.text


def test_a_tagger_says_that_a_text_without_blanks_is_one_word(tmp_path, capsys):
    path = tmp_path / "rows.conll"
    path.write_text("\n".join(f"{name} B-PER\n\u5728 O\n\u5317 B-LOC\n\u4eac I-LOC\n" for name in "\u5f20\u674e"))
    words = ["--train_file", str(path), "--validation_file", str(path), "--model", "transformer-crf"]
    sizes = "embedding_dim=8 hidden_dim=8 num_attention_heads=2 num_hidden_layers=1"
    finetune([*words, "--num_train_epochs", "1", "--model_config", *sizes.split()], tmp_path / "run")
    capsys.readouterr()
    for text in ("\u5f20\u5728\u5317\u4eac", "\u5f20 \u5728 \u5317 \u4eac"):
        assert main(["predict", "--run", str(tmp_path / "run"), "--text", text]) == 0
        told = capsys.readouterr().err
        assert ("1 row(s) are one word of several" in told) == (" " not in text)
        assert ("no word that the model knows" in told) == (" " not in text)
