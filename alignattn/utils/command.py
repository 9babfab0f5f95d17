"""A command: its name, its options, and the function that runs it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from alignattn.utils.console import without_library_bars
from alignattn.utils.errors import AlignAttnError, check_installed, reason_of
from alignattn.utils.options import OneLineErrorParser, Options, build_parser, read_words, resolve, values_of
from alignattn.utils.paths import folder_lock

OUTPUT_DIR = "output_dir"
"""The option of every command that writes a folder."""


@dataclass(frozen=True)
class TableResults:
    """How the results of a command fill tables.

    Attributes:
        file: the JSON file, written last, whose numbers the paths of a table address.
        needs: the command whose run it works on, or None; each run of a command without it has its own seed.
        needs_saved_model: whether the saved model alone must predict as that run did.
        withheld: options that a table cannot set, such as the input, the seeds and how to resume.
        check_folder: "module:function" that refuses an output folder of another run than that of the options; empty if
            the command itself does when it runs.
    """

    file: str = "results.json"
    needs: str | None = None
    needs_saved_model: bool = False
    withheld: Sequence[str] = ()
    check_folder: str = ""


@dataclass(frozen=True)
class Command:
    """A command; its function is imported when it runs, so that a declaration imports nothing heavy.

    A command line and a program run it in the same way: `execute(parse(words))`, `execute(resolve(values))`.

    Attributes:
        name: the word after `alignattn`.
        help: one line.
        options: the dataclass of its options.
        run: "module:function" of the function, which is called with the options.
        examples: whole command lines.
        results: how its results fill tables; None if they fill none.
        shares_folder: whether several calls may write to one `output_dir` at a time; its function then coordinates
            them.
        draws: whether it draws pictures, which needs matplotlib.
    """

    name: str
    help: str
    options: type[Options]
    run: str
    examples: Sequence[str] = ()
    results: TableResults | None = None
    shares_folder: bool = False
    draws: bool = False

    @property
    def prog(self) -> str:
        """The words that call it on a command line."""
        return f"alignattn {self.name}"

    def parser(self, *, everything: bool = False) -> OneLineErrorParser:
        """Return the parser of its options; its help shows the common options, or all with `everything`."""
        epilog = "\n".join(["examples:", *(f"  {example}" for example in self.examples)])
        description = f"{self.help[0].upper()}{self.help[1:]}."
        return build_parser(self.options, self.prog, description=description, epilog=epilog, everything=everything)

    def parse(self, words: Sequence[str]) -> Any:
        """Return the options of the command's words."""
        return self.resolve(read_words(self.options, words, self.parser()))

    def resolve(self, values: Mapping[str, Any]) -> Any:
        """Return the command's `options` object, from values by name.

        Raises:
            AlignAttnError: if the values are refused, or a path of theirs cannot be used, such as one that is too long.
        """
        try:
            return resolve(self.options, values)
        except OSError as error:
            raise AlignAttnError(reason_of(error)) from error

    def execute(self, options: Any) -> Any:
        """Run the command with its options, and return what it returns."""
        if self.draws:
            check_installed("matplotlib", "plots", f"`{self.prog}`")
        options.check_places()
        folder = values_of(options).get(OUTPUT_DIR)
        function: Callable[[Any], Any] = resolve_name(self.run)
        alone = nullcontext() if folder is None or self.shares_folder else folder_lock(Path(folder))
        with alone, without_library_bars():
            return function(options)
