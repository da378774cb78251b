"""What an object holds: to see that it does not grow with what it was used for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType

# What is there once, however much is held; and where somebody just is.
_OTHERS = (type, ModuleType, FunctionType, FrameType)


def count_values(root: object) -> int:
    """How many objects are held by this one."""
    return sum(1 for _ in _walk(root))


def find_texts(root: object, prefix: str) -> set[str]:
    """The texts that are held by this object, of those that begin so."""
    return {found for found in _walk(root) if isinstance(found, str) and found.startswith(prefix)}


def count_holders(marker: str) -> int:
    """How many objects of this process hold a text with this in it."""
    gc.collect()
    return sum(1 for one in gc.get_objects() if any(_has(found, marker) for found in _list_held(one)))


def _has(found: object, marker: str) -> bool:
    return marker in found if isinstance(found, str) else isinstance(found, bytes) and marker.encode() in found


def _walk(root: object) -> Iterator[object]:
    seen, waiting = {id(root)}, [root]
    while waiting:
        for found in _list_held(waiting.pop()):
            if id(found) not in seen and not isinstance(found, _OTHERS):
                seen.add(id(found))
                waiting.append(found)
                yield found


def _list_held(holder: object) -> list[object]:
    found = gc.get_referents(holder)
    # The collector passes over keys that are texts.
    return [*found, *holder] if isinstance(holder, dict) else found
