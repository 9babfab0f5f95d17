"""Options: each way in which one is given, and each mistake, told in one line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from alignattn.utils.command_line import build_parser, read_words
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, option
from alignattn.utils.options import Options, options_of, resolve, values_of


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    rows: int = option(8, "Rows.", low=1, asked_as={"batch_size": "called --rows here"})
    columns: tuple[str, ...] | None = option(None, "Columns.")


@dataclass(frozen=True, kw_only=True)
class ExampleOptions(Options):
    rows: RowOptions
    files: tuple[str, ...] = option(REQUIRED, "Files.", positional=True, metavar="FILES")
    rate: float | None = option(None, "Rate.", above=0, below=1)
    seeds: tuple[int, ...] | None = option(None, "Seeds.", low=0, distinct="seed")
    fast: bool = option(False, "Fast.")
    pinned: bool = option(True, "Pinned.")
    device: str = option("cpu", "Device.", choices=("cpu", "cuda"))
    save: str = option("epoch", "Save.", choices=("no", "epoch"))
    more: dict[str, Any] | str | None = option(None, "More.", rare=True)


def parse(words: str) -> ExampleOptions:
    return resolve(ExampleOptions, read_words(ExampleOptions, words.split(), build_parser(ExampleOptions, "example")))


def test_values_are_of_the_type_of_their_option():
    options = parse("a b --rows 3 --columns x y --rate 1e-1 --seeds 1 2 --fast --device cuda --no_pinned")
    assert values_of(options) == {
        "files": ("a", "b"), "rows": 3, "columns": ("x", "y"), "rate": 0.1, "seeds": (1, 2), "fast": True,
        "pinned": False, "device": "cuda", "save": "epoch", "more": None,
    }  # fmt: skip
    assert options.rows.rows == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fast a", True),
        ("--fast true a", True),
        ("--fast=no a", False),
        ("a --fast", True),
        ("a --fast 0", False),
        ("a", False),
    ],
)
def test_a_yes_or_no_takes_a_value_or_none(words, expected):
    options = parse(words)
    assert (options.files, options.fast) == (("a",), expected)


def test_hyphens_and_underscores_are_one():
    assert parse("a --no-pinned").pinned is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: give FILES"),
        ("a --rate", "argument --rate: expected one argument (see example --help-all)"),
        ("a --rate much", "argument --rate: invalid float value: 'much'"),
        ("a --rate 1", "--rate 1.0 must lie between 0 and 1"),
        ("a --rate nan", "--rate nan must lie between 0 and 1"),
        ("a --rows 0", "--rows 0 must be at least 1"),
        ("a --seeds 1 -1", "--seeds -1 must be at least 0"),
        ("a --seeds 1 1", "--seeds 1 1 names a seed twice"),
        ("a --device tpu", "argument --device: invalid choice: 'tpu': choose one of cpu, cuda"),
        ("a --devise cpu", "unrecognized arguments: --devise: did you mean '--device'? (see example --help-all)"),
        ("--devise cpu", "unrecognized arguments: --devise: did you mean '--device'? (see example --help-all)"),
        ("a --batch_size=3", "--batch_size is called --rows here"),
        ("a --config nowhere.yaml", "there is no file nowhere.yaml: give a YAML file to --config"),
    ],
)
def test_a_mistake_is_one_line(words, message):
    with pytest.raises(AlignAttnError) as raised:
        parse(words)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_file_stands_under_the_command_line(tmp_path: Path):
    path = tmp_path / "options.yaml"
    path.write_text("files: [a]\nrate: 2e-1\nrows: 5\nseeds: 4\nfast: true\nsave: no\n")
    options = parse(f"--config {path} --fast no")
    assert (options.files, options.rate, options.rows.rows) == (("a",), 0.2, 5)
    assert (options.seeds, options.fast, options.save) == ((4,), False, "no")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"row": 1}, "unknown option 'row': did you mean 'rows'?"),
        ({"batch_size": 1}, "--batch_size is called --rows here"),
        ({"rows": None}, "argument --rows: invalid int value: None"),
        ({"rows": True}, "argument --rows: invalid int value: True"),
        ({"files": [""]}, "FILES is empty: give a value"),
        ({"columns": ["a", ""]}, "a value of --columns is empty: give a value, or leave it out"),
    ],
)
def test_a_wrong_value_of_a_program_is_refused_too(values, message):
    with pytest.raises(AlignAttnError) as raised:
        resolve(ExampleOptions, {"files": ["a"], **values})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rows", 3, 3),
        ("files", Path("a"), ("a",)),
        ("rate", 0.5, 0.5),
        ("more", {"a": 1}, {"a": 1}),
        ("more", '{"a": 1}', '{"a": 1}'),
        ("rate", None, None),
    ],
)
def test_typed_values_are_taken_as_they_are(name: str, value: Any, expected: Any):
    options = resolve(ExampleOptions, {"files": ["a"], name: value})
    assert values_of(options)[name] == expected


def test_an_object_made_directly_is_judged_as_well():
    with pytest.raises(AlignAttnError, match="--rows 0 must be at least 1"):
        RowOptions(rows=0)


def test_the_help_shows_rare_options_only_when_it_is_asked_to(capsys):
    parser = build_parser(ExampleOptions, "example", examples=["example a"])
    short, whole = parser.format_help(), build_parser(ExampleOptions, "example", everything=True).format_help()
    assert "--more" not in short
    assert "--more" in whole
    named = [known.name for known in options_of(ExampleOptions).values() if not (known.positional or known.rare)]
    assert all(f"--{name}" in short for name in named)
    assert "(default: 8)" in short
    assert "example a" in short
    assert "num_rows" not in whole


@pytest.mark.parametrize("text", ["a\0b", "caf\udce9"])
def test_a_text_that_no_file_can_hold_is_refused(text: str) -> None:
    with pytest.raises(AlignAttnError, match="holds a character that no file can hold") as error:
        resolve(ExampleOptions, {"files": [text]})
    assert error.value.args[0].isprintable()
