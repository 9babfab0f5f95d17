"""Every command of the registry: its help and the answers to mistakes cost no heavy import."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from alignattn import __version__
from alignattn.cli import main
from alignattn.commands import COMMANDS, get_command
from alignattn.support.command import Command
from alignattn.support.command_line import read_words
from alignattn.support.options import options_of

HEAVY = ("torch", "transformers", "pandas", "numpy", "datasets", "pyarrow", "sklearn", "matplotlib")
MOST_LINES = 80
ROOT = Path(__file__).parents[2]

PROBE = """
import contextlib, io, json, sys
from alignattn.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([answers, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


def commands() -> list[Command]:
    rooms = [get_command(name) for name in COMMANDS]
    return [*rooms, *(other for room in rooms for other in room.subcommands.values())]


def mistakes(command: Command) -> list[list[str]]:
    """The command's words and a mistake of each kind."""
    words, known = command.name.split(), options_of(command.options).values()
    named = [entry.name for entry in known if not (entry.positional or entry.rest or entry.is_flag)]
    wrong = [[*words, f"--{name}", *value] for name in named[:1] for value in ((), ("",))]
    table = ["table1"] if any(entry.rest for entry in known) else []
    wrong.append([*words, *table, "--no_such_option", "1"])
    ranged = [entry for entry in known if entry.low > float("-inf") and not entry.rare]
    return wrong + [[*words, f"--{entry.name}", "-7"] for entry in ranged[:1]]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_help_and_mistakes_import_nothing_heavy(command: Command):
    words = command.name.split()
    has_rare = any(entry.rare for entry in options_of(command.options).values())
    helps, wrong = [[*words, flag] for flag in ("--help", "--help-all")[: 1 + has_rare]], mistakes(command)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([*helps, *wrong]), json.dumps(HEAVY)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    answers, heavy = json.loads(done.stdout)
    assert heavy == []
    for code, out, err in answers[: len(helps)]:
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: {command.prog}")
    for code, out, err in answers[len(helps) :]:
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert err.startswith("alignattn: ")


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_the_help_is_short_and_shows_examples(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "110")
    text = command.parser().format_help()
    assert len(text.splitlines()) < MOST_LINES
    assert command.help[1:] in text
    assert all(example in text for example in command.examples)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_examples_are_of_the_command_and_their_options_are_its_own(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for example in command.examples:
        words = shlex.split(example.partition(" > ")[0])[1:]
        selected, rest = get_command(words[0]).select(words[1:])
        assert selected is command
        assert read_words(command.options, rest, command.parser())


DOCUMENTED = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:python )?(?:alignattn|scripts/(?=\w+\.py)) *(.*)")


def documented() -> list[list[str]]:
    """The commands of the documentation, each one's words after `alignattn`."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"^```bash$(.*?)^```$", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        commands = filter(None, map(DOCUMENTED.match, lines))
        found += [shlex.split(command[1].replace(".py ", " "), comments=True) for command in commands]
    return [words for words in found if words]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_the_options_of_documented_commands_are_their_own(words: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    command, rest = get_command(words[0]).select(words[1:])
    if rest != ["--help"]:
        read_words(command.options, rest, command.parser())


def test_the_help_of_all_lists_the_commands_and_the_version_is_told(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and get_command(name).help in out for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"alignattn {__version__}\n"


def test_an_unknown_command_is_answered_by_the_one_that_is_meant(capsys):
    assert main(["finetun"]) == 2
    assert capsys.readouterr().err == "alignattn: unknown command 'finetun': did you mean 'finetune'?\n"


def test_an_unknown_subcommand_is_answered_by_the_one_that_is_meant(capsys):
    assert main(["robustness", "shwo"]) == 2
    assert "unknown command 'robustness shwo': did you mean 'show'?" in capsys.readouterr().err


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "alignattn", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"alignattn {__version__}\n"


def test_values_of_a_program_go_the_same_way_as_words():
    words = [
        "--model",
        "x",
        "--task",
        "mrpc",
        "--output_dir",
        "runs/x",
        "--learning_rate",
        "1e-3",
        "--layers",
        "0",
        "1",
    ]
    values = {"model": "x", "task": "mrpc", "output_dir": "runs/x", "learning_rate": 1e-3, "layers": [0, 1]}
    command = get_command("finetune")
    assert command.resolve(values) == command.parse(words)
    assert command.resolve(values).attention.alignment == "ct"
