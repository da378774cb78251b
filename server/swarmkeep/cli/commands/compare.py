"""`swarmkeep compare`: where two sessions part, and what each did since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_session
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, JsonOutput, SessionId
from swarmkeep.cli.render import format_messages, has_room_beside, put_beside, put_changes
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import put, put_json, say
from swarmkeep.events.wording import escape_controls

if TYPE_CHECKING:
    from swarmkeep_client import Comparison, Side


commands = Commands()


@commands.add("""
    swarmkeep compare order-4711 what-if
    swarmkeep compare order-4711 what-if --json
""")
def compare(
    where: SourceOptions,
    session_id: SessionId,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The other session's id.", autocompletion=complete_session)
    ],
    as_json: JsonOutput = False,
) -> None:
    """Show where two sessions part, by the hashes of their events, and what each did since."""
    with open_source(where) as source:
        comparison = source.compare(session_id, other)
    if as_json:
        put_json(comparison)
    else:
        put_comparison(comparison)


def put_comparison(found: Comparison) -> None:
    """Print the shared events, those of each since, and the difference of their states."""
    a, b = found.a, found.b
    if found.identical:
        put(f"{a.id} and {b.id} are the same, up to event {found.shared_seq}")
        return
    if found.shared_seq:
        put(f"{a.id} and {b.id} share events 1 to {found.shared_seq}; the last of these has hash {found.shared_hash}")
    else:
        put(f"{a.id} and {b.id} share no event")
    if has_room_beside():
        _put_side_by_side(a, b)
    else:
        for side in (a, b):
            put()
            for line in _format_side(side):
                put(line)
    put()
    put(f"from {a.id} to {b.id}, as they are now:" if found.changes else "their states are the same")
    put_changes(found.changes)


def _put_side_by_side(a: Side, b: Side) -> None:
    from rich.text import Text

    put()
    put_beside([[Text(escape_controls("\n".join(_format_side(side)))) for side in (a, b)]])


def _format_side(side: Side) -> Iterator[str]:
    usage = side.usage
    yield f"{side.id}, now at event {side.seq} with {side.agent}"
    yield f"since then: model calls {usage.model_calls}, tokens {usage.total_tokens}"
    for line in format_messages(side.messages):
        yield f"  {line}"
    for call in side.calls:
        yield f"  event {call.seq}: {call.name} {call.status}"


# `swarmkeep diff`: what changed between two events of a session.


@commands.add("""
    swarmkeep diff order-4711 3 12
    swarmkeep diff order-4711 0 12 --json
""")
def diff(
    where: SourceOptions,
    session_id: SessionId,
    before: Annotated[
        int, typer.Argument(metavar="BEFORE", min=0, help="The earlier event; 0 is before the first one.")
    ],
    after: Annotated[int, typer.Argument(metavar="AFTER", min=1, help="The later event.")],
    as_json: JsonOutput = False,
) -> None:
    """Show what changed in a session from one event to another: agent, context variables, metadata, usage, runs,
    messages."""
    if before > after:
        raise typer.BadParameter("the earlier event comes first", param_hint="'BEFORE'")
    with open_source(where) as source:
        state_diff = source.diff(session_id, before, after)
    if as_json:
        put_json(state_diff)
        return
    if not (state_diff.changes or state_diff.runs or state_diff.removed or state_diff.messages):
        say("nothing changed")
    put_changes(state_diff.changes)
    for run in state_diff.runs:
        put(f"run {run.id}: {f'{run.before} → ' if run.before else ''}{run.after}")
    for seq in state_diff.removed:
        put(f"message {seq}: taken out")
    for line in format_messages(state_diff.messages):
        put(line)
