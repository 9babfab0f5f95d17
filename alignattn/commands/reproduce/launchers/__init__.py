"""Where runs are run: each in a process of its own, on this machine or on a Ray cluster."""

from alignattn.commands.reproduce.launchers.launcher import Launcher, make_launcher

__all__ = ["Launcher", "make_launcher"]
