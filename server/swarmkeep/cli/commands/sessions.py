"""`swarmkeep sessions`: what there is, one in full, its title, a fork of it, what is taken out, and its end."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from swarmkeep.cli.commands import takeovers
from swarmkeep.cli.completing import complete_agent
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import (
    ApiKey,
    DatabaseUrl,
    JsonOutput,
    LabelFilter,
    LastRun,
    ListOrder,
    ServerUrl,
    SessionId,
    Status,
    Tenant,
    parse_labels,
    parse_seqs,
)
from swarmkeep.cli.render import describe_status, format_message, list_found, put_state
from swarmkeep.cli.sources import SourceOptions, warn_if_damaged
from swarmkeep.cli.terminal import put, put_json, put_table, say
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.cli.sources import Source
    from swarmkeep_client import Message, SessionState


# `swarmkeep sessions rename` and `compact`: another title, and a shorter history for the model.

group = typer.Typer()


@group.command(
    "rename",
    epilog="""
    \b
    Examples:
      swarmkeep sessions rename order-4711 "Refund of Ann"
      swarmkeep sessions rename order-4711
    """,
)
def rename(
    session_id: SessionId,
    title: Annotated[
        str | None,
        typer.Argument(metavar="TITLE", help="The title; without one, the session is named by its first words."),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Set a session's title (its metadata `title`), and print its name."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        state = source.label(session_id, {"title": title or None})
    if as_json:
        put_json(state)
    else:
        put(state.title or state.id)


@group.command(
    "compact",
    epilog="""
    \b
    Examples:
      swarmkeep sessions compact order-4711 --url http://127.0.0.1:8000
      swarmkeep sessions compact order-4711 --keep-turns 2 --url http://127.0.0.1:8000
    """,
)
def compact(
    session_id: SessionId,
    keep_turns: Annotated[
        int | None, typer.Option("--keep-turns", metavar="N", min=1, help="Leave the last N turns unchanged.")
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option("--instructions", metavar="TEXT", help="Additional instructions to the model for the summary."),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Shorten a session's history for the model: long results are cut, and all but the last turns are summed up. The
    log keeps everything. Exit code 1 if no summary was made.

    This needs a server, which has the session's agent.
    """
    from swarmkeep.cli.server_source import open_server

    with open_server(SourceOptions(url, api_key=api_key).server_url, api_key) as source:
        done = source.compact(session_id, keep_turns=keep_turns, instructions=instructions)
    if as_json:
        put_json(done)
    elif done.summary is not None:
        put(f"messages {done.first_seq} to {done.last_seq} of {session_id}, for the model:")
        put(done.summary)
    elif done.error is None:
        put("there was nothing to sum up")
    if done.error is not None:
        say(f"no summary was made: {done.error.code}: {done.error.message}")
        raise typer.Exit(1)


# `swarmkeep sessions counts`: counts of sessions that may need attention.


@group.command(
    "counts",
    epilog="""
    \b
    Examples:
      swarmkeep sessions counts
      swarmkeep sessions counts --json
    """,
)
def counts(
    children: Annotated[bool, typer.Option("--children", help="Also the sessions in which agents ask others.")] = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Count the sessions that run or wait, those whose last run failed or was interrupted, and the damaged ones."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        counted = source.counts(children=children)
    if as_json:
        put_json(counted)
        return
    kinds = {**counted.status, **counted.last_run, "damaged": counted.damaged}
    put_table(("SESSIONS", "COUNT"), [(name, f"{one.count:,}{'+' if one.more else ''}") for name, one in kinds.items()])


# Show the messages of a session, and of those of the agents that were asked in it.


def put_messages(source: Source, messages: Sequence[Message], shown: set[str], depth: int = 0) -> None:
    """Show messages, and below each result of an agent that was asked what was said there.

    `shown` are the sessions that are shown already: what was imported may name any, as deep as it likes.
    """
    from swarmkeep.runs.identifiers import MOST_DEPTH

    indent = "      " * depth
    for message in messages:
        put(textwrap.indent(format_message(message), indent))
        asked = message.get("session_id")
        if asked and asked not in shown and depth < MOST_DEPTH:
            shown.add(asked)
            below = _read_below(source, asked)
            if isinstance(below, str):
                put(f"{indent}      ({asked} cannot be shown: {below})")
            else:
                put_messages(source, below, shown, depth + 1)


def _read_below(source: Source, session_id: str) -> Sequence[Message] | str:
    """Read the messages of a session; or why that cannot be shown, which is no reason not to show the one above."""
    from swarmkeep.events.errors import DomainError, SessionNotFound
    from swarmkeep_client import SessionNotFound as NoSession
    from swarmkeep_client import SwarmkeepError

    try:
        return source.messages(session_id)
    except (SessionNotFound, NoSession):
        # It was deleted, or left out of an export.
        return ()
    except (DomainError, SwarmkeepError) as error:
        return str(error)


group_sessions = typer.Typer(
    help="List, find, show, rename, fork, take over, hold, redact and delete sessions, and take messages out of them, "
    "on a server or without one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for other in (group, takeovers.group):
    group_sessions.add_typer(other)


def register(app: typer.Typer) -> None:
    app.add_typer(group_sessions, name="sessions")


AtEvent = Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help="As of this event instead of now.")]


