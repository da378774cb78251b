"""`python -m tests.golden.make`: a golden database for the present version, made once, at its release.

Beside the SQLite file stand the rows of every table as JSON, for PostgreSQL, and what this version made of the events:
the state after each one, and exports of both kinds: of all sessions, and of one alone. A later version that reads
anything else from them is wrong.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import swarmkeep
from swarmkeep.events.codec import decode, digest, encode
from swarmkeep.events.facts import EventDraft, SessionRedacted
from swarmkeep.events.messages import list_fact_files, list_text_hashes
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.state import State
from swarmkeep.events.views import collect_runs, view_run, view_session
from swarmkeep.history.export import filter_sessions, iterate_keys, write_export
from swarmkeep.history.redact import read_whole_log, redact
from swarmkeep.runs.identifiers import derive_child, make_parent
from swarmkeep.runs.sessions import fork_session
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import IdempotencyRecord, SessionKey
from swarmkeep.store.tables import metadata
from tests.golden.conversations import BLOBS, make_shop
from tests.golden.telling import WORKSHOP_BLOBS, Session
from tests.golden.workshop import make_guarded, make_letters, make_shortened, make_taken_over
from tests.golden.workshop_calls import make_calls, make_child

SHOP, FORK = SessionKey("default", "shop"), SessionKey("default", "shop:fork")
CALLS, CHILD_CALL = SessionKey("default", "calls"), "w4"
GUARDED, TAKEN_OVER = SessionKey("default", "guarded"), SessionKey("default", "taken-over")
SHORTENED, LETTERS = SessionKey("default", "shortened"), SessionKey("default", "letters")
FORKED_AT = 12
# Of `make_shortened`: the result of a call, and a summary.
REDACTED = (10, 16)
MARKS = {
    0: IdempotencyRecord(key="key-0", digest="c" * 64),
    1: IdempotencyRecord(key="key-1", digest="d" * 64, run_id="run_1"),
}
"""The idempotency keys that the first requests come with."""


def make_clock() -> Callable[[], datetime]:
    """A clock that goes on by a second each time it is looked at."""
    times = iter(range(1_000_000))
    return lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(times), microseconds=7)


def describe_state(session_id: str, state: State) -> dict[str, Any]:
    """All that callers can see of a state."""
    runs = [view_run(session_id, state, run) for run in collect_runs(state)]
    messages = [entry.view() for entry in state.messages]
    return {"session": view_session(session_id, state), "runs": runs, "messages": messages}


async def fill_store(store: SqlStore) -> None:
    state = State()
    for number, drafts in enumerate(make_shop()):
        blobs = BLOBS if state.seq else {}
        if isinstance(drafts[0].fact, SessionRedacted):
            state = await redact_events(store, drafts[0])
            continue
        state = (await store.append(SHOP, state, drafts, blobs=blobs, idempotency=MARKS.get(number))).state
    await fork_session(store, SHOP, at=FORKED_AT, session_id=FORK.id, metadata={"fork": 1})


async def fill_golden(store: SqlStore) -> None:
    """All that a golden database holds: what 0.1.0 could do, and what can be done since."""
    await fill_store(store)
    created = make_calls("")[0]
    state = (await store.append(CALLS, State(), created)).state
    child = derive_child(CALLS, state, "run_w", CHILD_CALL)
    parent = make_parent(CALLS, state, "run_w", CHILD_CALL)
    await tell(store, child, make_child(parent))
    await tell(store, CALLS, make_calls(child.id)[1:], state)
    for key, told in (
        (GUARDED, make_guarded()),
        (TAKEN_OVER, make_taken_over()),
        (SHORTENED, make_shortened()),
        (LETTERS, make_letters()),
    ):
        await tell(store, key, told)
    await redact(store, SHORTENED, REDACTED, "asked to be forgotten", by="Lee")


async def tell(store: SqlStore, key: SessionKey, told: Session, state: State | None = None) -> None:
    state = state or State()
    for drafts in told:
        named = {name for draft in drafts for name in (*list_text_hashes(draft.fact), *list_fact_files(draft.fact))}
        blobs = {name: WORKSHOP_BLOBS[name] for name in sorted(named)}
        state = (await store.append(key, state, drafts, blobs=blobs)).state


async def redact_events(store: SqlStore, draft: EventDraft) -> State:
    """Do what the draft says: the texts of its events go."""
    assert isinstance(draft.fact, SessionRedacted)
    log = await read_whole_log(store, SHOP)
    texts = {seq: redact_payload(log[seq - 1].event) for seq in draft.fact.seqs}
    fact = replace(draft.fact, kept=tuple(digest(text) for text in texts.values()))
    return (await store.redact(SHOP, log, texts, EventDraft(fact, draft.run_id, draft.agent))).state


async def list_keys(store: SqlStore) -> list[SessionKey]:
    """All sessions, children included, in the order of their names."""
    return sorted([key async for key in filter_sessions(store, SHOP.tenant)], key=lambda key: key.id)


async def write_exports(store: SqlStore, folder: Path) -> None:
    every = [piece async for piece in write_export(store, iterate_keys(await list_keys(store)))]
    one = [piece async for piece in write_export(store, iterate_keys([CALLS]), alone=True)]
    (folder / "export.jsonl").write_bytes(b"".join(every))
    (folder / "export-alone.jsonl").write_bytes(b"".join(one))


async def list_states(store: SqlStore) -> dict[str, Any]:
    """What each session looks like after each of its events."""
    seen: dict[str, Any] = {}
    for key in await list_keys(store):
        last = (await store.state(key)).seq
        seen[key.id] = [describe_state(key.id, await store.state(key, at=seq)) for seq in range(1, last + 1)]
    return seen


def read_states(release: Path) -> Any:
    """What a release made of its events."""
    packed = release / "states.json.gz"
    return decode(gzip.decompress(packed.read_bytes()) if packed.exists() else (release / "states.json").read_bytes())


def read_rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table, its bytes in base64."""

    def plain(value: Any) -> Any:
        return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value

    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            table.name: [
                {name: plain(row[name]) for name in row.keys()}  # noqa: SIM118  (a Row iterates over its values)
                for row in connection.execute(f'SELECT * FROM "{table.name}"')
            ]
            for table in metadata.sorted_tables
        }


async def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "swarmkeep.db"
        url = f"sqlite:///{path}"
        schema.upgrade(url)
        store = open_store(url, clock=make_clock())
        await fill_golden(store)
        seen = encode(await list_states(store))
        await write_exports(store, folder)
        await store.close()
        (folder / "states.json.gz").write_bytes(gzip.compress(seen, mtime=0))
        (folder / "rows.json").write_text(json.dumps(read_rows(path), indent=1) + "\n")
        shutil.copy(path, folder / "swarmkeep.db")


def main() -> None:
    folder = Path(__file__).parent / swarmkeep.__version__
    if folder.exists():
        sys.exit(f"{folder} is there already; what was released is never made again")
    folder.mkdir()
    asyncio.run(make(folder))
    print(folder)


if __name__ == "__main__":
    main()
