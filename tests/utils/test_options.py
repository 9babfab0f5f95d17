"""Options: each way to give one, and the one-line message for each kind of mistake."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_yaml
from alignattn.utils.options import (
    REQUIRED,
    NamedValue,
    OneLineErrorParser,
    Options,
    build_parser,
    option,
    options_of,
    read_words,
    resolve,
    values_of,
)


def parser_of_another_library(ours: Collection[str]) -> OneLineErrorParser:
    parser = OneLineErrorParser(add_help=False)
    parser.add_argument("--beta", type=float, default=0.9)
    return parser


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    other_parser: ClassVar = f"{__name__}:parser_of_another_library"
    transformers: Mapping[str, Any] = field(default_factory=dict)
    rows: int = option(8, "Rows.", low=1)
    columns: tuple[str, ...] | None = option(None, "Columns.", requires=("device=cuda", "seeds"))
    secret: str | None = option(None, "Hidden below.")


@dataclass(frozen=True, kw_only=True)
class ExampleOptions(Options):
    hidden: ClassVar = ("secret",)
    group: RowOptions
    files: tuple[str, ...] = option(REQUIRED, "Files.", positional=True, metavar="FILES")
    rate: float | None = option(None, "Rate.", above=0, below=1, excludes={"columns": "each says how much"})
    seeds: tuple[int, ...] | None = option(None, "Seeds.", low=0, distinct="seed")
    fast: bool = option(False, "Fast.")
    device: str = option("cpu", "Device.", choices=("cpu", "cuda"))
    save: str = option("epoch", "Save.", choices=("no", "epoch"))
    fields: tuple[NamedValue, ...] | None = option(None, "Fields.")
    more: int | str | None = option(None, "More.", rare=True)


def parse(words: str) -> ExampleOptions:
    return resolve(ExampleOptions, read_words(ExampleOptions, words.split(), build_parser(ExampleOptions, "example")))


def test_values_have_the_type_of_their_option():
    options = parse("a b --rows 3 --seeds 1 2 --columns x y --fast --device=cuda --more 1 --beta 0.5")
    assert values_of(options) == {
        "files": ("a", "b"), "rows": 3, "columns": ("x", "y"), "rate": None, "seeds": (1, 2), "fast": True,
        "device": "cuda", "save": "epoch", "more": 1, "beta": 0.5, "secret": None, "fields": None,
    }  # fmt: skip
    assert options.group.transformers == {"beta": 0.5}


@pytest.mark.parametrize(
    ("words", "expected"),
    [("--fast a", True), ("--fast true a", True), ("--fast=no a", False), ("a --fast 0", False), ("a", False)],
)
def test_a_boolean_option_may_have_a_value(words: str, expected: bool):
    options = parse(words)
    assert (options.files, options.fast) == (("a",), expected)


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        ("", "FILES"),
        ("a --rate", "--rate: expected one argument"),
        ("a --rate much", "--rate 'much'"),
        ("a --rate 1", "--rate 1.0 must be above 0 and below 1"),
        ("a --rate nan", "--rate nan must be finite"),
        ("a --seeds 1 -1", "--seeds -1 must be at least 0"),
        ("a --seeds 1 1", "--seeds 1 1 contains a seed twice"),
        ("a --seeds 1 --rate 0.5 --seeds 2", "--seeds is given twice"),
        ("a --device tpu", "--device 'tpu': choose one of cpu, cuda"),
        ("a --devise cpu", "--devise: did you mean 'device'?"),
        ("a --fa", "unknown option --fa"),
        ("a --secret x", "unknown option --secret"),
        ("a --beta much", "--beta: invalid float value: 'much'"),
        ("a --beta", "--beta: expected one argument"),
        ("a --columns x", "--columns needs --device cuda or --seeds"),
        ("a --columns x --seeds 1 --rate 0.5", "--rate does not go with --columns: each says how much"),
        ("a --config nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_a_mistake_is_refused_in_one_line(words: str, culprit: str):
    with pytest.raises(AlignAttnError) as raised:
        parse(words)
    assert culprit in str(raised.value)
    assert "\n" not in str(raised.value)


def test_named_values_may_be_given_one_at_a_time():
    assert parse("a --fields b=1 --fields c=2 d=3").fields == ("b=1", "c=2", "d=3")


def test_a_text_that_starts_with_a_dash_stays_as_it_is():
    texts = ["-- a well-known text", "--no-one said=it", "-"]
    words = ["a", "--seeds", "1", "--columns", *texts]
    assert read_words(ExampleOptions, words, build_parser(ExampleOptions, "example"))["columns"] == texts


def test_the_command_line_overrides_a_file(tmp_path: Path):
    path = tmp_path / "options.yaml"
    path.write_text("files: [a]\nrate: 2e-1\nrows: 5\nseeds: 4\nfast: true\nsave: no\nbeta: 0.1\n")
    options = parse(f"--config {path} --fast no")
    assert (options.files, options.rate, options.group.rows) == (("a",), 0.2, 5)
    assert (options.seeds, options.fast, options.save) == ((4,), False, "no")
    assert options.group.transformers == {"beta": 0.1}


def test_named_values_are_merged_with_those_of_a_file(tmp_path: Path):
    path = tmp_path / "options.yaml"
    path.write_text("files: [a]\nfields: [a=1, b=2]\n")
    assert parse(f"--config {path} --fields b=3 c=4").fields == ("a=1", "b=3", "c=4")
    assert parse(f"--config {path} --fields b=").fields == ("a=1",)


def test_merged_values_of_a_file_may_be_overridden(tmp_path: Path):
    path = tmp_path / "options.yaml"
    path.write_text("files: [a]\nmore: {own: &own {<<: &base {a: 1}, a: 2}, c: {<<: *base, <<: *own, 1: 3, '1': 4}}")
    assert read_yaml(path)["more"] == {"own": {"a": 2}, "c": {"a": 2, 1: 3, "1": 4}}


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("rows: 0", "--rows 0"),
        ("row: 1", "--row: did you mean 'rows'?"),
        ("beta: null", "--beta None: give a value, or leave it out"),
        ("columns: [yes, b]", "--columns True: give a text, in quotes"),
        ("rows: 1\nfast: true\n'rows': 2", "line 3 has rows a second time: keep one"),
        ("more: {a: 1, b: {c: 1, c: 1}}", "line 1 has c a second time: keep one"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(text: str, culprit: str, tmp_path: Path):
    path = tmp_path / "options.yaml"
    path.write_text(text)
    with pytest.raises(AlignAttnError) as raised:
        parse(f"a --config {path}")
    assert str(path) in str(raised.value)
    assert culprit in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("files", Path("a"), ("a",)),
        ("rate", 0.5, 0.5),
        ("rate", None, None),
        ("more", "1", 1),
        ("more", "a.json", "a.json"),
        ("beta", 1, 1.0),
        ("beta", -0.5, -0.5),
    ],
)
def test_typed_values_are_accepted(name: str, value: Any, expected: Any):
    assert values_of(resolve(ExampleOptions, {"files": ["a"], name: value}))[name] == expected


@pytest.mark.parametrize(
    ("name", "value"), [("row", 1), ("rows", None), ("rows", True), ("files", [""]), ("files", ["a\0b", "caf\udce9"])]
)
def test_wrong_typed_values_are_refused(name: str, value: Any):
    with pytest.raises(AlignAttnError) as raised:
        resolve(ExampleOptions, {"files": ["a"], name: value})
    assert name.upper() in str(raised.value).upper()
    assert str(raised.value).isprintable()


def test_our_own_options_are_checked_before_another_library_is_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("alignattn.utils.options._other_parser", lambda options: pytest.fail("imported"))
    with pytest.raises(AlignAttnError, match="--rate"):
        resolve(ExampleOptions, {"files": ["a"], "seeds": 1, "columns": "x", "rate": 0.5, "beta": 0.5})


def test_an_object_created_directly_is_checked():
    with pytest.raises(AlignAttnError, match="--rows 0 must be at least 1"):
        RowOptions(rows=0)


def test_the_help_shows_rare_options_only_on_request():
    short = build_parser(ExampleOptions, "example").format_help()
    whole = build_parser(ExampleOptions, "example", everything=True).format_help()
    assert "--more" not in short
    assert "--more" in whole
    shown = [known for known in options_of(ExampleOptions).values() if not known.rare]
    assert all(known.usage in short for known in shown)
    assert "(default: 8)" in short
