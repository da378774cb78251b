"""Processes that start in a blink: forked off a parent that has everything loaded.

A cold start is mostly imports: seconds of CPU, and the tests start hundreds of servers and commands. The parent does
them once. What it forks is a fresh interpreter's equal in every other way: a process and session of its own, with its
own environment, arguments, folder, files, signals and exit code.
"""

from tests.support.warm.processes import WarmProcess, run, shell_command, start, suits

__all__ = ["WarmProcess", "run", "shell_command", "start", "suits"]
