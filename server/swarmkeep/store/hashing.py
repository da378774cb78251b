"""The hash chain, which makes a change of the past show.

For the event with number `seq`, with all texts in UTF-8 and SHA-256 throughout:

    H(name, part, …) = SHA256(size(name) || name || size(part) || part || …)     size: the length in 8 bytes, big-endian

    commitment = H("swarmkeep payload v2", salt, payload)    salt: 16 random bytes; payload: the stored text
    header     = [seq,type,version,run_id,agent,at] as compact JSON (no spaces; run_id may be null)
    hash       = H("swarmkeep event v2", previous, header, commitment)

`previous` is the hash of event seq - 1, and 32 zero bytes for the first. The header's JSON escapes only what it must:
`\\"`, `\\\\`, `\\b`, `\\f`, `\\n`, `\\r`, `\\t`, other control characters as `\\u00xx`; if one of its texts holds a
lone surrogate, everything beyond ASCII is escaped as `\\uxxxx`. Neither tenant nor session id is hashed, so a fork's
copied events keep their hashes.

The chain runs over commitments, so a payload can be redacted, its salt with it, and the chain still verifies; and
because of the salt a short payload cannot be guessed from what remains.

That is format 2. In format 1 the parts were put together without names and sizes:

    commitment = SHA256(salt || payload)        hash = SHA256(previous || header || commitment)

Where one part ended and the next one began was not hashed, so such a salt proves nothing unless it has 16 bytes. An
event is of the format by which its hash follows. Nothing else says so, and so it cannot be contradicted: no two formats
give the same hash. A log may begin in one and go on in the other.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence

import msgspec

from swarmkeep.agent.values import MAX_DEPTH
from swarmkeep.events.codec import count_levels, decode, encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import EventDraft, RecordedEvent, SessionEvent, UnknownFact, decode_fact, encode_payload
from swarmkeep.events.state import State

GENESIS = bytes(32)
SALT_BYTES = 16
FORMAT = 2
"""In which events are hashed now; logs hold those of earlier formats, too."""
FORMATS = (2, 1)
PAYLOAD = b"swarmkeep payload v2"
EVENTS = b"swarmkeep event v2"
AUDIT_LOG = b"swarmkeep audit log entry v2"
_SIZE = struct.Struct(">Q")
MAX_PAYLOAD_DEPTH = MAX_DEPTH + 8
"""Levels of a payload's JSON: those that a value may have, and a few around it."""


class SealedEvent(msgspec.Struct, frozen=True):
    """An event with what its hash is made of. `salt` is None once the payload was redacted.

    `as_written`: the row holds it in the one form that a server writes. Other values may read as the same event, and
    so have the same hash, while a query takes them for something else.
    """

    event: RecordedEvent
    salt: bytes | None
    commitment: bytes
    as_written: bool = True
    encrypted: str | None = None
    """What is stored in the place of the payload and its salt, where a person's key encrypts them."""
    erased: bool = False
    """The payload is gone with its person's key, which no event says."""


def commitment_of(salt: bytes, payload: str, format: int = FORMAT) -> bytes:
    if format == 1:
        return hashlib.sha256(salt + payload.encode()).digest()
    return _hash_parts(PAYLOAD, salt, payload.encode())


def header_of(seq: int, type: str, version: int, run_id: str | None, agent: str, at: str) -> bytes:
    return encode((seq, type, version, run_id, agent, at))


def link(previous: bytes, header: bytes, commitment: bytes, format: int = FORMAT, *, chain: bytes = EVENTS) -> bytes:
    """The hash of the event, or of another chain's entry, that follows the one with hash `previous`."""
    if format == 1:
        return hashlib.sha256(b"".join((previous, header, commitment))).digest()
    return _hash_parts(chain, previous, header, commitment)


def find_format(previous: bytes, header: bytes, commitment: bytes, hash: bytes, *, chain: bytes = EVENTS) -> int | None:
    """The format in which a hash follows from the one before it; None if it does not."""
    for format in FORMATS:
        if link(previous, header, commitment, format, chain=chain) == hash:
            return format
    return None


def _hash_parts(name: bytes, *parts: bytes) -> bytes:
    """A digest that says where each part ends, and what it is a digest of."""
    hashed = _sha256()
    for part in (name, *parts):
        hashed.update(_pack_size(len(part)) + part)
    return hashed.digest()


def continues(previous: bytes, sealed: SealedEvent, salt: bytes) -> bool:
    """Whether an event of the present format has its payload, and follows the one with hash `previous`.

    The same as `commitment_of` and `link`, for each event of each session that is read: a third of their time.
    """
    event, commitment = sealed.event, sealed.commitment
    payload = event.payload.encode()
    if _sha256(b"".join((_PAYLOAD_PARTS, salt, _pack_size(len(payload)), payload))).digest() != commitment:
        return False
    header = encode((event.seq, event.type, event.version, event.run_id, event.agent, event.at))
    parts = (_EVENT_PARTS, previous, _pack_size(len(header)), header, _COMMITMENT_SIZE, commitment)
    return _sha256(b"".join(parts)).hexdigest() == event.hash


_sha256, _pack_size = hashlib.sha256, _SIZE.pack
_COMMITMENT_SIZE = _SIZE.pack(hashlib.sha256().digest_size)
_PAYLOAD_PARTS = _SIZE.pack(len(PAYLOAD)) + PAYLOAD + _SIZE.pack(SALT_BYTES)
_EVENT_PARTS = _SIZE.pack(len(EVENTS)) + EVENTS + _COMMITMENT_SIZE


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
    sealed: list[SealedEvent] = []
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
    """Return the text to store, and the fact as it will be read back: the caller may still change `fact`."""
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
