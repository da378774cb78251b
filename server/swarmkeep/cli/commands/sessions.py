"""`swarmkeep sessions`: lists, one in full, titles, forks, what is taken out; and people who answer for agents."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
import typer

from swarmkeep.cli.opening import open_source, warn_if_damaged
from swarmkeep.cli.options import (
    ActiveAgent,
    AuditReason,
    Children,
    Commands,
    JsonOutput,
    KeptReason,
    LabelFilter,
    LastRun,
    Limit,
    ListOrder,
    SessionId,
    Status,
    parse_labels,
    parse_seqs,
)
from swarmkeep.cli.render import describe_status, format_message, list_found, put_state
from swarmkeep.cli.sources import ServerOptions, SourceOptions
from swarmkeep.cli.terminal import put, put_json, put_result, put_table, say
from swarmkeep.events.errors import DomainError, SessionNotFound
from swarmkeep.events.wording import pluralize
from swarmkeep_client import SessionNotFound as NoSession
from swarmkeep_client import SwarmkeepError

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep_client import Message, Session, SessionState

commands = Commands()
group = commands.add_group(
    "sessions",
    "List, find, show, rename, fork, take over, assign, hold, redact and delete sessions, and take messages out "
    "of them, on a server or without one.",
)


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
    try:
        return source.messages(session_id)
    except (SessionNotFound, NoSession):
        # It was deleted, or left out of an export.
        return ()
    except (DomainError, SwarmkeepError) as error:
        return str(error)


AtEvent = Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help="As of this event instead of now.")]


@group.add(
    """
    swarmkeep sessions list
    swarmkeep sessions list --status waiting --json
    swarmkeep sessions list --last-run failed --order activity
    swarmkeep sessions list --search "refund 4711"
    swarmkeep sessions list --assignee billing --status waiting
    swarmkeep sessions list --feedback down --assignee none
    swarmkeep sessions list --url http://127.0.0.1:8000 --metadata team=sales
    """,
    name="list",
)
def list_sessions(
    where: SourceOptions,
    agent: ActiveAgent = None,
    status: Status = None,
    last_run: LastRun = None,
    order: ListOrder = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Only those that were found damaged.")] = False,
    assignee: Annotated[
        str | None,
        typer.Option("--assignee", metavar="NAME", help="Only those of this person or queue; none: of no one."),
    ] = None,
    feedback: Annotated[
        Literal["up", "down"] | None,
        typer.Option("--feedback", help="Only those with feedback: down, if an answer is not found good."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="TEXT",
            help="Only those in which one message, or id and metadata, have words that begin like these.",
        ),
    ] = None,
    metadata: LabelFilter = None,
    children: Children = False,
    limit: Limit = 50,
    as_json: JsonOutput = False,
) -> None:
    """List sessions, the latest first."""
    labels = parse_labels(metadata)
    with open_source(where) as source:
        sessions = source.sessions(
            agent=agent,
            status=status,
            metadata=labels,
            last_run=last_run,
            order=order,
            children=children,
            q=search,
            damaged=damaged or None,
            assignee=assignee,
            feedback=feedback,
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
        is_filtered = agent or status or last_run or labels or search or damaged or assignee or feedback
        say("there are no such sessions" if is_filtered else "there are no sessions")
    if more:
        say("there are more sessions; --limit 0 shows all")


def _describe_listed(state: SessionState) -> dict[str, object]:
    """A session without its context variables, which lists do not carry."""
    shown: dict[str, object] = msgspec.to_builtins(state)
    del shown["context_variables"]
    return shown


@group.add("""
    swarmkeep sessions show order-4711
    swarmkeep sessions show order-4711 --at 12
    swarmkeep sessions show order-4711 --json
""")
def show(
    where: SourceOptions,
    session_id: SessionId,
    at: AtEvent = None,
    as_json: JsonOutput = False,
) -> None:
    """Show a session: its state and its messages, now or as of an event."""
    with open_source(where) as source:
        state = source.session(session_id, at=at)
        messages = source.messages(session_id, at=state.seq)
        warn_if_damaged(source, session_id)
        if as_json:
            put_json({**msgspec.to_builtins(state), "messages": messages})
            return
        put_state(state)
        put_messages(source, messages, {session_id})


@group.add("""
    swarmkeep sessions fork order-4711
    swarmkeep sessions fork order-4711 --at 12 --id order-4711-again
""")
def fork(
    where: SourceOptions,
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
) -> None:
    """Make a new session that shares another's history; prints its id."""
    labels = parse_labels(metadata)
    with open_source(where, writes=True) as source:
        state = source.fork(session_id, at=at, new_id=new_id, metadata=dict(labels) or None)
    put_result(state, state.id, as_json=as_json)


