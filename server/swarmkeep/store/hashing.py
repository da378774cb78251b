"""The hash chain, which makes a change of the past show.

For the event with number `seq`, with all texts in UTF-8 and SHA-256 throughout:

    commitment = SHA256(salt || payload)            salt: 16 random bytes; payload: the stored text, byte for byte
    header     = [seq,type,version,run_id,agent,at] as compact JSON (no spaces; run_id may be null)
    hash       = SHA256(previous || header || commitment)

`previous` is the hash of event seq - 1, and 32 zero bytes for the first. The header's JSON escapes only what it must:
`\\"`, `\\\\`, `\\b`, `\\f`, `\\n`, `\\r`, `\\t`, other control characters as `\\u00xx`; if one of its texts holds a
lone surrogate, everything beyond ASCII is escaped as `\\uxxxx`. Neither tenant nor session id is hashed, so a fork's
copied events keep their hashes.

The chain runs over commitments, so a payload can be redacted, its salt with it, and the chain still verifies; and
because of the salt nobody can guess a short payload from what remains.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec

from swarmkeep.agent.values import MAX_DEPTH
from swarmkeep.domain.codec import count_levels, decode, encode
from swarmkeep.domain.envelope import EventDraft, RecordedEvent, decode_fact, encode_payload
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import SessionEvent, UnknownFact
from swarmkeep.domain.state import State

GENESIS = bytes(32)
SALT_BYTES = 16
MAX_PAYLOAD_DEPTH = MAX_DEPTH + 8
"""Levels of a payload's JSON: those that a value may have, and a few around it."""


class SealedEvent(msgspec.Struct, frozen=True):
    """An event with what its hash is made of. `salt` is None once the payload was redacted."""

    event: RecordedEvent
    salt: bytes | None
    commitment: bytes


def commitment_of(salt: bytes, payload: str) -> bytes:
    return hashlib.sha256(salt + payload.encode()).digest()


def header_of(seq: int, type: str, version: int, run_id: str | None, agent: str, at: str) -> bytes:
    return encode((seq, type, version, run_id, agent, at))


def link(previous: bytes, header: bytes, commitment: bytes) -> bytes:
    """The hash of the event that follows the one with hash `previous`."""
    return hashlib.sha256(b"".join((previous, header, commitment))).digest()


def last_hash(state: State) -> bytes:
    """The hash that the next event continues."""
    return bytes.fromhex(state.hash) if state.seq else GENESIS


def random_salts(count: int) -> list[bytes]:
    salts = os.urandom(SALT_BYTES * count)
    return [salts[start : start + SALT_BYTES] for start in range(0, len(salts), SALT_BYTES)]


def seal(
    session_id: str,
    base: State,
    drafts: Sequence[EventDraft],
    *,
    at: str,
    salts: Callable[[int], Iterable[bytes]] = random_salts,
) -> list[SealedEvent]:
    """The drafts as the events that follow `base`, numbered and hashed.

    Raises InvalidRequest for a fact that JSON cannot hold.
    """
    previous = last_hash(base)
    sealed = []
    for seq, (draft, salt) in enumerate(zip(drafts, salts(len(drafts)), strict=True), base.seq + 1):
        fact = draft.fact
        payload, stored = _encode_payload(fact)
        commitment = commitment_of(salt, payload)
        header = header_of(seq, fact.type, fact.version, draft.run_id, draft.agent, at)
        previous = link(previous, header, commitment)
        event = RecordedEvent(
            session_id=session_id,
            seq=seq,
            type=fact.type,
            version=fact.version,
            run_id=draft.run_id,
            agent=draft.agent,
            at=at,
            hash=previous.hex(),
            payload=payload,
            fact=stored,
        )
        sealed.append(SealedEvent(event, salt, commitment))
    return sealed


def _encode_payload(fact: SessionEvent) -> tuple[str, SessionEvent]:
    """The text to store, and the fact as it will be read back: whoever holds `fact` may still change what is in it."""
    if isinstance(fact, UnknownFact):
        raise InvalidRequest("events of an unknown type can be read but not recorded")
    try:
        payload = encode_payload(fact)
        if (
            payload.count("[") + payload.count("{") > MAX_PAYLOAD_DEPTH
            and count_levels(decode(payload)) > MAX_PAYLOAD_DEPTH
        ):
            raise InvalidRequest(f"{fact.type}: the value is nested more than {MAX_PAYLOAD_DEPTH} levels deep")
        return payload, decode_fact(fact.type, payload)
    except RecursionError:
        raise InvalidRequest(f"{fact.type}: the value is nested more than {MAX_PAYLOAD_DEPTH} levels deep") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{fact.type}: {error}") from None
