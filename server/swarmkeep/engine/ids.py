"""Ids that the server makes: short, because a turn writes its session's and its run's some twenty times."""

from __future__ import annotations

import hashlib
import os
import string

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_LENGTH = 16
# Of those that belong to a name: it must lead to what was made in databases that there are.
_DERIVED_LENGTH = 20


def make_id(kind: str) -> str:
    """A new id that nobody can guess: 95 random bits."""
    return f"{kind}_{_spell(os.urandom(12), _LENGTH)}"


def derive_id(kind: str, name: str) -> str:
    """The id that belongs to a name: the same each time."""
    return f"{kind}_{_spell(hashlib.sha256(name.encode(errors='surrogatepass')).digest()[:16], _DERIVED_LENGTH)}"


def _spell(value: bytes, length: int) -> str:
    number = int.from_bytes(value, "big")
    pairs = []
    for _ in range(length // 2):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return "".join(pairs)
