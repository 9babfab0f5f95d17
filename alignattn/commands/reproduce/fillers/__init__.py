"""The commands whose runs fill tables: which options they take, and what a finished run of theirs has measured."""

from collections.abc import Mapping

from alignattn.commands.reproduce.fillers.benchmark import Benchmark
from alignattn.commands.reproduce.fillers.domain_shift import DomainShift
from alignattn.commands.reproduce.fillers.filler import Command, RunReport
from alignattn.commands.reproduce.fillers.finetune import Finetune
from alignattn.commands.reproduce.fillers.robustness import Robustness

__all__ = ["COMMANDS", "Command", "RunReport"]

COMMANDS: Mapping[str, Command] = {
    command.name: command for command in (Finetune(), DomainShift(), Robustness(), Benchmark())
}
