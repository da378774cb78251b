"""What a JSON schema that somebody brings may refer to, and how much of it there may be once it is followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from swarmkeep.agent.schema import Schema

MAX_PARTS = 20_000
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def find_foreign_reference(schema: Schema) -> str | None:
    """A reference to something outside of the schema, or to a place that it gives a name of its own."""
    for part in iterate_objects(schema):
        for name in _REFERENCES:
            target = part.get(name)
            if isinstance(target, str) and not (target == "#" or target.startswith("#/")):
                return target
    return None


def find_missing_reference(schema: Schema) -> str | None:
    """A reference to a place that the schema does not have. A part with an `$id` may have places of its own."""
    if any(isinstance(part.get("$id"), str) for part in iterate_objects(schema) if part is not schema):
        return None
    known: set[str] = set()
    for part in iterate_objects(schema):
        target = part.get("$ref")
        if isinstance(target, str) and target not in known:
            if not isinstance(_look_up(schema, target), (dict, bool)):
                return target
            known.add(target)
    return None


def count_patterns(schema: Schema) -> int:
    """How many regular expressions it has; what only looks like one counts, too."""
    texts = sum(isinstance(part.get("pattern"), str) for part in iterate_objects(schema))
    maps = (part.get("patternProperties") for part in iterate_objects(schema))
    return texts + sum(len(found) for found in maps if isinstance(found, dict))


def has_too_many_parts(schema: Schema) -> bool:
    """Whether it grows beyond measure when each reference is followed: a few lines can say the same thing a billion
    times.
    """
    counts: dict[int, int] = {}

    def count(part: Any) -> int:
        if not isinstance(part, (dict, list)):
            return 0
        if id(part) not in counts:
            # What refers to itself is counted once.
            counts[id(part)] = 0
            inner = list(part.values()) if isinstance(part, dict) else part
            target = part.get("$ref") if isinstance(part, dict) else None
            found = _look_up(schema, target) if isinstance(target, str) else None
            counts[id(part)] = 1 + sum(map(count, inner)) + count(found)
        return counts[id(part)]

    try:
        return count(schema) > MAX_PARTS
    except RecursionError:
        # A chain of references, as long as the schema allows.
        return True


def _look_up(schema: Schema, target: str) -> Any:
    found: Any = schema
    for step in target.removeprefix("#").split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isascii() and name.isdigit() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def iterate_objects(value: Any) -> Iterator[Schema]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += part.values()
