"""`swarmkeep diff`, `swarmkeep compare` and `swarmkeep request`: what changed, what parted, what was sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.sources.source import (
    ApiKey,
    DatabaseUrl,
    JsonOutput,
    ServerUrl,
    SessionId,
    SourceOptions,
    Tenant,
    open_source,
)
from swarmkeep.cli.terminal import is_terminal, put, put_json, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swarmkeep_client import Change, Comparison, Message, Side

_MAX_TEXT = 400


def register(app: typer.Typer) -> None:
    app.command(
        "diff",
        short_help="Show what changed between two events of a session.",
        epilog="""
        \b
        Examples:
          swarmkeep diff order-4711 3 12
          swarmkeep diff order-4711 0 12 --json
        """,
    )(diff)
    app.command(
        "compare",
        short_help="Show where two sessions part, and what each did since.",
        epilog="""
        \b
        Examples:
          swarmkeep compare order-4711 what-if
          swarmkeep compare order-4711 what-if --json
        """,
    )(compare)
    app.command(
        "request",
        short_help="Show what a model was sent.",
        epilog="""
        \b
        Examples:
          swarmkeep request order-4711 4
          swarmkeep request order-4711 4 --raw | sha256sum
        """,
    )(request)


def diff(
    session_id: SessionId,
    before: Annotated[int, typer.Argument(metavar="BEFORE", min=0, help="The earlier event; 0 for none.")],
    after: Annotated[int, typer.Argument(metavar="AFTER", min=1, help="The later event.")],
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show what the events from one to another made of a session: agent, context variables, metadata, usage, runs,
    messages."""
    if before > after:
        raise typer.BadParameter("the earlier event comes first", param_hint="'BEFORE'")
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
        state_diff = found.diff(session_id, before, after)
    if as_json:
        put_json(state_diff)
        return
    _put_changes(state_diff.changes)
    for run in state_diff.runs:
        put(f"run {run.id}: {f'{run.before} → ' if run.before else ''}{run.after}")
    for line in _format_messages(state_diff.messages):
        put(line)


def compare(
    session_id: SessionId,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other session's id.")],
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show where two sessions part, by the hashes of their events, and what each did since."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
        comparison = found.compare(session_id, other)
    if as_json:
        put_json(comparison)
    else:
        _put_comparison(comparison)


def request(
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The event that is the model's answer.")],
    raw: Annotated[bool, typer.Option("--raw", help="The very bytes that were sent, on one line.")] = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show the exact Chat Completions request behind a model's answer, put together again from the log."""
    from swarmkeep.domain.codec import decode

    with open_source(SourceOptions(url, database_url, tenant, api_key)) as found:
        body = found.request(session_id, seq)
    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
    else:
        put_json(decode(body))


def _put_comparison(found: Comparison) -> None:
    a, b = found.a, found.b
    if found.identical:
        put(f"{a.id} and {b.id} are the same, up to event {found.shared_seq}")
        return
    if found.shared_seq:
        put(f"{a.id} and {b.id} share the events 1 to {found.shared_seq}, the last with hash {found.shared_hash}")
    else:
        put(f"{a.id} and {b.id} share no event")
    if is_terminal(sys.stdout):
        _put_side_by_side(a, b)
    else:
        for side in (a, b):
            put()
            for line in _format_side(side):
                put(line)
    put()
    put(f"from {a.id} to {b.id}, as they are now:" if found.changes else "their states are the same")
    _put_changes(found.changes)


def _put_side_by_side(a: Side, b: Side) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from swarmkeep.cli.terminal import escape_controls, has_colours

    columns = [escape_controls("\n".join(_format_side(side))) for side in (a, b)]
    table = Table.grid(padding=(0, 3), expand=True)
    for _ in columns:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*(Text(column) for column in columns))
    Console(file=sys.stdout, color_system="auto" if has_colours(sys.stdout) else None, highlight=False).print(table)


def _format_side(side: Side) -> Iterator[str]:
    usage = side.usage
    yield f"{side.id}, now at event {side.seq} with {side.agent}"
    yield f"since then: {usage.model_calls} model calls, {usage.total_tokens} tokens"
    for line in _format_messages(side.messages):
        yield f"  {line}"
    for call in side.calls:
        yield f"  event {call.seq}: {call.name} {call.status}"


def _format_messages(messages: Sequence[Message]) -> Iterator[str]:
    from swarmkeep.domain.wording import format_calls, join_content

    for message in messages:
        text = shorten(join_content(message.get("content")), _MAX_TEXT)
        speaker = message.get("tool_name") if message.get("role") == "tool" else message.get("sender")
        calls = ", ".join(format_calls(message)) if message.get("role") == "assistant" else ""
        yield f"{message.get('seq')} {speaker}: {' '.join(part for part in (text, calls) if part)}"


def _put_changes(changes: Sequence[Change]) -> None:
    from swarmkeep.cli.render.timeline import format_change

    for change in changes:
        put(format_change(change.path, change.before, change.after))
