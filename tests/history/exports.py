"""Exports to import again: of sessions in a store, and forged ones that no server wrote."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping

import pytest

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import EventDraft, SessionCreated, SessionEvent
from swarmkeep.events.state import State
from swarmkeep.history.export import ExportStart, filter_sessions, iterate_keys, write_event_line, write_export
from swarmkeep.history.import_export import verify_export
from swarmkeep.store.hashing import GENESIS, commitment_of, link, seal
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey


async def export_sessions(store: SqlStore, *keys: SessionKey, tenant: str = "", alone: bool = False) -> bytes:
    """These sessions, or all of a tenant."""
    chosen = iterate_keys(keys) if keys else filter_sessions(store, tenant)
    return b"".join([piece async for piece in write_export(store, chosen, alone=alone)])


def forge_export(*facts: SessionEvent, at: str = "2026-01-01T00:00:00.000000Z") -> bytes:
    """An export of a session that nobody recorded, its hashes all right."""
    return forge_events(draft_events("A", facts, "run_1"), at=at)


def forge_events(drafts: list[EventDraft], *, at: str = "2026-01-01T00:00:00.000000Z") -> bytes:
    sealed = seal("s", State(), [EventDraft(SessionCreated(agent="A"), None, "A"), *drafts], at=at)
    begin = ExportStart(seq=len(sealed), hash=sealed[-1].event.hash, alone=True)
    return b"".join(write_event_line(one, {}, begin if one.event.seq == 1 else None) for one in sealed)


def count_sessions(text: bytes) -> int:
    return len(list(verify_export(io.BytesIO(text))))


def read_refusal(text: bytes) -> InvalidImport:
    with pytest.raises(InvalidImport) as error:
        count_sessions(text)
    return error.value


# Exports whose hashes are right, and which are written as no server writes them.

_MEMBERS = ("seq", "type", "version", "run_id", "agent", "at")


def write_raw(*events: Mapping[str, str], id: str = '"forged"', alone: str = "true") -> bytes:
    """A session of one event or more, of whose lines each member can be given as JSON."""
    lines, previous = [], GENESIS
    for number, given in enumerate(events, start=1):
        event = {
            "session_id": id, "seq": str(number), "type": '"new"' if number > 1 else '"session.created"',
            "version": "1", "run_id": "null", "agent": '"Front"', "at": '"2026-01-01T00:00:00.000000Z"',
            "data": '{"agent":"Front","context_variables":{},"metadata":{}}', **given,
        }  # fmt: skip
        commitment = commitment_of(bytes(16), event["data"])
        previous = link(previous, f"[{','.join(event[name] for name in _MEMBERS)}]".encode(), commitment)
        members = ",".join(f'"{name}":{value}' for name, value in event.items())
        lines.append(f'{{{members},"hash":"{previous.hex()}","salt":"{"00" * 16}","commitment":"{commitment.hex()}"')
    begin = f',"export":{{"format":2,"seq":{len(events)},"hash":"{previous.hex()}","alone":{alone}}}'
    lines[0] += begin
    return "".join(f"{line}}}\n" for line in lines).encode()


def write_hostile_exports() -> dict[str, bytes]:
    """What no reader may take for an export, by what is the matter with it."""
    sound = write_raw({})
    file = b'{"record":"file","sha256":"%b","content":"eA=="}\n' % hashlib.sha256(b"x").hexdigest().encode()
    named = f'{{"agent":"Front","context_variables":{{}},"metadata":{{"a":"{hashlib.sha256(b"x").hexdigest()}"}}}}'
    start = sound[sound.index(b',"hash"') : -2]
    head, begin = start[: start.index(b',"export"')], start[start.index(b',"export"') :]
    members = {
        "seq": ["true", "1.0", "1e0", '"1"', "-0"], "version": ["true", "1.5", "null"], "run_id": ["1", "[]"],
        "agent": ["null", "1"], "at": ["null"], "type": ["1"],
    }  # fmt: skip
    data = ['{"a":NaN}', '{"a":-Infinity}', '{"a":1e400}', '{"a":1,"a":2}', '{"a":{"b":1,"\\u0062":2}}', "[1]", '"x"']
    return {
        **{f"{name} {value}": write_raw({name: value}) for name, values in members.items() for value in values},
        **{f"data {value}": write_raw({}, {"data": value}) for value in [*data, '{"a":%s}' % ("1" * 5000)]},
        **{f"id {id}": write_raw({}, id=id) for id in ('"a\\nb: valid"', '"\\ud800"', '""', "true", '"\\u001b[2J"')},
        "order of members": sound.replace(head + begin, begin + head),
        "order of the first line's": sound.replace(b'{"format":2,', b"{").replace(b',"alone"', b',"format":2,"alone"'),
        "later format": sound.replace(b'"format":2', b'"format":3'),
        "no flag": sound.replace(b'"alone":true', b'"alone":1'),
        "alone among others": write_raw({}, id='"a"', alone="false") + sound,
        "twice": sound + sound,
        "begins with a mark": b"\xef\xbb\xbf" + sound,
        "a file before its session": file + write_raw({"data": named}),
        "begins twice": write_raw({}, {"data": "{}"}).replace(b'"}\n', b'"%b}\n' % begin),
    }
