"""An export that was cut, edited or replaced is refused by its line, and none of it is recorded."""

from __future__ import annotations

import hashlib
import io
import json
import re
import re._parser as sre  # type: ignore[import-not-found]
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import decode, digest
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.state import State
from swarmkeep.history import export, swarmkeep_verify
from swarmkeep.history.export import EventLine, InvalidLine, read_export_line
from swarmkeep.history.import_export import ExportLines, import_export, verify_export
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.golden.make import fill_store
from tests.history.exports import write_hostile_exports, write_raw
from tests.history.transfer.test_round_trip import (
    TENANT,
    export_bytes,
    import_bytes,
    record_redacted_session,
    record_session,
)
from tests.support.hypothesis_profiles import examples


@pytest.fixture
async def text(sqlite_ready: str) -> AsyncIterator[bytes]:
    """An export of two sessions with every type of event."""
    store = open_store(sqlite_ready)
    await fill_store(store)
    yield await export_bytes(store)
    await store.close()


def read_refusal(text: bytes) -> InvalidImport:
    with pytest.raises(InvalidImport) as error:
        list(verify_export(io.BytesIO(text)))
    # The verifier for strangers finds the same, with nothing but Python.
    with pytest.raises(swarmkeep_verify.Bad):
        list(swarmkeep_verify.read_export(io.BytesIO(text)))
    return error.value


def test_a_whole_export_is_not_refused(text: bytes) -> None:
    assert len(list(verify_export(io.BytesIO(text)))) == 2
    found = list(swarmkeep_verify.read_export(io.BytesIO(text)))
    assert [one.hash.hex() for one in found] == [one.begin.hash for one in verify_export(io.BytesIO(text))]


