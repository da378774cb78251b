"""`swarmkeep compare`: where two sessions part, and what each did since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_session
from swarmkeep.cli.options import ApiKey, DatabaseUrl, JsonOutput, ServerUrl, SessionId, Tenant
from swarmkeep.cli.render.changes import has_room_beside, put_changes
from swarmkeep.cli.render.messages import format_messages
from swarmkeep.cli.sources.opening import open_source
from swarmkeep.cli.sources.options import SourceOptions
from swarmkeep.cli.terminal import put, put_json

if TYPE_CHECKING:
    from swarmkeep_client import Comparison, Side


def register(app: typer.Typer) -> None:
    app.command(
        "compare",
        epilog="""
        \b
        Examples:
          swarmkeep compare order-4711 what-if
          swarmkeep compare order-4711 what-if --json
        """,
    )(compare)


def compare(
    session_id: SessionId,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The other session's id.", autocompletion=complete_session)
    ],
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show where two sessions part, by the hashes of their events, and what each did since."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        comparison = source.compare(session_id, other)
    if as_json:
        put_json(comparison)
    else:
        put_comparison(comparison)


def put_comparison(found: Comparison) -> None:
    """What is shared, what each did since, and how their states differ."""
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
    from rich.table import Table
    from rich.text import Text

    from swarmkeep.cli.render.console import make_console
    from swarmkeep.domain.wording import escape_controls

    put()
    columns = [escape_controls("\n".join(_format_side(side))) for side in (a, b)]
    table = Table.grid(padding=(0, 3), expand=True)
    for _ in columns:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*(Text(column) for column in columns))
    make_console().print(table)


def _format_side(side: Side) -> Iterator[str]:
    usage = side.usage
    yield f"{side.id}, now at event {side.seq} with {side.agent}"
    yield f"since then: model calls {usage.model_calls}, tokens {usage.total_tokens}"
    for line in format_messages(side.messages):
        yield f"  {line}"
    for call in side.calls:
        yield f"  event {call.seq}: {call.name} {call.status}"
