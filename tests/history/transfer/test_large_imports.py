"""A large import keeps nobody waiting: it is read, verified and folded before its transaction, and off the loop."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import MessageAdded, SessionCreated
from swarmkeep.events.state import State
from swarmkeep.history.import_export import import_export, verify_export
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.history.transfer.test_odd_times import read_refusal, write_session

_PATIENCE_SECONDS = 20


def write_long_session(messages: int, text: str = "x" * 200) -> bytes:
    said = MessageAdded(message={"role": "user", "content": text})
    return write_session(*[said] * messages)


class HeldFile(io.BytesIO):
    """A file that stops in the middle of being read for the second time, which is when it is recorded."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._starts = self._lines = 0
        self.reached = threading.Event()
        self.released = threading.Event()

    def seek(self, offset: int, whence: int = 0) -> int:
        self._starts += offset == 0
        self._lines = 0
        return super().seek(offset, whence)

    def readline(self, size: int | None = -1) -> bytes:
        self._lines += 1
        if self._lines == 300 and self._starts > 1 and not self.reached.is_set():
            self.reached.set()
            assert self.released.wait(_PATIENCE_SECONDS), "nobody else was let in"
        return super().readline(size)


async def test_others_record_during_import(store: SqlStore) -> None:
    file = HeldFile(write_long_session(500))
    importing = asyncio.create_task(import_export(store, "acme", file))
    assert await asyncio.to_thread(file.reached.wait, _PATIENCE_SECONDS)
    created = draft_events("Ann", [SessionCreated(agent="Ann")], None)
    other = SessionKey("other", "mine")
    appended = asyncio.create_task(store.append(other, State(), created))
    await asyncio.wait([appended, importing], return_when=asyncio.FIRST_COMPLETED)
    # The other tenant's was first; nothing of the import can be seen, though half of it was read.
    assert (appended.done(), importing.done()) == (True, False)
    assert await store.read_head(SessionKey("acme", "s")) is None
    assert await store.read(SessionKey("acme", "s")) == []
    file.released.set()
    assert (await importing).imported == 1
    assert len(await store.read(SessionKey("acme", "s"))) == 502
    assert (await appended).state.seq == 1


async def test_file_changing_during_recording_leaves_nothing(store: SqlStore) -> None:
    text = write_long_session(500)
    file = HeldFile(text)
    importing = asyncio.create_task(import_export(store, "acme", file))
    assert await asyncio.to_thread(file.reached.wait, _PATIENCE_SECONDS)
    file.truncate(len(text) // 2)
    file.released.set()
    with pytest.raises(InvalidImport):
        await importing
    assert await store.read(SessionKey("acme", "s")) == []
    assert (await store.list_sessions("acme")).sessions == []


class TracedFile(io.BytesIO):
    """A file that notes which threads read it."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.threads: set[int] = set()

    def readline(self, size: int | None = -1) -> bytes:
        self.threads.add(threading.get_ident())
        return super().readline(size)


async def test_lines_read_off_loop_and_writer(store: SqlStore) -> None:
    file = TracedFile(write_long_session(5))
    await import_export(store, "acme", file)
    writing = await store.database.write(lambda connection: threading.get_ident())
    assert file.threads
    assert not file.threads & {threading.get_ident(), writing}


def test_session_exceeding_transaction_refused_by_line() -> None:
    text = write_long_session(20)
    size = len(text)
    assert len(list(verify_export(io.BytesIO(text), max_session_bytes=size))) == 1
    with pytest.raises(InvalidImport, match=f"more than {size - 1} bytes") as error:
        list(verify_export(io.BytesIO(text), max_session_bytes=size - 1))
    assert error.value.line == 21
    assert read_refusal(b"").line == 1


@pytest.mark.parametrize("values", [b"[" + b",".join([b"[]"] * 300_000) + b"]", b"{" + b'"a":{' * 150 + b"}" * 151])
def test_line_with_too_many_values_refused(values: bytes) -> None:
    lines = write_long_session(2).splitlines(keepends=True)
    start = lines[1].index(b'"data":') + len(b'"data":')
    hostile = lines[1][:start] + values + lines[1][lines[1].index(b',"hash":') :]
    with pytest.raises(InvalidImport, match="more than 100 JSON values") as error:
        list(verify_export(io.BytesIO(b"".join([lines[0], hostile])), max_line_values=100))
    assert error.value.line == 2
    assert read_refusal(b"".join([lines[0], hostile])).line == 2


async def test_server_limit_applies(store: SqlStore) -> None:
    text = write_long_session(2)
    with pytest.raises(InvalidImport, match="more than 2 JSON values"):
        await import_export(store, "acme", io.BytesIO(text), max_line_values=2)
    assert (await import_export(store, "acme", io.BytesIO(text), max_line_values=100)).imported == 1
