"""Commands with their examples, and the options that several of them share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Literal

import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.sources import ServerOptions, SourceOptions
from swarmkeep.cli.terminal import say


def refuse_empty(value: str | None) -> str | None:
    """Refuse `--tenant "$TENANT"` if there is no such variable: the user did not mean the tenant, or the
    database, that is taken if the option is left out."""
    if value == "":
        raise typer.BadParameter("it is empty; give a value, or leave the option out")
    return value


def note_unknown_types(types: list[str] | None) -> list[str] | None:
    """Say which types no event of this release has. They are kept: a server may be newer."""
    if not types:
        return types
    from swarmkeep.events.facts import FACTS

    for unknown in (name for name in types if name not in FACTS):
        close = get_close_matches(unknown, FACTS, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        say(f"warning: this release has no events of the type {unknown!r}{meant}")
    return types


ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", callback=refuse_empty, help="Use the server at this URL. [env: SWARMKEEP_URL]"
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        callback=refuse_empty,
        help="The server's API key. Prefer the variable: other users of this machine can see options. [env: "
        "SWARMKEEP_API_KEY]",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        callback=refuse_empty,
        help="The database: sqlite:///FILE or postgresql://… [env: SWARMKEEP_DATABASE_URL]",
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        callback=refuse_empty,
        help="The tenant, in a database; on a server the API key determines it.",
    ),
]
_PLACES: dict[type[SourceOptions], dict[str, Any]] = {
    SourceOptions: {"url": ServerUrl, "database_url": DatabaseUrl, "tenant": Tenant, "api_key": ApiKey},
    ServerOptions: {"url": ServerUrl, "api_key": ApiKey},
}
Command = Callable[..., None]


class Commands(typer.Typer):
    """Commands of a module, or of a group, which has a text about it."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(help=help, no_args_is_help=help is not None, rich_markup_mode=None)

    def add_group(self, name: str, help: str) -> Commands:
        group = Commands(help)
        self.add_typer(group, name=name)
        return group

    def add(self, examples: str, *, name: str | None = None) -> Callable[[Command], Command]:
        """Add the function as a command, by its own name if none is given. Its docstring and the examples are its help.

        If its first parameter is `where`, the command has the options that say where its sessions are.
        """

        def add(run: Command) -> Command:
            epilog = f"\b\nExamples:\n{indent(inspect.cleandoc(examples), '  ')}"
            self.command(name, epilog=epilog)(_spread_where(run))
            return run

        return add


def _spread_where(run: Command) -> Command:
    """Return the command with the options themselves in the place of `where`, behind all others."""
    signature = inspect.signature(run, eval_str=True)
    parameters = dict(signature.parameters)
    where = parameters.pop("where", None)
    if where is None:
        return run
    kind = where.annotation
    for name, option in _PLACES[kind].items():
        parameters[name] = inspect.Parameter(name, where.kind, default=None, annotation=option)

    @functools.wraps(run)
    def command(**given: Any) -> None:
        run(kind(**{name: given.pop(name) for name in _PLACES[kind]}), **given)

    command.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return command


SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session's id.", autocompletion=complete_session)]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Only those with this metadata; may be given again."),
]
Status = Annotated[
    Literal["idle", "running", "waiting"] | None, typer.Option("--status", help="Only those in this state.")
]
LastRun = Annotated[
    Literal["completed", "failed", "cancelled", "interrupted"] | None,
    typer.Option("--last-run", help="Only those without an active run whose last run ended like this."),
]
ListOrder = Annotated[
    Literal["created", "activity", "oldest_activity"] | None,
    typer.Option("--order", help="Newest first, or latest activity first, or last."),
]
ActiveAgent = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Only those with this active agent.", autocompletion=complete_agent),
]
Children = Annotated[bool, typer.Option("--children", help="Also the sessions in which agents ask others.")]
Limit = Annotated[int, typer.Option("--limit", min=0, metavar="N", help="How many at most; 0 for all.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Then show each new event as it is recorded, until Ctrl-C.")
]
EventTypes = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", callback=note_unknown_types, help="Only this type; may be given again."),
]
EventAgents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME", help="Only while this agent was active; may be given again."),
]
AuditReason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]
KeptReason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the session.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
]
SessionLines = Annotated[bool, typer.Option("--json", help="Print JSON, one session per line.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
FirstSession = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="ID",
        help="With --all: begin with this session, to continue after Ctrl-C.",
        autocompletion=complete_session,
    ),
]
FirstDay = Annotated[
    datetime | None, typer.Option("--from", metavar="DAY", formats=["%Y-%m-%d"], help="From this day on, in UTC.")
]
LastDay = Annotated[
    datetime | None, typer.Option("--to", metavar="DAY", formats=["%Y-%m-%d"], help="Up to this day, included.")
]
# As many as the server takes in one request.
_MAX_SEQS = 1000

Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agents",
        metavar="PATH|MODULE",
        help="A file, folder or module that defines agents; may be given again. [env: SWARMKEEP_AGENTS]",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="The model for agents that do not name one. [env: SWARMKEEP_MODEL]"),
]
Offline = Annotated[
    bool,
    typer.Option("--offline", help="Use the built-in offline model, which is not an LLM. [env: SWARMKEEP_OFFLINE]"),
]


def parse_seqs(given: list[str]) -> list[int]:
    """Events by their numbers, from `3` and `5-9`."""
    seqs: dict[int, None] = {}
    for text in given:
        first, dash, last = text.partition("-")
        if not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in (first, last if dash else first)):
            raise typer.BadParameter(f"write a number, or a range as in 5-9, not {text!r}", param_hint="'--seq'")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or not span[0]:
            raise typer.BadParameter(f"events count from 1, and a range goes up, not {text!r}", param_hint="'--seq'")
        if len(span) > _MAX_SEQS:
            raise typer.BadParameter(
                f"at most {_MAX_SEQS} events at once; name fewer, and repeat the command", param_hint="'--seq'"
            )
        seqs |= dict.fromkeys(span)
    return list(seqs)


def parse_labels(given: list[str] | None) -> dict[str, str]:
    """The metadata that is wanted, from `KEY=VALUE`."""
    labels = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"write KEY=VALUE, not {text!r}", param_hint="'--metadata'")
        labels[key] = value
    return labels
