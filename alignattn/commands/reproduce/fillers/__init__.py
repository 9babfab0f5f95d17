"""The commands whose runs fill tables: which options they take, and what a finished run of theirs has measured."""

from collections.abc import Mapping

from alignattn.experiments.tables.commands.benchmark import Benchmark
from alignattn.experiments.tables.commands.command import Command, RunReport
from alignattn.experiments.tables.commands.domain_shift import DomainShift
from alignattn.experiments.tables.commands.finetune import Finetune
from alignattn.experiments.tables.commands.robustness import Robustness

__all__ = ["COMMANDS", "Command", "RunReport"]

COMMANDS: Mapping[str, Command] = {
    command.name: command for command in (Finetune(), DomainShift(), Robustness(), Benchmark())
}
