"""A command: its name, its options, and the place of its function."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from alignattn.utils.command_line import OneLineErrorParser, build_parser, read_words
from alignattn.utils.errors import AlignAttnError, check_installed, did_you_mean
from alignattn.utils.library_bars import without_library_bars
from alignattn.utils.options import Options, resolve, values_of

OUTPUT_DIR = "output_dir"
"""The option of every command that writes a folder."""


@dataclass(frozen=True)
class TableResults:
    """How the results of a command fill tables.

    Attributes:
        reader: "module:class" of the `ResultReader` that reads them.
        needs: the command on whose result it works, or None.
        withheld: its options that no table gives: those that say what it works on and how it goes on.
        has_seeds: whether a run has a seed of its own; otherwise one run fills each cell, or one per run that it needs.
    """

    reader: str
    needs: str | None = None
    withheld: Sequence[str] = ()
    has_seeds: bool = True


@dataclass(frozen=True)
class Command:
    """A command, which costs nothing to import: what runs it is imported when it runs.

    A command line and a program go the same way: `execute(parse(words))`, `execute(resolve(values))`.

    Attributes:
        name: its word or words after `alignattn`.
        help: one line.
        options: dataclass of its options.
        run: "module:function" of what takes them.
        examples: whole command lines.
        subcommands: by their own word.
        results: how its results fill tables; None if they fill none.
        shares_folder: whether several calls may write to one `output_dir` at a time, which its function then sees to.
        draws: whether it draws pictures, for which matplotlib must be installed.
    """

    name: str
    help: str
    options: type[Options]
    run: str
    examples: Sequence[str] = ()
    subcommands: Mapping[str, "Command"] = field(default_factory=dict)
    results: TableResults | None = None
    shares_folder: bool = False
    draws: bool = False

    @property
    def prog(self) -> str:
        """Its words on a command line."""
        return f"alignattn {self.name}"

    def select(self, words: Sequence[str]) -> "tuple[Command, Sequence[str]]":
        """Return the command or subcommand that the words after this one's name call, and the words left for it."""
        if not self.subcommands or not words or words[0].startswith("-"):
            return self, words
        if words[0] not in self.subcommands:
            hint = did_you_mean(words[0], self.subcommands)
            raise AlignAttnError(f"unknown command {f'{self.name} {words[0]}'!r}{hint} (see --help)")
        return self.subcommands[words[0]].select(words[1:])

    def parser(self, *, everything: bool = False) -> OneLineErrorParser:
        """Return the parser of its options, whose help shows those in daily use, or everything."""
        others = [f"  {other.prog}: {other.help}" for other in self.subcommands.values()]
        examples = [f"  {example}" for example in self.examples]
        epilog = "\n".join([*(["commands:", *others, ""] if others else []), "examples:", *examples])
        description = f"{self.help[0].upper()}{self.help[1:]}."
        return build_parser(self.options, self.prog, description=description, epilog=epilog, everything=everything)

    def parse(self, words: Sequence[str]) -> Any:
        """Return the options that words give."""
        return self.resolve(read_words(self.options, words, self.parser()))

    def resolve(self, values: Mapping[str, Any]) -> Any:
        """Return the options that values by name make: one frozen object, the command's `options`."""
        return resolve(self.options, values)

    def check_packages(self) -> None:
        """Check that what it needs is installed; raises `AlignAttnError` if it is not."""
        if self.draws:
            check_installed("matplotlib", "plots", f"`{self.prog}`")

    def execute(self, options: Any) -> Any:
        """Run the command with its options, and return what it returns."""
        self.check_packages()
        options.check_places()
        # It takes a tenth of a second, for which no help waits.
        from alignattn.utils.folder_lock import folder_lock

        folder = values_of(options).get(OUTPUT_DIR)
        function = self.function
        alone = nullcontext() if folder is None or self.shares_folder else folder_lock(Path(folder))
        with alone, without_library_bars():
            return function(options)

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function that runs it."""
        function: Callable[[Any], Any] = imported(self.run)
        return function


def imported(place: str) -> Any:
    """Return the object of "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
