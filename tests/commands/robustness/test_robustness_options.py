"""Invalid options of `alignattn robustness`: one line before anything is read; and the help.

Nothing here needs TextAttack or any data: the options are refused before either is needed.
"""

import re

import pytest

from alignattn.cli import main
from alignattn.commands import COMMANDS
from alignattn.commands.robustness import RobustnessOptions
from alignattn.utils.errors import AlignAttnError

ATTACK = "--run missing"
ATTACK_PATHS = ("model", "data_dir", "word_vectors", "neighbors", "sentence_encoder", "mlm", "nltk_data", "output_dir")
TWO_DEFAULTS = re.compile(r"\(default[^()]*(\([^()]*\)[^()]*)*\)\.? \(default:")


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


@pytest.mark.parametrize("option", ["num_examples", "max_length", "batch_size"])
@pytest.mark.parametrize("number", [0, -3])
def test_a_number_below_one_is_refused_at_once(option, number, empty_folder, capsys):
    words = f"robustness {ATTACK} --{option} {number}".split()
    assert refusal(words, capsys) == f"--{option} {number} must be at least 1"
    assert not list(empty_folder.iterdir())


def test_num_examples_replaces_max_eval_samples_for_attacks(empty_folder, capsys):
    assert "--max_eval_samples" in refusal(f"robustness {ATTACK} --max_eval_samples 4".split(), capsys)
    words = "reproduce table3 --tasks rte --num_seeds 1 --max_eval_samples 9 --num_examples 4 --dry_run"
    assert main(words.split()) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_states_each_default_once_and_never_none(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--config" in text
    assert TWO_DEFAULTS.search(text) is None
    assert "(default: None)" not in text


def test_the_help_states_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["robustness", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Seed of the attacks. (default: 42)" in text
    assert "Attacks. (default: textfooler textbugger bae)" in text
    assert "Maximum tokens per row (default: the run's, or the model's, 512)." in text


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
