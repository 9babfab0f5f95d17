"""Every command of the registry: its help and its errors need no heavy import."""

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from math import inf, isfinite, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from documentation import command_lines

from alignattn import __version__
from alignattn.cli import main
from alignattn.commands import COMMANDS, get_command
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import Option, options_of, read_words, resolve

HEAVY = ("torch", "transformers", "pandas", "numpy", "datasets", "pyarrow", "sklearn", "matplotlib")
MAX_LINES = 80
ROOT = Path(__file__).parents[2]

RUN = "finetune --model x --output_dir o"
MISTAKES = f"""
{RUN}
{RUN} --task bogus
{RUN} --task mrpc --text_columns a
{RUN} --task mrpc --logging_steps 1.5
{RUN} --task mrpc --alignment foo
{RUN} --task mrpc --model_config foo
{RUN} --task mrpc --model_config a=[
{RUN} --task mrpc --normalizer entmax --normalizer_options alpha=x
{RUN} --task mrpc --balance start --attention qvi
{RUN} --task mrpc --balance start --lora_r 2
{RUN} --train_file rows.csv
finetune --model da --output_dir o --task snli --attention aa-ct
predict --run x
predict --run x --file y --text z
predict --run x --text z
predict --run x --text z --output_file o.txt
predict --run x --text z --output_dir o
domain-shift --pair foo --model x --output_dir o
inspect --model x --task foo
inspect --model x --task mrpc --text_columns a
inspect --model x --validation_file texts.txt --text_columns a
robustness
robustness --model x
robustness --run x --synonyms foo
robustness --run x --neighbors a --word_vectors b
figure tsn --run x --output_file x.png
compare x
compare x y --names a
figure tsne --run x --output_file x.gif
reproduce tabel1
reproduce table1 --learning_rate -1
reproduce table1 --tasks foo
list foo
{RUN} --train_file nope.csv --text_columns a
{RUN} --task mrpc --data_dir nowhere
finetune --model x --task mrpc --output_dir mine.csv/below
finetune --model minilmm --task mrpc --output_dir o
finetune --model mine.csv --task mrpc --output_dir o
finetune --model da --task mrpc --output_dir o --embeddings nope
domain-shift --pair snli-mnli --model x --output_dir o --data_dir nowhere
inspect --model x --task mrpc --compare ./nowhere
inspect --model x --task mrpc --output_dir mine.csv
compare nowhere mine.csv
figure tsne --run nowhere --output_file x.png
figure tsne --run run --output_file mine.csv/x.png
robustness --run nowhere
robustness --run run --neighbors nope
robustness --run run --mlm nowhere
robustness --run run --nltk_data nowhere
robustness --run run --output_dir mine.csv
uncertainty --run nowhere
uncertainty --run run --output_dir mine.csv
calibrate nope.parquet
calibrate mine.csv --output_dir mine.csv
reproduce table1 --output_dir mine.csv
reproduce table1 --data_dir nowhere
"""
"""Mistakes that a command reports before it imports anything heavy."""

PROBE = """
import contextlib, io, json, sys
from alignattn.cli import main
found = {}
for name, lines in json.load(sys.stdin).items():
    answers = []
    for words in lines:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as ended:
                code = ended.code
        answers.append([code, out.getvalue(), err.getvalue()])
    found[name] = [answers, [module for module in sys.argv[1:] if module in sys.modules]]
print(json.dumps(found))
"""
FOREIGN = ("finetune", "domain-shift", "reproduce")
"""Commands that import transformers to list its options and to recognise unknown ones."""


def commands() -> list[Command]:
    return [get_command(name) for name in COMMANDS]


def mistakes(command: Command) -> list[list[str]]:
    """Command lines of a command, with a mistake of each kind."""
    words, known = command.name.split(), options_of(command.options).values()
    named = [entry.name for entry in known if not (entry.positional or entry.rest or entry.types[0] is bool)]
    wrong = [[*words, f"--{name}", *value] for name in named[:1] for value in ((), ("",))]
    table = ["table1"] if any(entry.rest for entry in known) else []
    if command.name not in FOREIGN:
        wrong.append([*words, *table, "--no_such_option", "1"])
    for line in filter(None, map(shlex.split, MISTAKES.splitlines())):
        wrong += [line] if line[0] == command.name else []
    return wrong


