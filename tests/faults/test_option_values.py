"""Each option of each command, given in each way, with unsuitable values: they are accepted, or refused in one line."""

import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from damage import LARGEST, texts, values
from hypothesis import given, settings
from hypothesis import strategies as st

from alignattn.commands import COMMANDS, get_command
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import REQUIRED, Option, Options, options_of

EXAMPLES = 10
"""Examples per option."""

MAX_LINE = 2000
"""Characters of a message."""

LONG_NAME = 300
"""Characters of a file's name; file systems hold at most 255."""

REQUIRED_VALUES = {"output_dir": "out", "model": "none", "task": "mrpc", "pair": "snli-mnli", "table": "table1"}
"""Values of required options; for the other required options any text is enough."""

objects = values | st.sampled_from((b"bytes", {1: 2}, {None: [{}]}, set(), 1j)) | st.dates()
"""Values from a YAML file or a program."""


def near(option: Option) -> st.SearchStrategy[Any]:
    """Return values at the limits of an option, and texts that resemble its choices."""
    limits = [limit for limit in (option.low, option.high, option.above, option.below) if abs(limit) < LARGEST]
    beyond = [limit + step for limit in limits for step in (-1, 0, 1, -1e-9, 1e-9)]
    choices = [str(choice).upper() for choice in option.choices] + [f"{choice} " for choice in option.choices]
    return st.sampled_from([*beyond, *choices, *map(str, beyond)]) if beyond or choices else texts


def all_commands() -> list[Command]:
    return [get_command(name) for name in COMMANDS]


def kind_of(option: Option) -> tuple[Any, ...]:
    """Return what decides how a value of an option is read and checked."""
    limits = (option.low, option.high, option.above, option.below)
    given = (option.is_list, option.takes_none, option.positional, option.rest, option.default is REQUIRED)
    checks = (bool(option.choices), bool(option.endings), bool(option.distinct), option.place)
    return (tuple(option.types), tuple(abs(limit) < LARGEST for limit in limits), given, checks)


FIRST_OF = {
    kind_of(option): (command, option)
    for command in all_commands()[::-1]
    for option in options_of(command.options).values()
}
"""One option of each kind."""
OPTIONS = [pytest.param(command, option, id=f"{command.name} {option.name}") for command, option in FIRST_OF.values()]


def assert_accepted_or_one_line(give: Any) -> None:
    try:
        assert isinstance(give(), Options)
    except AlignAttnError as error:
        message = str(error)
        assert message.strip()
        assert len(message.splitlines()) == 1, message
        assert len(message) < MAX_LINE, message[:MAX_LINE]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_value_is_accepted_or_refused_in_one_line(command: Command, option: Option, trying: Any, tmp_path: Path):
    others = {
        name: REQUIRED_VALUES.get(name, "x")
        for name, known in options_of(command.options).items()
        if known.default is REQUIRED and name != option.name
    }
    path = tmp_path / "options.yaml"

    @settings(max_examples=EXAMPLES)
    @given(st.one_of(texts, objects, near(option)))
    def give(value: Any) -> None:
        with trying("an option, given by a program"):
            assert_accepted_or_one_line(lambda: command.resolve({**others, option.name: value}))
        if isinstance(value, str):
            words = [value] if option.positional else [f"--{option.name}", value]
            rest = [word for name, other in others.items() for word in (f"--{name}", other)]
            if not option.rest:
                with trying("an option, given in words"):
                    assert_accepted_or_one_line(lambda: command.parse([*words, *rest]))
        try:
            content = yaml.safe_dump({**others, option.name: value})
        except yaml.YAMLError:
            return
        path.write_text(content, encoding="utf-8", errors="surrogatepass")
        with trying("an option, given in a file"):
            assert_accepted_or_one_line(lambda: command.parse(["--config", str(path)]))

    give()


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.name)
def test_words_in_any_order_are_accepted_or_refused_in_one_line(command: Command, trying: Any):
    names = [f"--{name}" for name in options_of(command.options)]
    words = st.sampled_from(names) | texts | st.text(string.printable, max_size=8)

    @settings(max_examples=4 * EXAMPLES)
    @given(st.lists(words, max_size=8))
    def give(line: list[str]) -> None:
        with trying("a line of words"):
            assert_accepted_or_one_line(lambda: command.parse(line))

    give()


@pytest.mark.parametrize(("command", "option"), [("finetune", "train_file"), ("calibrate", "run"), ("predict", "file")])
def test_a_path_that_is_too_long_is_refused_in_one_line(command: str, option: str):
    with pytest.raises(AlignAttnError, match=r"cannot use '99.*…: File name too long"):
        get_command(command).resolve({"model": "none", "output_dir": "out", "run": "x", option: "9" * LONG_NAME})
