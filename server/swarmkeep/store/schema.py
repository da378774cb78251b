"""Schema migrations as calls. Alembic is slow to load, so it is loaded only where there is something to do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, select, text, update

import swarmkeep_migrations
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.views import find_last_run_status
from swarmkeep.events.wording import pluralize
from swarmkeep.store.contents import MARKS, collect_named, delete_unnamed
from swarmkeep.store.heads import is_head
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.reading import SqlEventReader
from swarmkeep.store.records import NoSuchRevision, SchemaBehind, SessionKey
from swarmkeep.store.search import add_marks, count_strays, delete_strays
from swarmkeep.store.sqlite import ReadOnlyFile
from swarmkeep.store.sqlite_files import open_alone, raise_store_error
from swarmkeep.store.tables import LATEST_REVISION, current_revision, files, of_session, refuse_unknown, sessions
from swarmkeep.store.urls import PostgresServer, SqliteFile, locate
from swarmkeep_migrations import AFTER_STEPS, BEFORE_STEPS, REVISIONS, STEPS, count_steps

if TYPE_CHECKING:
    from alembic.config import Config

    from swarmkeep.store.postgres_connections import Obstacle


log = logging.getLogger(__name__)

T = TypeVar("T")
# How many revisions are done, of how many; None where that is known only at the end.
OnStep = Callable[[int, int | None], None]

# Any constant that no other program takes: its holder migrates, and the others wait and find it done.
_MIGRATION_LOCK_KEY = 7_270_155_302_114_309


def upgrade(url: str, revision: str = "head", *, on_step: OnStep | None = None) -> str | None:
    """Bring a database up to a revision, making a SQLite file if there is none, and return where it is then.

    All of it happens or nothing; of several processes at once, one does it and the others wait. May be called in an
    event loop, which it blocks. Ctrl-C breaks it off.

    Raises BadDatabaseUrl, StoreUnavailable, SchemaBehind and NoSuchRevision.
    """

    found: str | None = None

    def job(connection: Connection) -> str | None:
        nonlocal found
        found = current_revision(connection)
        refuse_unknown(found, locate(url).display)
        # A server that starts on a current database does not load Alembic for it.
        if revision not in ("head", LATEST_REVISION) or found != LATEST_REVISION:
            migrate_to(connection, revision, on_step=on_step)
        return current_revision(connection)

    now = _migrate(url, job, create=True)
    if found not in (None, now):
        log.info("the database was migrated from revision %s to %s", found, now)
    return now


def downgrade(url: str, revision: str, *, on_step: OnStep | None = None) -> str | None:
    """Take a database back to an older revision (`base`: an empty one), and return where it is then."""

    def job(connection: Connection) -> str | None:
        from alembic import command

        found, display = current_revision(connection), locate(url).display
        refuse_unknown(found, display)
        if found is None and revision != "base":
            raise NoSuchRevision(f"the database at {display} is empty: there is nothing to downgrade")
        if found in STEPS:
            # There is one way down.
            migrate_to(connection, AFTER_STEPS)
            found = AFTER_STEPS
        _refuse_losing_sessions(connection, found)
        with _explain_revision(revision):
            command.downgrade(_make_config(connection, _count_steps(found, revision, on_step)), revision)
        return current_revision(connection)

    return _migrate(url, job, create=False)


def _refuse_losing_sessions(connection: Connection, found: str | None) -> None:
    """Raise SchemaBehind if there are sessions that an older schema cannot find or read."""
    if found != LATEST_REVISION:
        return
    away = connection.scalar(text("SELECT count(*) FROM archives WHERE state = 'archived'"))
    if away:
        raise SchemaBehind(
            f"{pluralize(away, 'session is', 'sessions are')} archived, and would be lost: bring them back first, with "
            "`swarmkeep archive --bring-back`"
        )
    for table, what in (("sessions", "session"), ("automations", "automation")):
        encrypted = connection.scalar(text(f"SELECT count(*) FROM {table} WHERE person_key IS NOT NULL"))
        if encrypted:
            raise SchemaBehind(
                f"{pluralize(encrypted, f'{what} is', f'{what}s are')} encrypted by people's keys, which an older "
                "schema does not have: export and delete them first"
            )


def current(url: str) -> str | None:
    """The revision a database is at; None for one without a schema."""
    return _inspect(url, current_revision)


def check(url: str) -> list[str]:
    """List the differences of a database from this release's tables, one line each; empty if it does not."""

    def job(connection: Connection) -> list[str]:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        from swarmkeep.store.tables import metadata

        refuse_unknown(current_revision(connection), locate(url).display)
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_name": lambda name, *_: not is_of_search_index(name)}
        )
        return [_describe_difference(difference) for difference in compare_metadata(context, metadata)]

    return _inspect(url, job)


def is_of_search_index(name: str | None) -> bool:
    """Tell if a table or an index is a database's own way to find words, and so none of `tables`."""
    return name is not None and (name.startswith("search_index") or name == "ix_search_words")


