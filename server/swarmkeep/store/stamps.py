"""Stamps on head rows: that whoever wrote the end of a log had a key which is not in the database.

A chain of hashes can be computed anew by anybody who writes to the database. The stamp cannot:

    stamp = key id || HMAC-SHA256(key, H-parts("swarmkeep head v1", tenant, session id, seq, hash))

Each part is preceded by its size in 8 bytes, as in `hashing`; seq is 8 bytes, hash 32. The key id is the first 8 bytes
of SHA256("swarmkeep integrity key" || key), so that a key can be replaced by another one: the first of the keys signs,
and what any of them signed is right.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping

from swarmkeep.store.ports.keys import SessionKey

_SIZE = struct.Struct(">Q")
_ID_BYTES = 8
STAMP_BYTES = _ID_BYTES + hashlib.sha256().digest_size
_NAME = b"swarmkeep head v1"


class IntegrityKeys:
    """The keys of one installation, separated by commas: the first signs. Without any, nothing is signed or asked."""

    def __init__(self, text: str = "") -> None:
        keys = [part.strip().encode() for part in text.split(",")]
        self._keys: Mapping[bytes, bytes] = {_find_id(key): key for key in keys if key}
        self._first = next(iter(self._keys), None)

    def __bool__(self) -> bool:
        return self._first is not None

    def sign(self, key: SessionKey, seq: int, hash: bytes) -> bytes | None:
        """The stamp of a head; None without a key."""
        return None if self._first is None else self._first + _make_mac(self._keys[self._first], key, seq, hash)

    def find_fault(self, stamp: object, key: SessionKey, seq: object, hash: object) -> str | None:
        """The code of what is wrong with a head's stamp: that there is none, or that it is another one's."""
        if stamp is None:
            return "stamp_missing" if self else None
        if not isinstance(stamp, bytes) or len(stamp) != STAMP_BYTES:
            return "stamp_differs"
        if not self:
            # Nobody here can say whose it is.
            return None
        secret = self._keys.get(stamp[:_ID_BYTES])
        if secret is None or not isinstance(seq, int) or not isinstance(hash, bytes):
            return "stamp_differs"
        right = hmac.compare_digest(stamp[_ID_BYTES:], _make_mac(secret, key, seq, hash))
        return None if right else "stamp_differs"

    def is_current(self, stamp: object) -> bool:
        """Whether it says that it is of the key that signs now."""
        return isinstance(stamp, bytes) and self._first is not None and stamp[:_ID_BYTES] == self._first


NO_KEYS = IntegrityKeys()


def _find_id(key: bytes) -> bytes:
    return hashlib.sha256(b"swarmkeep integrity key" + key).digest()[:_ID_BYTES]


def _make_mac(secret: bytes, key: SessionKey, seq: int, hash: bytes) -> bytes:
    parts = (_NAME, _encode(key.tenant), _encode(key.id), seq.to_bytes(8, "big", signed=True), hash)
    return hmac.digest(secret, b"".join([_SIZE.pack(len(part)) + part for part in parts]), "sha256")


def _encode(name: str) -> bytes:
    # A tenant may have any text as its name.
    return name.encode(errors="surrogatepass")
