"""The command line. A command's module is imported only when the command runs, or its own help is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from swarmkeep.cli.completing import adapt_to_bash
from swarmkeep.cli.terminal import INTERRUPTED, drop_stdout, escape_unencodable, find_refusal, forget_said, say

__all__ = ["app", "main"]

# Every command by its name, with what the list of commands says of it. Each has a module in cli/commands.
COMMANDS = {
    "serve": "Serve agents over HTTP.",
    "demo": "Watch a conversation outlive its server.",
    "chat": "Chat with agents, on a server or here.",
    "events": "Show the events of a session.",
    "feed": "Show the events of all sessions, or follow them.",
    "replay": "Show a conversation as it happened.",
    "check": "Compare today's agents with recorded conversations.",
    "diff": "Show what changed between two events of a session.",
    "compare": "Show where two sessions part, and what each did since.",
    "request": "Show the exact request that a model was sent.",
    "blob": "Get a file or picture out of a session.",
    "whatif": "Run part of a conversation again, with something changed.",
    "export": "Export sessions to a file.",
    "import": "Import sessions from a file.",
    "runs": "Show the runs that are over, and how long they took.",
    "usage": "Show the tokens, calls and time of models and tools.",
    "verify": "Check that sessions are as they were recorded.",
    "checkpoint": "Record the last seq and hash of every session.",
    "prune": "Delete sessions that have not changed for a long time.",
    "erase": "Erase a person in every copy of the database.",
    "archive": "Move old sessions to object storage, or back.",
    "retention": "Show which sessions go by themselves, and when.",
    "top": "Watch the runs that are active, waiting or queued.",
    "audit": "Show the audit log: what was done to sessions and keys.",
    "anchor": "Make a signed checkpoint of all sessions, to keep elsewhere.",
    "forward": "Forward the audit log to a SIEM.",
    "evidence": "Pack sessions so that a stranger can check them.",
    "backup": "Write a whole database to a file, while servers keep running.",
    "restore": "Fill an empty database from a backup, and verify it.",
    "case": "Make an eval case of a recorded run.",
    "eval": "Try cases on agents, and report which pass.",
    "init": "Make a project of your own from an example team.",
    "doctor": "Check whether a server could start here.",
    "agents": "Show the agents, and who can hand over to whom.",
    "sessions": "List, show, fork, redact, delete and take over sessions.",
    "keys": "Make, list and revoke API keys.",
    "webhooks": "Send events to addresses, and see what was not delivered.",
    "db": "Migrate and check the database's schema.",
}


# Where a command stands with others of its subject.
_MODULES = {
    "archive": "prune",
    "audit": "verify",
    "backup": "db",
    "blob": "events",
    "case": "eval",
    "checkpoint": "verify",
    "diff": "compare",
    "erase": "prune",
    "evidence": "anchor",
    "feed": "events",
    "import": "export",
    "request": "events",
    "restore": "db",
    "retention": "prune",
    "usage": "runs",
}


class LazyCommands(Mapping[str, Any]):
    """The commands by their names; each is built when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build_command(name, COMMANDS[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _build_command(name: str, summary: str) -> Any:
    module = import_module(f"swarmkeep.cli.commands.{_MODULES.get(name, name)}")
    command = typer.main.get_group(module.commands).commands[name]
    command.short_help = summary
    return command


class LazyGroup(TyperGroup):
    """A group that lists its commands without loading them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": None})
        self.commands = LazyCommands()  # type: ignore[assignment]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # As typer's converters begin it.
            error.message = error.message.removeprefix("Value error, ")
            raise
        except KeyboardInterrupt:
            # Long work says more: how far it was, and what is done.
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="swarmkeep",
    cls=LazyGroup,
    help="The server that keeps conversations of agents: every message, handoff and context change is recorded as an "
    "event.",
    epilog="A first look, without a key: swarmkeep demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from swarmkeep import __version__

        print(f"swarmkeep {__version__}")
        raise typer.Exit


@app.callback()
def swarmkeep(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0, 1 when a command says no (in a line on stderr), 2 for wrong use."""
    escape_unencodable()
    forget_said()
    try:
        with adapt_to_bash(os.environ):
            app()
    except Exception as error:
        refused = find_refusal(error)
        if refused is None:
            raise
        say(f"error: {refused.sentence}")
        if isinstance(error, OSError):
            drop_stdout()
        sys.exit(refused.exit_code)
