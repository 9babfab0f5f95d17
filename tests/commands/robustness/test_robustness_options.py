"""Invalid options of `alignattn robustness`: one line before anything is read.

Nothing here needs TextAttack or any data: the options are refused before either is needed.
"""

import pytest

from alignattn.cli import main
from alignattn.commands.robustness import RobustnessOptions
from alignattn.utils.errors import AlignAttnError

ATTACK = "--run missing"
ATTACK_PATHS = ("model", "data_dir", "word_vectors", "neighbors", "sentence_encoder", "mlm", "nltk_data", "output_dir")


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """The working directory, where a command would write to an empty path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(words, capsys):
    capsys.readouterr()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("alignattn: ")


@pytest.mark.parametrize("option", ["run", *ATTACK_PATHS])
def test_an_empty_value_of_an_attack_is_refused_at_once(option, empty_folder, capsys):
    words = ["robustness", *(ATTACK.split() if option != "run" else ())]
    expected = f"--{option} is empty: give a value, or leave it out"
    assert refusal([*words, f"--{option}", ""], capsys) == expected
    assert refusal([*words, f"--{option}="], capsys) == expected
    assert not list(empty_folder.iterdir())


def test_an_empty_value_of_a_config_file_is_refused_too(empty_folder, capsys):
    words = ["finetune", "--model", "missing", "--task", "sst2", "--output_dir", "out", "--config"]
    assert refusal([*words, ""], capsys) == "--config is empty: give a value, or leave it out"
    config = empty_folder / "config.yaml"
    config.write_text("data_dir: ''\n")
    assert refusal([*words, str(config)], capsys) == f"{config}: --data_dir is empty: give a value, or leave it out"


@pytest.mark.parametrize("option", ["word_vectors", "neighbors", "mlm"])
def test_an_empty_path_given_in_python_raises_a_user_error(option):
    with pytest.raises(AlignAttnError, match=f"--{option}"):
        RobustnessOptions(run=("missing",), **{option: ""}).resources()


def test_num_examples_replaces_max_eval_samples_for_attacks(empty_folder, capsys):
    assert "--max_eval_samples" in refusal(f"robustness {ATTACK} --max_eval_samples 4".split(), capsys)
    words = "reproduce table3 --tasks rte --num_seeds 1 --max_eval_samples 9 --num_examples 4 --dry_run"
    assert main(words.split()) == 0


@pytest.mark.parametrize(
    ("recipe", "given", "remedy"),
    [
        ("textfooler", {}, "--word_vectors, --neighbors or --synonyms"),
        ("textbugger", {"synonyms": "wordnet"}, "--sentence_encoder"),
        ("bae", {"sentence_encoder": "minilm"}, "--mlm"),
    ],
)
def test_without_a_network_a_missing_resource_is_refused_at_once(recipe, given, remedy, empty_folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_folder))
    monkeypatch.delenv("TFHUB_CACHE_DIR", raising=False)
    options = RobustnessOptions(run=("missing",), recipes=(recipe,), **given)
    with pytest.raises(AlignAttnError, match=f"out of reach .* give {remedy}"):
        options.resources()
