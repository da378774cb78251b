"""`swarmkeep prune`, `retention`, `erase`, `archive`: what becomes of old sessions, and how people are erased."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from swarmkeep.cli.configure import load_settings
from swarmkeep.cli.opening import open_source, run_on_store
from swarmkeep.cli.options import (
    ActiveAgent,
    AuditReason,
    Commands,
    DatabaseUrl,
    JsonOutput,
    LabelFilter,
    Quiet,
    SessionLines,
    Tenant,
    parse_labels,
)
from swarmkeep.cli.output import parse_duration
from swarmkeep.cli.sources import SourceOptions, name_operator
from swarmkeep.cli.terminal import Progress, Refused, find_refusal, put, put_json, put_json_line, say, show_progress
from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.wording import pluralize

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source
    from swarmkeep.history.archives import Archive
    from swarmkeep.store.opening import SqlStore
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


# `swarmkeep erase`: erase a person in every copy of the database.


@commands.add("""
    swarmkeep erase anna@example.com --reason "request of 3 May" --dry-run
    swarmkeep erase anna@example.com --reason "request of 3 May"
""")
def erase(
    where: SourceOptions,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person, as the sessions' metadata say.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the sessions.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which sessions there are.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Erase a person, for good: redact all events of the person's sessions, and destroy the key that encrypts them in
    backups, replicas and archives. The hash chains still verify. SWARMKEEP_PERSON says which metadata name people."""
    with open_source(where, writes=True) as source:
        done = source.erase(person, reason, dry_run=dry_run)
    if as_json:
        put_json(done)
        return
    for name in done.sessions:
        put(name)
    put(f"{'would erase' if dry_run else 'erased'} the person in {pluralize(len(done.sessions), 'session')}")


# `swarmkeep archive`: unused sessions to object storage, and back.


@commands.add("""
    swarmkeep archive --older-than 90d --dry-run
    swarmkeep archive --older-than 90d
    swarmkeep archive --bring-back order-4711
""")
def archive(
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Those in which nothing has happened for so long: 90d, 2y. [env: SWARMKEEP_ARCHIVE_AFTER]",
        ),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="The archive. [env: SWARMKEEP_ARCHIVE]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the sessions that would be moved.")] = False,
    bring_back: Annotated[
        list[str] | None,
        typer.Option("--bring-back", metavar="ID", help="Bring this session back instead; may be given again."),
    ] = None,
    database_url: DatabaseUrl = None,
    tenant: Tenant = None,
) -> None:
    """Move sessions to the archive in which nothing has happened for long: of all tenants, as servers do by
    themselves, every hour. They are listed as before, and come back by themselves when somebody reads or uses them.
    """
    from swarmkeep.history.archives import open_archive, read_age
    from swarmkeep.store.records import DEFAULT_TENANT

    with _blame("--older-than", older_than):
        age = read_age(older_than)

    settings = load_settings(database_url=database_url, archive=to)
    if tenant is not None and not (bring_back or dry_run):
        raise typer.BadParameter("all tenants' sessions are moved; leave it out", param_hint="'--tenant'")

    async def carry_out(store: SqlStore) -> int:
        with _blame("--to", to):
            found = open_archive(store, settings)
        if found is None:
            raise Refused("SWARMKEEP_ARCHIVE does not say where sessions are archived")
        if bring_back:
            return await _bring_back(store, found, tenant or DEFAULT_TENANT, bring_back)
        least = age or read_age(settings.archive_after)
        if least is None:
            raise typer.BadParameter("say how old; SWARMKEEP_ARCHIVE_AFTER is not set", param_hint="'--older-than'")
        if dry_run:
            return await _list_due(store, found, tenant, least)
        return await found.archive_due(least, by=name_operator())

    count = run_on_store(settings.database_url, carry_out, **settings.store_options)
    done = "brought back" if bring_back else "to be moved" if dry_run else "moved"
    say(f"{pluralize(count, 'session')} {done}")


@contextmanager
def _blame(option: str, given: str | None) -> Iterator[None]:
    """Blame a bad value on the option that it was given by, if it was, and not on the setting of the same meaning."""
    from swarmkeep.history.archives import ArchiveError

    try:
        yield
    except ArchiveError as error:
        if given is None:
            raise
        raise typer.BadParameter(error.why, param_hint=f"'{option}'") from None


async def _bring_back(store: SqlStore, archive: Archive, tenant: str, ids: Sequence[str]) -> int:
    from swarmkeep.store.records import SessionKey

    count = 0
    for session_id in ids:
        key = SessionKey(tenant, session_id)
        if await store.read_head(key) is None:
            raise SessionNotFound(session_id)
        count += await archive.bring_back(key)
    return count


async def _list_due(store: SqlStore, archive: Archive, tenant: str | None, age: timedelta) -> int:
    count = 0
    for name in [tenant] if tenant else await store.list_totals():
        last = None
        while page := await archive.list_due(name, age, after=last):
            for session in page:
                put(f"{session.key.id}  {session.active_at}")
            count, last = count + len(page), page[-1]
    return count