def read_at_one_moment(url: str, job: Callable[[Connection], T]) -> T:
    """Do something that only reads, in one snapshot of the database, however long it takes.

    Raises BadDatabaseUrl, StoreUnavailable, SchemaBehind.
    """
    location = locate(url)
    if isinstance(location, PostgresServer):

        def read(connection: Connection) -> T:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            # Regardless of the database's settings for the short jobs of servers.
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            return job(connection)

        return _run_on_postgres(location, read)
    return _read_sqlite(location, job, no_trace=False)


def find_obstacles(url: str, *, servers: int) -> list[Obstacle]:
    """Find the obstacles that so many servers will meet in a PostgreSQL database.

    Raises BadDatabaseUrl, StoreUnavailable.
    """
    from swarmkeep.store.postgres_connections import find_obstacles
    from swarmkeep.store.tables import metadata

    return _inspect(url, lambda connection: find_obstacles(connection, metadata.tables, servers=servers))


def change_at_once(url: str, job: Callable[[Connection], T]) -> T:
    """Do something in one transaction, with no migration beside it, making a SQLite file if there is none."""
    return _migrate(url, job, create=True)


def migrate_to(connection: Connection, revision: str, *, on_step: OnStep | None = None) -> None:
    """Bring a database up to a revision, as a part of the transaction that the connection is in."""
    from alembic import command

    found = current_revision(connection)
    if found is None and connection.dialect.name == "postgresql":
        from swarmkeep.store.postgres_connections import refuse_encoding

        refuse_encoding(connection)
    config = _make_config(connection, _count_steps(found, revision, on_step))
    # Alembic knows none of `STEPS`: a database at one is at the revision before while it goes on, and one that is to
    # get to one, as an empty database does for an older backup, is at the revision after.
    partial = revision in STEPS and (found is None or found in REVISIONS[: REVISIONS.index(AFTER_STEPS)])
    config.attributes["steps"] = slice(
        count_steps(found) if found in STEPS else 0, count_steps(revision) if partial else None
    )
    if found in STEPS:
        _stamp(connection, BEFORE_STEPS)
    with _explain_revision(revision):
        command.upgrade(config, AFTER_STEPS if partial else revision)
    if partial:
        _stamp(connection, revision)
    elif found in STEPS and current_revision(connection) == BEFORE_STEPS:
        _stamp(connection, found)


def _stamp(connection: Connection, revision: str) -> None:
    connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


@contextlib.contextmanager
def _explain_revision(revision: str) -> Iterator[None]:
    """Alembic takes more than names (`-1`), so that it is the one to say that there is no such revision."""
    from alembic.util.exc import CommandError

    try:
        yield
    except CommandError as error:
        raise NoSuchRevision(
            f"cannot migrate to the revision {revision!r}: this release has {REVISIONS[0]} to {LATEST_REVISION}, "
            "`head` for the newest, and `base` for a database without tables"
        ) from error


def _describe_difference(difference: Any) -> str:
    """A difference in the form that Alembic gives it: a tuple, or a list of those about one column."""
    if isinstance(difference, list):
        return "; ".join(_describe_difference(one) for one in difference)
    verb, *about = difference
    if verb.startswith("modify_"):
        _, table, column, _, found, wanted = about
        return f"{verb.removeprefix('modify_')} of {table}.{column} differs: {found!r}, not {wanted!r}"
    change, _, kind = verb.partition("_")
    thing = about[-1]
    place = f" of {thing.table.name}" if getattr(thing, "table", None) is not None else ""
    named = f"{kind} {thing.name}{place}" if kind != "column" else f"column {thing.name} of {about[-2]}"
    return f"missing: {named}" if change == "add" else f"unexpected: {named}"


def _count_steps(found: str | None, wanted: str, on_step: OnStep | None) -> Callable[..., None]:
    """Make the function that Alembic calls after each revision."""
    places = {None: 0, "base": 0, "head": len(REVISIONS)} | {name: at for at, name in enumerate(REVISIONS, 1)}
    places |= dict.fromkeys(STEPS, places[BEFORE_STEPS])
    # A way that Alembic alone understands (`-1`) has an end that it alone knows.
    total = abs(places[wanted] - places[found]) if wanted in places and found in places else None
    done = itertools.count(1)

    def count(**_: object) -> None:
        if on_step is not None:
            on_step(next(done), total)

    if on_step is not None:
        on_step(0, total)
    return count


def _make_config(connection: Connection, on_version_apply: Callable[..., None]) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(swarmkeep_migrations.__file__).parent).replace("%", "%%"))
    config.attributes.update(connection=connection, on_version_apply=on_version_apply)
    return config


