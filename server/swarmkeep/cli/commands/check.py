"""`swarmkeep check`: compare today's agents with recorded conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from swarmkeep.cli.completing import complete_session
from swarmkeep.cli.configure import load_agents, load_settings
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Agents, Commands, JsonOutput, Model, Quiet
from swarmkeep.cli.sources import SourceOptions, to_client
from swarmkeep.cli.terminal import Refused, put, put_json, say, show_progress
from swarmkeep.events.wording import pluralize
from swarmkeep_client import Replay

if TYPE_CHECKING:
    from swarmkeep.history.recordings import RecordedSession


_FILE_SUFFIXES = (".jsonl", ".ndjson")
CheckedSession = tuple[str, "Replay"]


commands = Commands()


@commands.add("""
    swarmkeep check order-4711 --agents shop.py
    swarmkeep check --all --agents shop.py --ignore instructions
    swarmkeep check conversations/refund.jsonl --agents shop.py
    swarmkeep check order-4711 --url http://127.0.0.1:8000
""")
def check(
    where: SourceOptions,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID|FILE",
            help="Sessions' ids, or files of an export (.jsonl, .ndjson).",
            autocompletion=complete_session,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="KIND", help="Do not report this kind of difference; may be given again."),
    ] = None,
    agents: Agents = None,
    model: Model = None,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Compare today's agents with recorded conversations, without calling a model or a tool.

    The agents are those of --agents, or the server's own when --url is given without them. Exit code 1 if something is
    different. Functions that make instructions are called.
    """
    from swarmkeep.history.divergences import DIVERGENCE_KINDS

    names = targets or []
    if bool(names) == everything:
        raise typer.BadParameter("name sessions or files, or give --all", param_hint="'ID'")
    if unknown := sorted(set(ignore or ()) - set(DIVERGENCE_KINDS)):
        raise typer.BadParameter(
            f"unknown kind {unknown[0]!r}; known: {', '.join(DIVERGENCE_KINDS)}", param_hint="'--ignore'"
        )
    if where.server_url is not None and not agents and not any(map(_is_file, names)):
        found = _check_on_server(where, names, ignore or [])
    else:
        found = _check_here(where, names, ignore or [], agents, model)
    checked = []
    total = partial(_count_sessions, where) if everything else None if any(map(_is_file, names)) else len(names)
    with show_progress("comparing", "conversation", total, quiet=quiet) as progress:
        for session_id, replayed in progress.track(found):
            checked.append((session_id, replayed))
            if not as_json:
                _put_result(session_id, replayed)
    different = sum(not replayed.matches for _, replayed in checked)
    if as_json:
        put_json([{"session_id": session_id, **msgspec.to_builtins(replayed)} for session_id, replayed in checked])
    else:
        say(f"{len(checked)} compared, {different} different")
    if different:
        raise typer.Exit(1)


def _count_sessions(where: SourceOptions) -> int | None:
    with open_source(where) as source:
        return source.count_sessions()


def _is_file(name: str) -> bool:
    return name.endswith(_FILE_SUFFIXES) or "/" in name


def _check_on_server(where: SourceOptions, ids: Sequence[str], ignore: Sequence[str]) -> Iterator[CheckedSession]:
    from swarmkeep.cli.server_source import reach_server

    with reach_server(where) as client:
        sessions = map(client.sessions.get, ids) if ids else client.sessions.list(children=True)
        for session in sessions:
            yield session.id, session.replay(ignore=ignore)


def _check_here(
    where: SourceOptions, names: Sequence[str], ignore: Sequence[str], agents: list[str] | None, model: str | None
) -> Iterator[CheckedSession]:

    from swarmkeep.history.replay import replay

    settings = load_settings(agents=agents, model=model)
    registry = load_agents(settings)
    with ExitStack() as stack:
        for conversation in _load_conversations(where, names, stack):
            replayed = replay(conversation.events, registry, conversation.texts, ignore=ignore)
            yield conversation.session_id, to_client(replayed, Replay)


def _load_conversations(where: SourceOptions, names: Sequence[str], stack: ExitStack) -> Iterator[RecordedSession]:
    from swarmkeep.history.recordings import read_recorded_sessions

    for file in filter(_is_file, names):
        empty = True
        for conversation in read_recorded_sessions(_read_lines(file)):
            empty = False
            yield conversation
        if empty:
            raise Refused(f"{file} contains no conversations; give an export, or a file of Chat Completions messages")
    ids = [name for name in names if not _is_file(name)]
    if ids or not names:
        yield from stack.enter_context(open_source(where)).conversations(ids)


def _read_lines(file: str) -> Iterator[bytes]:
    try:
        with Path(file).open("rb") as lines:
            yield from lines
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror or error}") from None


def _put_result(session_id: str, replayed: Replay) -> None:
    from swarmkeep.history.divergences import format_sides

    if replayed.matches:
        put(f"{session_id}: the same, in {pluralize(replayed.turns, 'turn')}")
    else:
        put(f"{session_id}: different, in {pluralize(replayed.turns, 'turn')} up to event {replayed.last_seq}")
    if replayed.redacted:
        put(f"  not compared, because redacted: {', '.join(f'event {seq}' for seq in replayed.redacted)}")
    for divergence in replayed.divergences:
        put(f"  event {divergence.seq}: {divergence.kind}")
        for line in format_sides(divergence.kind, divergence.recorded, divergence.actual):
            put(f"    {line}")