def split_into_single(text: bytes) -> list[bytes]:
    """Each session of an export as it is exported alone: without a last line that has a digest of the others."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if b',"export":{' in line]
    return [
        b"".join(lines[start:end]).replace(b'"alone":false', b'"alone":true')
        for start, end in pairwise([*starts, len(lines) - 1])
    ]


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_both_verifiers_agree_on_mutated_files(text: bytes, data: st.DataObject) -> None:
    """Bytes changed, put in, taken out or moved, and lines taken out, repeated or exchanged."""
    text = data.draw(st.sampled_from([text, *split_into_single(text)]))
    lines = text.splitlines(keepends=True)
    # What stands behind the payload of a first line is in no hash but that of a last line.
    start = text.index(b',"export":{')
    place = st.integers(0, len(text) - 1) | st.integers(start, start + 200)
    line = st.integers(0, len(lines) - 1)
    match data.draw(st.sampled_from(["change", "insert", "remove", "drop", "repeat", "swap"])):
        case "change":
            at = data.draw(place)
            changed = text[:at] + bytes([data.draw(st.integers(32, 126))]) + text[at + 1 :]
        case "insert":
            at = data.draw(place)
            changed = text[:at] + data.draw(st.sampled_from([b'"', b"0", b"\\", b"\n", b",", b" "])) + text[at:]
        case "remove":
            at = data.draw(place)
            changed = text[:at] + text[at + data.draw(st.integers(1, 20)) :]
        case "drop":
            at = data.draw(line)
            changed = b"".join(lines[:at] + lines[at + 1 :])
        case "repeat":
            at = data.draw(line)
            changed = b"".join(lines[:at] + lines[at:][:1] + lines[at:])
        case _:
            one, other = data.draw(line), data.draw(line)
            lines[one], lines[other] = lines[other], lines[one]
            changed = b"".join(lines)
    assert is_valid_for_stranger(changed) == is_valid_here(changed)


def test_what_no_digest_is_over_is_read_alike(text: bytes) -> None:
    """The first line of a session that is exported alone, spaces, letters of digits, and a session that comes twice."""
    one = split_into_single(text)[0]
    assert is_valid_here(one)
    assert is_valid_for_stranger(one)
    changes = [
        (b'"format":2', b'"format":3'), (b'"format":2', b'"format":true'), (b'"format":2,', b""),
        (b'"alone":true', b'"alone":1'), (b'"export":{', b'"export":{"more":1,'), (b'"export":{', b'"export": {'),
        (b'"format":2,', b'"format":2, '), (b'"texts":{', b'"texts":{ '),
    ]  # fmt: skip
    changed = [one.replace(*change, 1) for change in changes] + [one + one]
    for name in (b"salt", b"commitment", b"hash"):
        begin = one.index(b'"%b":"' % name) + len(name) + 4
        changed += [one[:begin] + one[begin:].replace(letter, letter.upper(), 1) for letter in (b"a", b"e")]
        changed.append(one[: begin + 2] + b" " + one[begin + 2 :])
    for other in changed:
        assert other != one
        assert not is_valid_here(other)
        assert not is_valid_for_stranger(other)


def test_no_reader_takes_what_no_server_writes() -> None:
    sound = write_raw({}, {"data": '{"a":[1.5,-0,1e9,' + "1" * 100 + "]}"})
    assert is_valid_here(sound)
    assert is_valid_for_stranger(sound)
    for what, hostile in write_hostile_exports().items():
        assert (what, is_valid_here(hostile), is_valid_for_stranger(hostile)) == (what, False, False)


def test_line_of_a_missing_session_holds_what_is_written_there(text: bytes) -> None:
    """Its own last line says that nothing is wrong; readers repeat what it says, in reports and on terminals."""
    line = b'{"record":"missing","session_id":"s-9","code":"archive_missing","detail":"it is not there"}\n'

    def close(begin: bytes) -> bytes:
        end = export.ExportEnd(sessions=0, events=0, sha256=hashlib.sha256(begin).hexdigest())
        return begin + export.write_end_line(end)

    missing: dict[str, export.MissingSession] = {}
    assert list(verify_export(io.BytesIO(close(line)), missing=missing)) == []
    assert missing["s-9"].detail == "it is not there"
    changes = [
        (b"s-9", b"s/9"), (b"there", rb"\ud800"), (b"there", b"x" * 400), (b"there", rb"\u001b"), (b"_m", b" m"),
        (b"}", b',"more":1}'), (b'","d', b'", "d'), (b"missing", b"absent"),
    ]  # fmt: skip
    one = split_into_single(text)[0]
    named = line.replace(b"s-9", decode(one.splitlines()[0])["session_id"].encode())
    both = one + close(named)
    assert (is_valid_here(both), is_valid_for_stranger(both)) == (True, True)
    cut = [line, close(line) + line, line + text, named + one]
    for changed in [close(line.replace(*change, 1)) for change in changes] + cut:
        read_refusal(changed)


def is_valid_here(text: bytes) -> bool:
    try:
        list(verify_export(io.BytesIO(text)))
    except InvalidImport:
        return False
    return True


def is_valid_for_stranger(text: bytes) -> bool:
    try:
        list(swarmkeep_verify.read_export(io.BytesIO(text)))
    except swarmkeep_verify.Bad:
        return False
    return True


def test_export_cut_between_lines_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for count in range(len(lines)):
        assert read_refusal(b"".join(lines[:count])).line == max(count + 1, 1)


def test_export_cut_within_line_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for size in {1, len(line) // 2, len(line) - 1}:
            assert read_refusal(b"".join([*lines[:number], line[:size]])).line == number + 1


def test_missing_doubled_or_swapped_line_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    for number in range(len(lines) - 1):
        changed = {
            "left out": [*lines[:number], *lines[number + 1 :]],
            "doubled": [*lines[: number + 1], *lines[number:]],
            "swapped": [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]],
        }
        for how, other in changed.items():
            error = read_refusal(b"".join(other))
            assert error.line is not None, how
            assert error.line <= number + 2, how


@pytest.mark.long
def test_a_byte_changed_anywhere_is_refused(text: bytes) -> None:
    lines = text.splitlines(keepends=True)
    start = 0
    for line in lines:
        for at in range(start, start + len(line), max(1, len(line) // examples(40))):
            changed = bytes([text[at] ^ 1])
            read_refusal(text[:at] + changed + text[at + 1 :])
        start += len(line)


def _edit_line(text: bytes, number: int, change: Callable[[dict[str, Any]], None]) -> bytes:
    lines = text.splitlines(keepends=True)
    value = json.loads(lines[number])
    change(value)
    lines[number] = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return b"".join(lines)


def _find_line(text: bytes, wanted: bytes) -> int:
    return next(number for number, line in enumerate(text.splitlines()) if wanted in line)


def test_an_edited_event_is_named(text: bytes) -> None:
    number = _find_line(text, b'"content":"Refund?"')

    def other_text(value: dict[str, Any]) -> None:
        value["data"]["message"]["content"] = "I never said that."

    error = read_refusal(_edit_line(text, number, other_text))
    assert error.line == number + 1
    assert "not the one that was recorded" in str(error)
    error = read_refusal(_edit_line(text, number, lambda value: value.update(agent="Somebody else")))
    assert error.line == number + 1
    assert "does not match it and the hash before" in str(error)


def test_unredacted_payload_without_salt_refused(text: bytes) -> None:
    number = _find_line(text, b'"seq":3,')
    stand_in = {"options": {}, "redacted": True}
    error = read_refusal(_edit_line(text, number, lambda value: value.update(data=stand_in, salt=None)))
    assert error.line == number + 1
    assert "no event says that it was redacted" in str(error)
    error = read_refusal(_edit_line(text, number, lambda value: value.update(data={"made": "up"}, salt=None)))
    assert error.line == number + 1
    assert "not what redaction leaves" in str(error)


def test_altered_sent_text_refused(text: bytes) -> None:
    number = _find_line(text, b'"texts":')

    def other_text(value: dict[str, Any]) -> None:
        value["texts"] = dict.fromkeys(value["texts"], "I was told otherwise.")

    assert read_refusal(_edit_line(text, number, other_text)).line == number + 1


def test_newer_format_refused_by_name(text: bytes) -> None:
    newer = text.replace(b'"export":{"format":2', b'"export":{"format":3', 1)
    assert "format is 3, and this release reads formats up to 2" in str(read_refusal(newer))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (b"", 1, "empty"),
        (b"hello\n", 1, "not JSON"),
        (b"[]\n", 1, "not a line of an export"),
        (b"{}\n", 1, "not a line of an export"),
        (b'{"session_id":"s","se', 1, "cut off in the middle of this line"),
        (b'[{"role": "user", "content": "Hello"}]', 1, "set `from` (`--from`) to its format"),
        (b'[\n  {"role": "user", "content": "Hello"}\n]\n', 1, "set `from` (`--from`) to its format"),
        (b'{"record":"other"}\n', 1, "not a line of an export"),
        (b"\xff\xfe\n", 1, "not JSON"),
        (b'{"session_id":"s","seq":1,"hash":"00","type":"session.created"}\n', 1, "no salt"),
        (b'{"session_id":"s","seq":1}\n', 1, "not an event as an export writes it"),
        (b'{"record":"end","sessions":1,"events":1,"sha256":""}\n', 1, "missing or changed"),
        (b"[" * 100_000 + b"\n", 1, "not JSON"),
    ],
)
def test_something_else_is_refused(text: bytes, line: int, why: str) -> None:
    error = read_refusal(text)
    assert error.line == line
    assert why in str(error)


def test_lines_without_end_are_refused() -> None:
    with pytest.raises(InvalidImport, match="longer than 100 bytes"):
        ExportLines(io.BytesIO(b'{"session_id":"' + b"y" * 200), max_line_bytes=100).next()


def test_what_no_database_holds_is_refused(text: bytes) -> None:
    line = text.splitlines()[_find_line(text, b'"seq":1,')]
    assert isinstance(read_export_line(line), EventLine)
    deep = b'{"agent":' + b"[" * 600 + b"]" * 600 + b"}"
    for old, new in {
        b'"data":{': b'"data":{"n":1e999,',
        b'"version":1': b'"version":99999999999',
        b'"at":"2': b'"at":"\x00',
    }.items():
        changed = line.replace(old, new, 1)
        assert changed != line
        read_refusal(text.replace(line, changed))
    start = line.index(b'"data":') + 7
    end = line.rindex(b',"hash"', 0, line.rindex(b',"salt"'))
    assert "nested deeper" in str(read_refusal(text.replace(line, line[:start] + deep + line[end:])))


async def test_file_refused_at_end_records_nothing(store: SqlStore, other: SqlStore) -> None:
    for name in "abc":
        await record_session(store, name, "hello")
    with pytest.raises(InvalidImport):
        await import_bytes(other, (await export_bytes(store))[:-100])
    assert (await other.list_sessions(SessionFilter(TENANT))).sessions == []


class ChangingFile(io.BytesIO):
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


async def test_changing_file_leaves_no_half_session(store: SqlStore, other: SqlStore) -> None:
    state = await record_session(store, "s", *map(str, range(450)))
    before = await export_bytes(store)
    lines = before.splitlines(keepends=True)
    after = b"".join([*lines[:-30], lines[-1]])
    with pytest.raises(InvalidImport):
        await import_export(other, TENANT, ChangingFile(before, after))
    key = SessionKey(TENANT, "s")
    assert await other.read_head(key) is None
    assert await other.read(key) == []
    assert await other.read_blobs(key, [digest("0")]) == {}
    fact = MessageAdded(message={"role": "user", "content": "on"})
    await store.append(key, state, draft_events("Ann", [fact], None))
    with pytest.raises(InvalidImport, match="changed while it was read"):
        await import_export(other, TENANT, ChangingFile(before, await export_bytes(store)))
    await other.append(key, State(), draft_events("Ann", [fact], None))


async def test_redaction_stand_in_is_immutable(store: SqlStore) -> None:
    await record_redacted_session(store, "s")
    text = await export_bytes(store)
    assert len(list(verify_export(io.BytesIO(text)))) == 1
    number = _find_line(text, b'"seq":2,')
    error = read_refusal(_edit_line(text, number, lambda value: value.update(data={"redacted": "no"})))
    assert error.line == number + 1


TAIL = b',"hash":"%b","salt":null,"commitment":"%b"' % (b"0" * 64, b"0" * 64)


def test_line_separators_in_data_are_read(text: bytes) -> None:
    before, data, after = cut_data(text.splitlines()[0])
    item = b'{"a":1%b,"texts":{},"export":{}}' % TAIL
    hostile = b'{"a":[' + b",".join([item] * 1000) + b"]," + data.removeprefix(b"{")
    read = read_export_line(before + hostile + after)
    assert isinstance(read, EventLine)
    assert read.sealed.event.payload.encode() == hostile
    # No end fits here, and each of the thousand is a place where one might begin.
    for wrong in (hostile + after + b"}", hostile + after[:-1] + b"]", hostile[:-1] + after):
        with pytest.raises(InvalidLine):
            read_export_line(before + wrong)


def cut_data(line: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands in a line before its data, its data, and what stands after it."""
    start, end = line.index(b'"data":') + len(b'"data":'), line.index(b',"hash":')
    return line[:start], line[start:end], line[end:]


def test_line_patterns_avoid_nested_repetition() -> None:
    patterns = [value for value in vars(export).values() if isinstance(value, re.Pattern)]
    assert patterns
    assert [name for one in patterns for name in list_repetitions(sre.parse(one.pattern, one.flags))] == []


def list_repetitions(node: Any) -> Iterator[str]:
    """The unbounded repetitions of a parsed pattern that may give back what they took: each is a loop in a loop."""
    match node:
        case (operation, (_, sre.MAXREPEAT, _)) if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
            yield str(operation)
    if isinstance(node, sre.SubPattern | list | tuple):
        for item in node:
            yield from list_repetitions(item)