def _migrate(url: str, job: Callable[[Connection], T], *, create: bool) -> T:
    location = locate(url)
    if isinstance(location, SqliteFile):
        with open_alone(location, "rwc" if create else "rw") as connection:
            return job(connection)

    def run_locked(connection: Connection) -> T:
        for name in ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout"):
            # It takes its time, regardless of the database's settings for the short jobs of servers behind a pooler.
            connection.execute(text(f"SET LOCAL {name} = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY})
        return job(connection)

    return _run_on_postgres(location, run_locked)


def _inspect(url: str, job: Callable[[Connection], T]) -> T:
    location = locate(url)
    if isinstance(location, PostgresServer):

        def look(connection: Connection) -> T:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            return job(connection)

        return _run_on_postgres(location, look)
    return _read_sqlite(location, job, no_trace=True)


def _read_sqlite(location: SqliteFile, job: Callable[[Connection], T], *, no_trace: bool) -> T:
    file = ReadOnlyFile(location, no_trace=no_trace)
    try:
        return file.run(job)
    except Exception as error:
        raise_store_error(error, location)
    finally:
        file.close()


def _run_on_postgres(server: PostgresServer, job: Callable[[Connection], T]) -> T:
    from swarmkeep.store import postgres_connections

    async def run() -> T:
        engine = postgres_connections.make_engine(server, pooled=False, command_seconds=None)
        try:
            async with engine.begin() as connection:
                return await connection.run_sync(job)
        except Exception as error:
            postgres_connections.raise_store_error(error, server)
        finally:
            await engine.dispose()

    return _run_in_thread(run)


def _run_in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of the coroutine: of a loop of its own, because the caller may be in one already.

    Ctrl-C cancels it where it waits, and comes out once it has ended: what it was in the middle of is undone by then.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def run() -> T:
        task = asyncio.create_task(work())
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(lambda: asyncio.run(run()))
        try:
            return running.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            # It may have ended by itself just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
            raise


# Leftovers of a server of the release before, which may go on for a while after a migration.

# This release keeps the two alike in every session that does not run, so one of another release wrote last.
_IS_STALE: ColumnElement[bool] = and_(sessions.c.status != "running", sessions.c.active_at != sessions.c.updated_at)
_MARK = files.alias("mark")
# Those of a fork that is being made are marked, and removed by their mark.
_IS_NOBODYS: ColumnElement[bool] = and_(
    files.c.session_id != MARKS,
    ~exists().where(sessions.c.tenant == files.c.tenant, sessions.c.id == files.c.session_id),
    ~exists().where(_MARK.c.tenant == files.c.tenant, _MARK.c.session_id == MARKS, _MARK.c.hash == files.c.session_id),
)


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """`sessions` that stand wrong in lists, `files` of sessions that were deleted, and the number of these sessions of
    which there are `words` in the index."""

    sessions: int
    files: int
    words: int


async def mend_leftovers(
    store: SqlEventReader, *, mend: bool, on_step: Callable[[int, int | None], None] = lambda done, total: None
) -> Leftovers:
    """Find them, and mend them if asked to; servers go on meanwhile. Before the bytes of files are counted.

    `on_step` hears how many sessions are mended, of how many.
    """
    stale, stray, words = await store.database.read_snapshot(_find)
    if mend and stray:
        # What was deleted must not stay readable.
        await store.database.write(lambda connection: connection.execute(delete(files).where(_IS_NOBODYS)), erases=True)
    if mend:
        await store.database.write(_mend_index, erases=words > 0)
    for done, key in enumerate(stale if mend else ()):
        on_step(done, len(stale))
        await _mend_session(store, key)
    return Leftovers(sessions=len(stale), files=stray, words=words)


def _mend_index(connection: Connection) -> None:
    delete_strays(connection)
    add_marks(connection)


def _find(connection: Connection) -> tuple[Sequence[SessionKey], int, int]:
    stale = connection.execute(select(sessions.c.tenant, sessions.c.id).where(_IS_STALE))
    stray = connection.scalar(select(func.count()).select_from(files).where(_IS_NOBODYS))
    return [SessionKey(*row) for row in stale], stray or 0, count_strays(connection)


async def _mend_session(store: SqlEventReader, key: SessionKey) -> None:
    try:
        state = await store.state(key)
    except SessionNotFound:
        return

    def change(connection: Connection) -> None:
        values = {"active_at": sessions.c.updated_at, "last_run": find_last_run_status(state)}
        mine = and_(*of_session(sessions, key), is_head(state), _IS_STALE)
        # If it has gone on, the writer knew better, or it is found the next time.
        if connection.execute(update(sessions).where(mine).values(values)).rowcount:
            delete_unnamed(connection, files, key, collect_named(state).files)

    await store.database.write(change, erases=True)


class Stamped(msgspec.Struct, frozen=True):
    """The stamps of all sessions that were made, kept, and refused because something is wrong."""

    stamped: int
    kept: int
    refused: list[SessionKey]


async def stamp_sessions(store: SqlStore, *, unstamped: bool, on_step: Callable[[], object]) -> Stamped:
    """Sign every session's head with the first key: see `SqlEventLog.stamp`."""
    counts = {"stamped": 0, "kept": 0}
    refused: list[SessionKey] = []
    after: SessionKey | None = None
    while keys := await store.list_session_keys(after=after):
        for key in keys:
            outcome = await store.stamp(key, unstamped=unstamped)
            if outcome == "refused":
                refused.append(key)
            else:
                counts[outcome] += 1
            on_step()
        after = keys[-1]
    return Stamped(counts["stamped"], counts["kept"], refused)