@group_sessions.command(
    "list",
    epilog="""
    \b
    Examples:
      swarmkeep sessions list
      swarmkeep sessions list --status waiting --json
      swarmkeep sessions list --last-run failed --order activity
      swarmkeep sessions list --search "refund 4711"
      swarmkeep sessions list --url http://127.0.0.1:8000 --metadata team=sales
    """,
)
def list_sessions(
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only those with this active agent.", autocompletion=complete_agent),
    ] = None,
    status: Status = None,
    last_run: LastRun = None,
    order: ListOrder = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Only those that were found damaged.")] = False,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="TEXT",
            help="Only those in which one message, or id and metadata, have words that begin like these.",
        ),
    ] = None,
    metadata: LabelFilter = None,
    children: Annotated[bool, typer.Option("--children", help="Also the sessions in which agents ask others.")] = False,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="How many at most; 0 for all.")] = 50,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """List sessions, the latest first."""
    labels = parse_labels(metadata)
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        sessions = source.sessions(
            agent=agent,
            status=status,
            metadata=labels,
            last_run=last_run,
            order=order,
            children=children,
            q=search,
            damaged=damaged or None,
        )
        shown = list(islice(sessions, limit or None))
        more = limit and next(sessions, None) is not None
    if as_json:
        put_json([_describe_listed(state) for state in shown])
    elif shown and search:
        put_table(("ID", "UPDATED", "TITLE", "SEQ", "FOUND"), [row for one in shown for row in list_found(one)])
    elif shown:
        rows = [
            (one.id, describe_status(one), one.agent, str(one.message_count), str(one.seq), f"{one.updated_at[:19]}Z")
            for one in shown
        ]
        put_table(("ID", "STATUS", "AGENT", "MESSAGES", "SEQ", "UPDATED"), rows)
    else:
        is_filtered = agent or status or last_run or labels or search or damaged
        say("there are no such sessions" if is_filtered else "there are no sessions")
    if more:
        say("there are more sessions; --limit 0 shows all")


def _describe_listed(state: SessionState) -> dict[str, object]:
    """A session without its context variables, which lists do not carry."""
    shown: dict[str, object] = msgspec.to_builtins(state)
    del shown["context_variables"]
    return shown


