"""`swarmkeep prune`: delete sessions that have not been used for a long time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import (
    ActiveAgent,
    AuditReason,
    Commands,
    JsonOutput,
    LabelFilter,
    Quiet,
    SessionLines,
    parse_labels,
)
from swarmkeep.cli.output import parse_duration
from swarmkeep.cli.sources import Source, SourceOptions
from swarmkeep.cli.terminal import Progress, put, put_json, put_json_line, say, show_progress
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep_client import SessionState


# Each waits for the disk, and those that are made at once share that.
_AT_ONCE = 16


class _Old(NamedTuple):
    id: str
    seq: int
    updated_at: str


# Answers are dated to the second, and take their time.
_TOLERATED = timedelta(seconds=30)


commands = Commands()


@commands.add("""
    swarmkeep prune --older-than 90d --dry-run
    swarmkeep prune --older-than 90d --metadata team=sales
""")
def prune(
    where: SourceOptions,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Unchanged for this long: 30m, 12h, 90d, 8w.")
    ],
    agent: ActiveAgent = None,
    metadata: LabelFilter = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which ones.")] = False,
    reason: AuditReason = None,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Delete sessions that have not changed for a long time, for good. Sessions with an unfinished run, and those on
    hold, are kept."""
    from swarmkeep.events.codec import to_timestamp

    age = parse_duration(older_than, "--older-than")
    why = reason or f"pruned: untouched for {older_than}"
    left: list[tuple[str, str]] = []
    with open_source(where, writes=not dry_run) as source:
        before = to_timestamp(find_cutoff(age, datetime.now(UTC), source.read_clock()))
        sessions = source.sessions(agent=agent, status="idle", metadata=parse_labels(metadata), children=True)
        with show_progress("looking for old sessions", "session", quiet=quiet) as looked:
            old, held = _find_old(source, looked.track(sessions), before)
        outcome = "{} would be deleted; nothing was" if dry_run else "{} deleted; the others are unchanged"
        with show_progress(
            "deleting", "session", len(old), quiet=quiet, on_interrupt=lambda done: outcome.format(done)
        ) as progress:
            if dry_run:
                gone = list(progress.track(old))
            else:
                gone, left = _delete_all(source, old, why, progress)
    if as_json:
        kept = [name for name, _ in left]
        put_json({"deleted": [session.id for session in gone], "kept": kept, "on_hold": held, "dry_run": dry_run})
    else:
        for session in gone:
            put(f"{session.id}  unchanged since {session.updated_at}")
    for name, sentence in left:
        say(f"kept {name}: {sentence}")
    said = ("session would be", "sessions would be") if dry_run else ("session was", "sessions were")
    say(f"{pluralize(len(gone), *said)} deleted")
    if held:
        say(f"{pluralize(len(held), 'session is', 'sessions are')} on hold, and kept")
    if left:
        raise typer.Exit(1)


# `swarmkeep retention`: what goes by itself, and when.


@commands.add("""
    swarmkeep retention
    swarmkeep retention --within 30d --json
""")
def retention(
    where: SourceOptions,
    within: Annotated[
        str | None, typer.Option("--within", metavar="TIME", help="Those that go within this time: 12h, 30d, 8w.")
    ] = None,
    as_json: SessionLines = False,
) -> None:
    """Show the sessions that go by SWARMKEEP_RETENTION, and when: by default those that are due. A server deletes these
    every hour, unless they are on hold or in use. This deletes nothing."""
    before = datetime.now(UTC) + (timedelta() if within is None else parse_duration(within, "--within"))
    count = held = 0
    with open_source(where) as source:
        for due in source.list_due(before):
            count, held = count + 1, held + due.held
            if as_json:
                put_json_line(msgspec.structs.asdict(due))
            else:
                put(f"{due.session_id}  goes {due.goes_at}, kept for {due.keep}{', on hold' if due.held else ''}")
    kept = f", {held} of them on hold" if held else ""
    say(f"{pluralize(count, 'session goes', 'sessions go')} before {before:%Y-%m-%d %H:%M} UTC{kept}")


def _find_old(source: Source, sessions: Iterable[SessionState], before: str) -> tuple[list[_Old], list[str]]:
    """Return those that may be deleted, and the ids of those that are on hold."""
    old, held = [], []
    for session in sessions:
        if session.updated_at >= before:
            continue
        if session.hold is not None:
            held.append(session.id)
        elif not _is_in_other_session(source, session):
            old.append(_Old(session.id, session.seq, session.updated_at))
    return old, held


def _is_in_other_session(source: Source, session: SessionState) -> bool:
    """Tell if it was made to ask another agent, and the session that asked is still there: that one's deletion deletes
    it, too."""
    from swarmkeep.events.errors import SessionNotFound

    if session.parent is None:
        return False
    try:
        source.session(session.parent.session_id)
    except Exception as error:
        # By its code: a server's client has an error of its own for it.
        if getattr(error, "code", None) != SessionNotFound.code:
            raise
        return False
    return True


def find_cutoff(age: timedelta, own: datetime, theirs: datetime | None) -> datetime:
    """Since when a session must not have changed, by the clock that is behind: a wrong one is to keep too much."""
    if theirs is not None and abs(own - theirs) > _TOLERATED:
        both = f"{own:%Y-%m-%d %H:%M} UTC here, {theirs:%Y-%m-%d %H:%M} UTC where the sessions are"
        say(f"the clocks differ: it is {both}; the earlier time counts")
    return min(own, theirs or own) - age


def _delete_all(
    source: Source, old: Sequence[_Old], why: str, progress: Progress
) -> tuple[list[_Old], list[tuple[str, str]]]:
    """Delete sessions, some at once; gives those that are gone, and why others were left.

    Ctrl-C waits for those that have begun, so that they are counted, and begins no other.
    """
    from swarmkeep.cli.terminal import find_refusal

    counting = Lock()

    def delete(session: _Old) -> str | None:
        try:
            # Only as it was when it was found to be old.
            source.delete(session.id, reason=why, if_match=session.seq)
        except Exception as error:
            refused = find_refusal(error)
            if refused is None:
                raise
            return refused.sentence
        with counting:
            progress.advance()
        return None

    refusals: list[str | None] = []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for start in range(0, len(old), _AT_ONCE):
            refusals += threads.map(delete, old[start : start + _AT_ONCE])
    results = list(zip(old, refusals, strict=True))
    gone = [session for session, refusal in results if refusal is None]
    return gone, [(session.id, refusal) for session, refusal in results if refusal is not None]
