"""What is cut, edited or something else is refused by its line, and nothing of it is recorded."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from swarmkeep.audit import import_reading
from swarmkeep.audit.export_lines import EventLine, read_line
from swarmkeep.audit.import_ import import_export
from swarmkeep.audit.import_reading import survey
from swarmkeep.domain.drafts import drafted
from swarmkeep.domain.errors import InvalidImport
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import State
from swarmkeep.store.port import SessionKey
from swarmkeep.store.sql import SqlStore, open_store
from tests.audit.test_round_trip import TENANT, export, redacted, take_in, talk
from tests.golden.make import fill


@pytest.fixture
async def text(sqlite_ready: str) -> AsyncIterator[bytes]:
    """An export of two sessions with every type of event."""
    store = open_store(sqlite_ready)
    await fill(store)
    yield await export(store)
    await store.close()


def refused(text: bytes) -> InvalidImport:
    with pytest.raises(InvalidImport) as error:
        list(survey(io.BytesIO(text)))
    return error.value


def test_a_whole_export_is_not_refused(text: bytes) -> None:
    assert len(list(survey(io.BytesIO(text)))) == 2


def test_an_export_cut_after_any_line_is_refused_by_the_line_that_is_missing(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for count in range(len(lines)):
        assert refused(b"".join(lines[:count])).line == max(count + 1, 1)


def test_an_export_cut_in_the_middle_of_any_line_is_refused_by_that_line(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for size in {1, len(line) // 2, len(line) - 1}:
            assert refused(b"".join([*lines[:number], line[:size]])).line == number + 1


def test_a_line_left_out_doubled_or_swapped_is_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1):
        changed = {
            "left out": [*lines[:number], *lines[number + 1 :]],
            "doubled": [*lines[: number + 1], *lines[number:]],
            "swapped": [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
        }
        for how, other in changed.items():
            error = refused(b"".join(other))
            assert error.line is not None, how
            assert error.line <= number + 2, how


def test_a_byte_changed_anywhere_is_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    start = 0
    for line in lines:
        for at in range(start, start + len(line), max(1, len(line) // 40)):
            changed = bytes([text[at] ^ 1])
            refused(text[:at] + changed + text[at + 1 :])
        start += len(line)


def _edited(text: bytes, number: int, change: Callable[[dict[str, Any]], None]) -> bytes:
    lines = text.splitlines(keepends=True)
    value = json.loads(lines[number])
    change(value)
    lines[number] = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return b"".join(lines)


def _first(text: bytes, wanted: bytes) -> int:
    return next(number for number, line in enumerate(text.splitlines()) if wanted in line)


def test_an_edited_event_is_named(text: bytes) -> None:
    number = _first(text, b'"content":"Refund?"')

    def other_text(value: dict[str, Any]) -> None:
        value["data"]["message"]["content"] = "I never said that."

    error = refused(_edited(text, number, other_text))
    assert error.line == number + 1
    assert "not the one that was recorded" in str(error)
    error = refused(_edited(text, number, lambda value: value.update(agent="Somebody else")))
    assert error.line == number + 1
    assert "does not follow" in str(error)


def test_a_payload_without_its_salt_is_refused_unless_it_was_redacted(text: bytes) -> None:
    number = _first(text, b'"seq":3,')
    error = refused(_edited(text, number, lambda value: value.update(data={"made": "up"}, salt=None)))
    assert error.line == number + 1
    assert "no event says that it was redacted" in str(error)


def test_a_text_that_is_not_the_one_that_was_sent_is_refused(text: bytes) -> None:
    number = _first(text, b'"texts":')

    def other_text(value: dict[str, Any]) -> None:
        value["texts"] = dict.fromkeys(value["texts"], "I was told otherwise.")

    assert refused(_edited(text, number, other_text)).line == number + 1


def test_a_newer_format_is_refused_by_its_name(text: bytes) -> None:
    newer = text.replace(b'"export":{"format":1', b'"export":{"format":2', 1)
    assert "format is 2, and this one reads 1" in str(refused(newer))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (b"", 1, "empty"),
        (b"hello\n", 1, "no JSON"),
        (b"[]\n", 1, "no JSON object"),
        (b"{}\n", 1, "no line of an export"),
        (b'{"record":"other"}\n', 1, "no line of an export"),
        (b"\xff\xfe\n", 1, "no JSON"),
        (b'{"session_id":"s","seq":1,"hash":"00","type":"session.created"}\n', 1, "no salt"),
        (b'{"record":"end","sessions":1,"events":1,"sha256":""}\n', 1, "missing or changed"),
        (b"[" * 100_000 + b"\n", 1, "no JSON"),
    ],
)
def test_something_else_is_refused(text: bytes, line: int, why: str) -> None:
    error = refused(text)
    assert error.line == line
    assert why in str(error)


def test_lines_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_reading, "MAX_LINE_BYTES", 100)
    assert "longer than 100 bytes" in str(refused(b'{"session_id":"' + b"y" * 200))


def test_what_no_database_holds_is_refused(text: bytes) -> None:
    line = text.splitlines()[_first(text, b'"seq":1,')]
    assert isinstance(read_line(line), EventLine)
    deep = b'{"agent":' + b"[" * 600 + b"]" * 600 + b"}"
    for old, new in {
        b'"data":{': b'"data":{"n":1e999,',
        b'"version":1': b'"version":99999999999',
        b'"at":"2': b'"at":"\x00',
    }.items():
        changed = line.replace(old, new, 1)
        assert changed != line
        refused(text.replace(line, changed))
    start = line.index(b'"data":') + 7
    end = line.rindex(b',"hash"', 0, line.rindex(b',"salt"'))
    assert "nested deeper" in str(refused(text.replace(line, line[:start] + deep + line[end:])))


async def test_nothing_is_recorded_of_a_file_that_is_refused_at_its_end(store: SqlStore, other: SqlStore) -> None:
    for name in "abc":
        await talk(store, name, "hello")
    with pytest.raises(InvalidImport):
        await take_in(other, (await export(store))[:-100])
    assert (await other.sessions(TENANT)).sessions == []


class Changing(io.BytesIO):
    """A file that somebody else writes to as soon as it has been read once."""

    def __init__(self, before: bytes, after: bytes) -> None:
        super().__init__(before)
        self._after = after

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if offset == 0 and whence == 0 and self.tell():
            self.truncate(0)
            super().seek(0)
            self.write(self._after)
        return super().seek(offset, whence)


async def test_a_file_that_changes_meanwhile_leaves_no_half_session(store: SqlStore, other: SqlStore) -> None:
    state = await talk(store, "s", *map(str, range(450)))
    before = await export(store)
    lines = before.splitlines(keepends=True)
    after = b"".join([*lines[:-30], lines[-1]])
    with pytest.raises(InvalidImport):
        await import_export(other, TENANT, Changing(before, after))
    key = SessionKey(TENANT, "s")
    assert await other.head(key) is None
    assert await other.read(key) == []
    assert await other.blobs(key, [digest("0")]) == {}
    fact = MessageAdded(message={"role": "user", "content": "on"})
    await store.append(key, state, drafted("Ann", [fact], None))
    with pytest.raises(InvalidImport, match="changed while it was read"):
        await import_export(other, TENANT, Changing(before, await export(store)))
    await other.append(key, State(), drafted("Ann", [fact], None))


async def test_what_stands_in_for_a_redacted_payload_cannot_be_changed(store: SqlStore) -> None:
    await redacted(store, "s")
    text = await export(store)
    assert len(list(survey(io.BytesIO(text)))) == 1
    number = _first(text, b'"seq":2,')
    error = refused(_edited(text, number, lambda value: value.update(data={"redacted": "no"})))
    assert error.line == number + 1
