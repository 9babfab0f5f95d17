"""`alignattn completion`: a script for shell completion."""

from dataclasses import dataclass

from alignattn.utils.command import Command
from alignattn.utils.option import REQUIRED, option
from alignattn.utils.options import Options

SHELLS = ("bash", "zsh", "tcsh", "fish")


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Options):
    """The options of `alignattn completion`."""

    shell: str = option(REQUIRED, "The shell.", choices=SHELLS, positional=True, metavar="SHELL")


COMMAND = Command(
    "completion",
    "print a shell script that completes commands and options",
    CompletionOptions,
    run="alignattn.commands.completion.command:print_completion",
    examples=("alignattn completion bash > ~/.local/share/bash-completion/completions/alignattn",),
)