@group.add("""
    swarmkeep sessions delete order-4711
    swarmkeep sessions delete order-4711 --force --reason "asked to be forgotten"
""")
def delete(
    where: SourceOptions,
    session_id: SessionId,
    force: Annotated[bool, typer.Option("--force", help="Delete it even while a run is active.")] = False,
    reason: AuditReason = None,
) -> None:
    """Delete a session with all of its events, for good. The audit log keeps a record of the deletion."""
    with open_source(where, writes=True) as source:
        source.delete(session_id, force=force, reason=reason)
    say(f"deleted session {session_id}")


@group.add("""
    swarmkeep sessions remove-message order-4711 7
    swarmkeep sessions remove-message order-4711 9 --call call_1
""")
def remove_message(
    where: SourceOptions,
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The message, by its seq.")],
    call: Annotated[str | None, typer.Option("--call", metavar="ID", help="Only this call, with its result.")] = None,
) -> None:
    """Take a message out: it is no longer sent to models or shown in lists. The log keeps it; `redact` removes its
    content."""
    with open_source(where, writes=True) as source:
        source.remove_message(session_id, seq, tool_call_id=call)
    say(f"took {f'call {call} of ' if call else ''}message {seq} out of session {session_id}")


@group.add("""
    swarmkeep sessions redact order-4711 --seq 3 --reason "a card number"
    swarmkeep sessions redact order-4711 --seq 3 --seq 7-9 --reason "a card number" --include-forks
    swarmkeep sessions redact order-4711 --seq 3 --reason "a card number" --dry-run
""")
def redact(
    where: SourceOptions,
    session_id: SessionId,
    given: Annotated[
        list[str], typer.Option("--seq", metavar="SEQ", help="An event, or several as in 5-9; may be given again.")
    ],
    reason: KeptReason,
    include_forks: Annotated[
        bool, typer.Option("--include-forks", help="Also in forks, and in sessions that this one was forked from.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Remove the content of events, for good; the hash chain still verifies. Exit code 1 if another session still holds
    it."""
    seqs = parse_seqs(given)
    with open_source(where, writes=True) as source:
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


@group.add("""
    swarmkeep sessions hold order-4711 --reason "case 12 O 345/26"
""")
def hold(
    where: SourceOptions,
    session_id: SessionId,
    reason: KeptReason,
) -> None:
    """Put a session on hold: until that is lifted, nothing of it is redacted or deleted."""
    with open_source(where, writes=True) as source:
        held = source.hold(session_id, reason).hold
    assert held is not None
    put(f"{session_id} is on hold since {held.at}: {held.reason}")


@group.add("""
    swarmkeep sessions release order-4711
""")
def release(
    where: SourceOptions,
    session_id: SessionId,
) -> None:
    """Lift a session's hold. Without one nothing changes."""
    with open_source(where, writes=True) as source:
        source.hold(session_id, None)
    put(f"{session_id} is not on hold")


# Another title, a shorter history for the model, and counts of sessions that may need attention.


@group.add("""
    swarmkeep sessions rename order-4711 "Refund of Ann"
    swarmkeep sessions rename order-4711
""")
def rename(
    where: SourceOptions,
    session_id: SessionId,
    title: Annotated[
        str | None,
        typer.Argument(metavar="TITLE", help="The title; without one, the session is named by its first words."),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Set a session's title (its metadata `title`), and print its name."""
    with open_source(where, writes=True) as source:
        state = source.label(session_id, {"title": title or None})
    put_result(state, state.title or state.id, as_json=as_json)


@group.add("""
    swarmkeep sessions compact order-4711 --url http://127.0.0.1:8000
    swarmkeep sessions compact order-4711 --keep-turns 2 --url http://127.0.0.1:8000
""")
def compact(
    where: ServerOptions,
    session_id: SessionId,
    keep_turns: Annotated[
        int | None, typer.Option("--keep-turns", metavar="N", min=1, help="Leave the last N turns unchanged.")
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option("--instructions", metavar="TEXT", help="Additional instructions to the model for the summary."),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Shorten a session's history for the model: long results are cut, and all but the last turns are summed up. The
    log keeps everything. Exit code 1 if no summary was made.

    This needs a server, which has the session's agent.
    """
    from swarmkeep.cli.server_source import open_server

    with open_server(where) as source:
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


@group.add("""
    swarmkeep sessions counts
    swarmkeep sessions counts --json
""")
def counts(
    where: SourceOptions,
    children: Children = False,
    as_json: JsonOutput = False,
) -> None:
    """Count the sessions that run or wait, those whose last run failed or was interrupted, and the damaged ones."""
    with open_source(where) as source:
        counted = source.counts(children=children)
    if as_json:
        put_json(counted)
        return
    kinds = {**counted.status, **counted.last_run, "damaged": counted.damaged}
    put_table(("SESSIONS", "COUNT"), [(name, f"{one.count:,}{'+' if one.more else ''}") for name, one in kinds.items()])


# `swarmkeep sessions takeover`, `answer`, `handback`, `assign`, `note`, `feedback`: answer for an agent, together.

T = TypeVar("T")
Force = Annotated[bool, typer.Option("--force", help="Do it even if another person has taken the session over.")]


def _change_session(where: ServerOptions, session_id: str, change: Callable[[Session], T]) -> T:
    from swarmkeep.cli.server_source import open_server

    with open_server(where) as source:
        return change(source.open_on_server(session_id))


@group.add("""
    swarmkeep sessions takeover order-4711 --url http://127.0.0.1:8000
    swarmkeep sessions takeover order-4711 --note "asks for a person" --url http://127.0.0.1:8000
""")
def takeover(
    where: ServerOptions,
    session_id: SessionId,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="Why, for other people who look at the session.")
    ] = None,
    force: Force = False,
    as_json: JsonOutput = False,
) -> None:
    """Take a session over from its agent: until it is handed back, no model is asked and no call begins.

    This needs a server.
    """
    found = _change_session(where, session_id, lambda session: session.take_over(note=note, force=force).state())
    waits = f"; run {found.active_run_id} waits for an answer" if found.status == "waiting" else ""
    put_result(found, f"took session {session_id} over from {found.agent}{waits}", as_json=as_json)


@group.add("""
    swarmkeep sessions answer order-4711 "Your parcel leaves today." --url http://127.0.0.1:8000
""")
def answer(
    where: ServerOptions,
    session_id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer.")],
    as_json: JsonOutput = False,
) -> None:
    """Answer in the agent's place, in a session that was taken over. This completes the waiting run, if there is
    one.

    This needs a server.
    """
    message = _change_session(where, session_id, lambda session: session.answer(text))
    put_result(message, format_message(message), as_json=as_json)


@group.add("""
    swarmkeep sessions handback order-4711 --note "the parcel is on its way" --url http://127.0.0.1:8000
""")
def handback(
    where: ServerOptions,
    session_id: SessionId,
    note: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="A note that the agent's model reads.")
    ] = None,
    force: Force = False,
    as_json: JsonOutput = False,
) -> None:
    """Hand a session back to its agent, which continues with what waits.

    This needs a server.
    """
    found = _change_session(where, session_id, lambda session: session.hand_back(note=note, force=force).state())
    put_result(found, f"handed session {session_id} back to {found.agent}", as_json=as_json)


@group.add("""
    swarmkeep sessions assign order-4711 billing --reason "asks for an invoice" --url http://127.0.0.1:8000
    swarmkeep sessions assign order-4711 none --url http://127.0.0.1:8000
""")
def assign(
    where: ServerOptions,
    session_id: SessionId,
    to: Annotated[str, typer.Argument(metavar="NAME", help="A person or a queue; none: no one in particular.")],
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for other people.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Say who looks after a session.

    This needs a server.
    """
    from swarmkeep.agent.values import UNASSIGNED

    name = None if to == UNASSIGNED else to
    found = _change_session(where, session_id, lambda session: session.assign(name, reason=reason).state())
    text = f"assigned session {session_id} to {found.assignee or 'no one in particular'}"
    put_result(found, text, as_json=as_json)


@group.add("""
    swarmkeep sessions note order-4711 "Refunded twice before." --url http://127.0.0.1:8000
""")
def note(
    where: ServerOptions,
    session_id: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note.")],
    as_json: JsonOutput = False,
) -> None:
    """Note something for colleagues: neither a model nor the stream of a run shows it.

    This needs a server.
    """
    event = _change_session(where, session_id, lambda session: session.add_note(text))
    put_result(event, f"noted as event {event.seq} of session {session_id}", as_json=as_json)


@group.add("""
    swarmkeep sessions feedback order-4711 7 down --comment "The price is wrong." --url http://127.0.0.1:8000
""")
def feedback(
    where: ServerOptions,
    session_id: SessionId,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The answer's event.")],
    value: Annotated[Literal["up", "down"], typer.Argument(metavar="up|down", help="If it is a good one.")],
    comment: Annotated[str | None, typer.Option("--comment", metavar="TEXT", help="What you say about it.")] = None,
    as_json: JsonOutput = False,
) -> None:
    """Say what you think of an answer. `sessions list --feedback down` finds the sessions to review.

    This needs a server.
    """
    event = _change_session(where, session_id, lambda session: session.add_feedback(value, seq=seq, comment=comment))
    put_result(event, f"recorded as event {event.seq} of session {session_id}", as_json=as_json)