def outside(entry: Option) -> list[float]:
    """Numbers that an option refuses: beyond each of its limits, NaN, infinite, and too large for a float."""
    step = 1 if int in entry.types else 0.5
    beyond = [entry.low - step, entry.high + step, entry.above, entry.below]
    values = [number for number in beyond if isfinite(number) and number != entry.default]
    return [*values, nan, inf, -inf, 10**400]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_required_and_excluded_options_exist(command: Command):
    known = options_of(command.options)
    named = {other for entry in known.values() for other in (*entry.requires, *entry.excludes)}
    names = {other.partition("=")[0] for other in named}
    assert names <= {*known, *command.options.hidden}
    assert all(not value or value in known[name].choices for name, _, value in (one.partition("=") for one in named))


NUMERIC = [
    (command, entry)
    for command in commands()
    for entry in options_of(command.options).values()
    if {int, float} & set(entry.types) and not entry.choices
]


def limits(entry: Option) -> tuple[float, ...]:
    return (entry.low, entry.high, entry.above, entry.below)


def test_every_numeric_option_has_a_limit():
    assert [entry.name for _, entry in NUMERIC if not any(map(isfinite, limits(entry)))] == []


# One option for each way in which a number is checked.
KINDS = {
    (*entry.types, entry.is_list, entry.takes_none, *map(isfinite, limits(entry))): pytest.param(
        command, entry, id=f"{command.name} {entry.name}"
    )
    for command, entry in NUMERIC
}


