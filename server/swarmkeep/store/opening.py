"""Opens stores: the one place that knows both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import msgspec

from swarmkeep.store.archives import SqlArchives
from swarmkeep.store.audit import SqlAuditLog, SqlAuditReader
from swarmkeep.store.automations import SqlAutomations
from swarmkeep.store.feed import SqlFeed
from swarmkeep.store.head_log import SqlHeadLog
from swarmkeep.store.heads import SqlLeases
from swarmkeep.store.index import SqlActiveRuns, SqlSessionIndex
from swarmkeep.store.integrity import IntegrityKeys
from swarmkeep.store.log import CACHE_BYTES, OnAppend, OnDamage, SqlEventLog
from swarmkeep.store.made_agents import SqlMadeAgents
from swarmkeep.store.person_keys import Keyring, open_key_source
from swarmkeep.store.records import Clock, SessionKey, utc_now
from swarmkeep.store.runs import SqlRunTable
from swarmkeep.store.search import SqlSearchIndexer
from swarmkeep.store.sqlite import SqliteDatabase
from swarmkeep.store.statements import Database
from swarmkeep.store.tables import require_latest
from swarmkeep.store.urls import SqliteFile, locate
from swarmkeep.store.usage import SqlTotals, SqlUsageIndex
from swarmkeep.store.webhooks import SqlWebhooks


class SqlStore(
    SqlEventLog,
    SqlLeases,
    SqlSessionIndex,
    SqlActiveRuns,
    SqlSearchIndexer,
    SqlUsageIndex,
    SqlRunTable,
    SqlTotals,
    SqlAuditReader,
    SqlAuditLog,
    SqlHeadLog,
    SqlFeed,
    SqlWebhooks,
    SqlArchives,
    SqlAutomations,
    SqlMadeAgents,
):
    """A database of sessions. Each call is atomic and, once it returns, durable.

    Each base class is a subject. SQLite and PostgreSQL run the same statements.
    """

    def __init__(
        self,
        database: Database,
        *,
        display: str,
        clock: Clock = utc_now,
        only: SessionKey | None = None,
        read_seconds: float | None = None,
        **of_log: Any,
    ) -> None:
        # These keep something of their own; the others need the database only.
        SqlTotals.__init__(self, database, clock=clock)
        SqlLeases.__init__(self, database, only=only)
        SqlEventLog.__init__(self, database, clock=clock, **of_log)
        self.read_seconds = read_seconds
        self.display = display
        """The database's URL without its password."""

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Call `on_change` with each session that another process has just changed, until cancelled.

        These are hints: they may be late, doubled or lost, and where the database cannot give any, none come.
        """
        await self.database.listen(on_change)

    async def ping(self) -> None:
        """Touch the database; once a write has failed, try whether it takes any.

        Raises StoreUnavailable, or SchemaBehind when migrations are missing.
        """
        await self.database.read(lambda connection: require_latest(connection, self.display))
        await self.database.check_writable()

    async def close(self) -> None:
        """Finish the writes that wait, then close every connection."""
        await self.database.close()


class StoreOptions(TypedDict, total=False):
    """The options of `open_store` by which what is stored is signed and encrypted: the same for all who open it."""

    integrity_key: str | None
    person: str | None
    person_keys: str | None


def open_store(
    url: str,
    *,
    clock: Clock = utc_now,
    cache_bytes: int = CACHE_BYTES,
    read_only: bool = False,
    max_waiting: int = 1000,
    only: SessionKey | None = None,
    on_append: OnAppend | None = None,
    on_damage: OnDamage | None = None,
    integrity_key: str | None = None,
    person: str | None = None,
    person_keys: str | None = None,
    read_seconds: float | None = None,
) -> SqlStore:
    """The store in the database that `url` names. Nothing is opened before the first call, and nothing ever created.

    `clock` gives the events' times. `cache_bytes` bounds the memory of folded states. `read_only` refuses writes and
    leaves a SQLite file's directory as it is. Above `max_waiting` writes at once, more are Overloaded.

    `only` is the one session that this process looks after: it takes over no other's abandoned runs. `on_append` is
    called after each append, `on_damage` with each session that is found damaged here first. `read_seconds` is how long
    a list or a sum may take, whose cost callers choose. With an `integrity_key`, or several with commas between them,
    heads are stamped, and only those that are can be gone on from. With `person`, the name of a metadata key, each
    session that has it is encrypted by its person's key; `person_keys` is where such keys are (see `open_key_source`).

    Raises BadDatabaseUrl and PersonKeyError.
    """
    keyring = Keyring(open_key_source(person_keys))
    location = msgspec.structs.replace(locate(url), keyring=keyring)
    database: Database
    if isinstance(location, SqliteFile):
        database = SqliteDatabase(location, read_only=read_only, max_waiting=max_waiting)
    else:
        # Its half of SQLAlchemy takes longer to load than all the rest.
        from swarmkeep.store.postgres import PostgresDatabase

        database = PostgresDatabase(location, read_only=read_only, max_waiting=max_waiting)
    return SqlStore(
        database,
        display=location.display,
        clock=clock,
        cache_bytes=cache_bytes,
        only=only,
        on_append=on_append,
        on_damage=on_damage,
        integrity_keys=IntegrityKeys(integrity_key or ""),
        person=person,
        keyring=keyring,
        read_seconds=read_seconds,
    )
