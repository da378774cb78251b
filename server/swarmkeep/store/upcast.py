"""Stored payloads to current facts: the one place that knows how events looked in earlier releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from swarmkeep.domain.codec import Json, MalformedJson, build_decoder, decode
from swarmkeep.domain.events import FACTS, SessionEvent, UnknownFact

Upcasters = Mapping[tuple[str, int], Callable[[Json], Json]]

UPCASTERS: Upcasters = {}
"""By type and version: lifts that version's payload to the next version's. Pure; facts keep their meaning."""

Reader = tuple[int, Callable[[str], SessionEvent]]


class _Readers(dict[str, Reader | None]):
    """Each is made when it is first asked for; of types that nobody knows nothing is kept."""

    def __missing__(self, type: str) -> Reader | None:
        cls = FACTS.get(type)
        if cls is None:
            return None
        reader = self[type] = (cls.version, build_decoder(cls).decode)
        return reader


READERS = _Readers()
"""By type: its version now, and what reads payloads of that version or a later one; None for a type that is not known.

Quicker than `upcast`. It raises UNREADABLE where only that knows what to make of a payload.
"""
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


def upcast(type: str, version: int, payload: str, upcasters: Upcasters = UPCASTERS) -> SessionEvent:
    """The fact that a stored payload states. Total: what this release cannot read becomes an UnknownFact.

    That is so for types and versions of a later release, and for a payload that somebody damaged, which `verify` finds.
    """
    cls = FACTS.get(type)
    if cls is None:
        return _make_unknown(payload)
    try:
        if version >= cls.version:
            return decode(payload, cls)  # type: ignore[return-value]
        value = decode(payload)
        for old in range(version, cls.version):
            value = upcasters[type, old](value)
        return msgspec.convert(value, cls)  # type: ignore[return-value]
    except (MalformedJson, msgspec.ValidationError, LookupError, TypeError):
        return _make_unknown(payload)


def _make_unknown(payload: str) -> UnknownFact:
    try:
        return UnknownFact(data=decode(payload))
    except MalformedJson:
        return UnknownFact()
