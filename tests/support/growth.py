"""What an object holds: to see that it does not grow with what it was used for."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType

# What is there once, however much is held; and where somebody just is.
_OTHERS = (type, ModuleType, FunctionType, FrameType)


def count_values(root: object) -> int:
    """How many objects are held by this one."""
    return sum(1 for _ in _walk(root))


def find_texts(root: object, prefix: str) -> set[str]:
    """The texts that are held by this object, of those that begin so."""
    return {found for found in _walk(root) if isinstance(found, str) and found.startswith(prefix)}


def measure(root: object, *packages: str) -> Counter[str]:
    """How many objects of these packages this one holds, by their classes, and how much is in their own containers."""
    gc.collect()
    found: Counter[str] = Counter()
    for one in _walk(root):
        if type(one).__module__.startswith(packages):
            name = type(one).__qualname__
            found[name] += 1
            own = getattr(one, "__dict__", {})
            for held in (*gc.get_referents(one), *own.values()):
                if isinstance(held, list | set | deque | Mapping) and held is not own:
                    found[f"in {name}"] += len(held)
    return found


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