@pytest.mark.parametrize(("command", "entry"), KINDS.values())
def test_numeric_options_refuse_values_outside_their_range(command: Command, entry: Option, tmp_path: Path):
    path = tmp_path / "options.yaml"
    for value in [*outside(entry), True, {}, *([] if entry.takes_none else [None])]:
        given = [value] if entry.is_list else value
        path.write_text(yaml.safe_dump({entry.name: given}))
        for give in (
            partial(resolve, command.options, {entry.name: given}),
            partial(command.parse, ["--config", str(path)]),
        ):
            with pytest.raises(AlignAttnError, match=f"--{entry.name}") as raised:
                give()
            assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outputs of each command for its help and its mistakes, and the heavy modules imported by then."""
    folder = tmp_path_factory.mktemp("answered")
    (folder / "mine.csv").write_text("a,label\n")
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text("model: x\ntask: mrpc\noutput_dir: run\n")
    (folder / "run" / "config.json").write_text('{"num_hidden_layers": 2, "num_attention_heads": 2}')
    lines = {command.name: [[*command.name.split(), "--help"], *mistakes(command)] for command in commands()}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *HEAVY],
        input=json.dumps(lines), check=True, capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == ["mine.csv", "run"]
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_help_and_mistakes_import_nothing_heavy(command: Command, answered: dict[str, Any]):
    answers, heavy = answered[command.name]
    assert heavy == []
    code, out, err = answers[0]
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {command.prog}")
    for code, out, err in answers[1:]:
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert err.startswith("alignattn: ")


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_the_help_is_short_and_shows_examples(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = command.parser().format_help()
    assert len(text.splitlines()) < MAX_LINES
    assert command.help[1:] in " ".join(text.split())
    assert all(example in text for example in command.examples)


@pytest.mark.parametrize("name", FOREIGN[:2])
def test_help_all_shows_the_options_of_transformers(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help-all"])
    assert "--adam_beta1 " in capsys.readouterr().out


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_examples_call_the_command_with_its_options(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    for example in command.examples:
        words = shlex.split(example.partition(" > ")[0])[1:]
        selected, rest = get_command(words[0]), words[1:]
        assert selected is command
        assert read_words(command.options, rest, command.parser())


SCRIPTS = "|".join(path.stem for path in (ROOT / "scripts").glob("*.py") if path.stem in COMMANDS)
DOCUMENTED = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:python )?(?:alignattn|scripts/(?=(?:{SCRIPTS})\.py)) *(.*)")


def documented() -> list[list[str]]:
    """The words after `alignattn` of each command in the documentation."""
    commands = filter(None, map(DOCUMENTED.match, command_lines()))
    found = [shlex.split(command[1].replace(".py ", " "), comments=True) for command in commands]
    return [words for words in found if words]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_documented_commands_use_only_their_options(words: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    command, rest = get_command(words[0]), words[1:]
    if "--config" in rest and rest[rest.index("--config") + 1].startswith("runs/"):
        # An earlier command of the page writes this file.
        rest = [word for word in rest if word != "--config" and not word.endswith("/config.yaml")]
    if rest != ["--help"]:
        read_words(command.options, rest, command.parser())


def test_main_prints_the_list_of_commands_and_the_version(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert all(f"  {name} " in out and get_command(name).help in " ".join(out.split()) for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"alignattn {__version__}\n"


def test_an_unknown_command_suggests_the_closest_one(capsys):
    assert main(["finetun"]) == 2
    assert capsys.readouterr().err == "alignattn: unknown command 'finetun': did you mean 'finetune'?\n"


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "alignattn", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"alignattn {__version__}\n"


def test_options_of_a_program_resolve_like_those_of_the_command_line():
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
    assert resolve(command.options, values) == command.parse(words)
    assert resolve(command.options, values).attention.alignment is None


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("finetune --bogus", "unknown option --bogus"),
        ("robustness --runs x", "--runs: did you mean 'run'?"),
        ("inspect --model minilmm --task mrpc", "no model of that name: did you mean 'minilm'?"),
        ("predict --task mrpc", "--task is an option of finetune, robustness,"),
        ("inspect --model minilm --validation_file .", ". is a folder, not a file: give another to --validation_file"),
    ],
)
def test_an_error_says_what_to_do(words: str, answer: str, capsys):
    assert main(words.split()) == 2
    assert answer in capsys.readouterr().err


def test_a_folder_suggests_a_file_in_it(tmp_path: Path, capsys):
    file = tmp_path / "seed-1" / "predictions.parquet"
    file.parent.mkdir()
    file.touch()
    assert main(["calibrate", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"{tmp_path} is a folder: give a file, such as {file}, to PREDICTIONS\n")


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_path_option_refuses_a_path_below_a_file(command: Command, tmp_path: Path):
    """A path below a file can be neither read nor written."""
    (tmp_path / "file").write_text("")
    for entry in options_of(command.options).values():
        if entry.is_path:
            assert entry.is_written or not entry.name.startswith("output")
            with pytest.raises(AlignAttnError, match=entry.label):
                entry.check_place(str(tmp_path / "file" / "below"))


def test_running_out_of_memory_is_one_line(monkeypatch, capsys):
    """As in the first step of a training with too large a batch."""
    command = SimpleNamespace(parse=lambda words: None, execute=lambda options: torch.empty(2**58))
    monkeypatch.setattr("alignattn.cli.get_command", lambda name: command)
    assert main(["finetune"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("alignattn: out of memory: lower --per_device_train_batch_size")


def draws(command: Command) -> bool:
    """Whether the code of a command writes pictures."""
    room = ROOT / "alignattn" / "commands" / command.run.split(".")[2].partition(":")[0]
    files = room.glob("*.py") if room.is_dir() else [room.with_suffix(".py")]
    return any("write_figure" in path.read_text() for path in files)


@pytest.mark.parametrize("command", [one for one in commands() if draws(one)], ids=lambda command: command.name)
def test_a_command_that_draws_says_at_once_that_matplotlib_is_missing(command: Command, without_matplotlib):
    # The error comes before any option is read.
    with pytest.raises(AlignAttnError, match=r"matplotlib.*alignattn\[plots\]"):
        command.execute(None)


def test_the_command_line_says_that_matplotlib_is_missing(without_matplotlib, tmp_path, capsys):
    assert main(["figure", "curves", "--run", str(tmp_path), "--output_file", str(tmp_path / "curves.png")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "matplotlib" in told