@group_sessions.command(
    "show",
    epilog="""
    \b
    Examples:
      swarmkeep sessions show order-4711
      swarmkeep sessions show order-4711 --at 12
      swarmkeep sessions show order-4711 --json
    """,
)
def show(
    session_id: SessionId,
    at: AtEvent = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Show a session: its state and its messages, now or as of an event."""
    with open_source(SourceOptions(url, database_url, tenant, api_key)) as source:
        state = source.session(session_id, at=at)
        messages = source.messages(session_id, at=state.seq)
        warn_if_damaged(source, session_id)
        if as_json:
            put_json({**msgspec.to_builtins(state), "messages": messages})
            return
        put_state(state)
        put_messages(source, messages, {session_id})


@group_sessions.command(
    "fork",
    epilog="""
    \b
    Examples:
      swarmkeep sessions fork order-4711
      swarmkeep sessions fork order-4711 --at 12 --id order-4711-again
    """,
)
def fork(
    session_id: SessionId,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", min=1, help="Share the history up to this event only.")
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--id", metavar="NEW_ID", help="The new session's id; made if absent.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Metadata of the new session; may be given again."),
    ] = None,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Make a new session that shares another's history; prints its id."""
    labels = parse_labels(metadata)
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        state = source.fork(session_id, at=at, new_id=new_id, metadata=dict(labels) or None)
    if as_json:
        put_json(state)
    else:
        put(state.id)


@group_sessions.command(
    "delete",
    epilog="""
    \b
    Examples:
      swarmkeep sessions delete order-4711
      swarmkeep sessions delete order-4711 --force --reason "asked to be forgotten"
    """,
)
def delete(
    session_id: SessionId,
    force: Annotated[bool, typer.Option("--force", help="Delete it even while a run is active.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Delete a session with all of its events, for good. The audit log keeps a record of the deletion."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        source.delete(session_id, force=force, reason=reason)
    say(f"deleted session {session_id}")


@group_sessions.command(
    "remove-message",
    epilog="""
    \b
    Examples:
      swarmkeep sessions remove-message order-4711 7
      swarmkeep sessions remove-message order-4711 9 --call call_1
    """,
)
def remove_message(
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The message, by its seq.")],
    call: Annotated[str | None, typer.Option("--call", metavar="ID", help="Only this call, with its result.")] = None,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Take a message out: it is no longer sent to models or shown in lists. The log keeps it; `redact` removes its
    content."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        source.remove_message(session_id, seq, tool_call_id=call)
    say(f"took {f'call {call} of ' if call else ''}message {seq} out of session {session_id}")


@group_sessions.command(
    "redact",
    epilog="""
    \b
    Examples:
      swarmkeep sessions redact order-4711 --seq 3 --reason "a card number"
      swarmkeep sessions redact order-4711 --seq 3 --seq 7-9 --reason "a card number" --include-forks
      swarmkeep sessions redact order-4711 --seq 3 --reason "a card number" --dry-run
    """,
)
def redact(
    session_id: SessionId,
    given: Annotated[
        list[str], typer.Option("--seq", metavar="SEQ", help="An event, or several as in 5-9; may be given again.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the session.")],
    include_forks: Annotated[
        bool, typer.Option("--include-forks", help="Also in forks, and in sessions that this one was forked from.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: JsonOutput = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Remove the content of events, for good; the hash chain still verifies. Exit code 1 if another session still holds
    it."""
    seqs = parse_seqs(given)
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        done = source.redact(session_id, seqs, reason, include_forks=include_forks, dry_run=dry_run)
    left = [copy for copy in done.forks if not copy.redacted and not dry_run]
    if as_json:
        put_json(done)
    elif done.seqs:
        removed = "would remove" if dry_run else "removed"
        emptied = f"{pluralize(len(done.seqs), 'event')} of {session_id}: {', '.join(map(str, done.seqs))}"
        put(f"{removed} the content of {emptied}")
    else:
        put("there was nothing left to remove")
    for copy in done.forks:
        state = "unchanged by a dry run" if dry_run else "removed there, too" if copy.redacted else "STILL THERE"
        named = "event" if len(copy.seqs) == 1 else "events"
        say(f"session {copy.session_id} also holds {named} {', '.join(map(str, copy.seqs))}: {state}")
    if left:
        say("--include-forks redacts these sessions, too; one that is busy can be redacted later")
        raise typer.Exit(1)


@group_sessions.command(
    "hold",
    epilog="""
    \b
    Examples:
      swarmkeep sessions hold order-4711 --reason "case 12 O 345/26"
    """,
)
def hold(
    session_id: SessionId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the session.")],
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Put a session on hold: until that is lifted, nothing of it is redacted or deleted."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        held = source.hold(session_id, reason).hold
    assert held is not None
    put(f"{session_id} is on hold since {held.at}: {held.reason}")


@group_sessions.command(
    "release",
    epilog="""
    \b
    Examples:
      swarmkeep sessions release order-4711
    """,
)
def release(
    session_id: SessionId,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
    api_key: ApiKey = None,
) -> None:
    """Lift a session's hold. Without one nothing changes."""
    with open_source(SourceOptions(url, database_url, tenant, api_key), writes=True) as source:
        source.hold(session_id, None)
    put(f"{session_id} is not on hold")
