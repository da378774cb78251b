"""The content of files that were read last: a conversation sends its pictures with every turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachetools import LRUCache

from swarmkeep.store.ports.keys import SessionKey

# What the names and the place in the cache take beside it: most of what there is of small files.
_BYTES_PER_FILE = 500


def _count_bytes(content: bytes) -> int:
    return len(content) + _BYTES_PER_FILE


class FileCache:
    """Content by session and hash, bounded by the memory that it takes. What is in it is what its hash names."""

    def __init__(self, max_bytes: int) -> None:
        self._contents: LRUCache[tuple[SessionKey, str], bytes] = LRUCache(maxsize=max_bytes, getsizeof=_count_bytes)

    def get_all(self, key: SessionKey, names: Sequence[str]) -> dict[str, bytes]:
        found = ((name, self._contents.get((key, name))) for name in names)
        return {name: content for name, content in found if content is not None}

    def put_all(self, key: SessionKey, contents: Mapping[str, bytes]) -> None:
        for name, content in contents.items():
            if _count_bytes(content) <= self._contents.maxsize:
                self._contents[key, name] = content

    def drop(self, key: SessionKey) -> None:
        """Forget what a session has had: it may have been removed."""
        for place in [place for place in self._contents if place[0] == key]:
            self._contents.pop(place, None)
