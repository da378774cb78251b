"""Bound the references of a JSON schema, its size once they are followed, and the cost of reading by it.

Of a union of models that contain it, each one is tried on each level of a value: what 250 bytes hold may be read a
hundred thousand times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from swarmkeep.agent.schema import Schema

MAX_PARTS = 20_000
_FEW_READINGS, _READINGS_A_VALUE, _MOST_READINGS = 10_000, 20, 60_000
_MOST_PAIRS = 30_000
# What else a value has to be, whole; and what its members and items have to be.
_WHOLE_LISTS = ("anyOf", "allOf", "oneOf")
_WHOLE = ("not", "if", "then", "else")
_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "contains", "unevaluatedItems")
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
    """Count its regular expressions; what only looks like one counts, too."""
    texts = sum(isinstance(part.get("pattern"), str) for part in iterate_objects(schema))
    maps = (part.get("patternProperties") for part in iterate_objects(schema))
    return texts + sum(len(found) for found in maps if isinstance(found, dict))


def has_too_many_parts(schema: Schema) -> bool:
    """Tell if it grows beyond measure when each reference is followed: a few lines can say the same thing a billion
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


class _Tried:
    """The parts by which a value is tried as a whole, a reference in the place of its target; looked up once.

    `by_tag`: of these one is chosen before it is tried, by the value's own word for it.
    """

    __slots__ = ("by_tag", "items", "members", "prefixes", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.members: list[tuple[Schema, list[Any]]] = []
        self.prefixes: list[list[Any]] = []
        self.items: list[Any] = []
        self.by_tag: list[tuple[str, Schema]] = []

    def add(self, part: Schema) -> None:
        self.weight += not part.keys() & {"$ref", *_WHOLE_LISTS}
        properties, patterns = part.get("properties"), part.get("patternProperties")
        named = properties if isinstance(properties, dict) else {}
        others = [*patterns.values()] if isinstance(patterns, dict) else []
        others += [part[name] for name in _OF_MEMBERS if isinstance(part.get(name), dict)]
        if named or others:
            self.members.append((named, others))
        first = part.get("prefixItems")
        if isinstance(first, list):
            self.prefixes.append(first)
        self.items += [part[name] for name in _OF_ITEMS if isinstance(part.get(name), dict)]

    def list_inner(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """The parts that members and items of the value are tried by."""
        if isinstance(value, dict):
            for name, item in value.items():
                for named, others in self.members:
                    if name in named:
                        yield named[name], item
                    else:
                        yield from ((one, item) for one in others)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                yield from ((first[place], item) for first in self.prefixes if place < len(first))
                yield from ((one, item) for one in self.items)


class UnionBounds:
    """Bounds on reading values by a schema: linear in the value, even if unions refer to themselves.

    `is_tagged`: of a `oneOf` one is chosen before it is tried, as pydantic does; its `anyOf` tries all.
    """

    def __init__(self, schema: Schema, *, is_tagged: bool) -> None:
        self._root = schema
        self._is_tagged = is_tagged
        self._tried: dict[int, _Tried] = {}
        names = {name for part in iterate_objects(schema) for name in part}
        self._may_grow = bool(names & {*_REFERENCES}) and bool(names & {*_WHOLE_LISTS})

    def is_too_deep(self, value: Any, schema: Schema | None = None) -> bool:
        """Tell if reading the value would cost far more than its size; it is found in the time of that. `schema` is
        the part that the value is to be read by, if not all of it."""
        if not self._may_grow or not isinstance(value, (dict, list)):
            return False
        counts: dict[tuple[int, int], int] = {}
        readings = self._count(self._root if schema is None else schema, value, counts)
        values = len({value_id for _, value_id in counts})
        return readings > min(_FEW_READINGS + _READINGS_A_VALUE * values, _MOST_READINGS)

    def _count(self, schema: Any, value: Any, counts: dict[tuple[int, int], int]) -> int:
        """Count the parts of the schema that are tried on parts of the value: each pair is looked at once."""
        tried = self._tried.get(id(schema))
        if tried is None:
            tried = self._tried[id(schema)] = self._resolve(schema)
        if not isinstance(value, (dict, list)):
            return tried.weight
        key = id(schema), id(value)
        if (known := counts.get(key)) is not None:
            return known
        if len(counts) > _MOST_PAIRS:
            return _MOST_READINGS + 1
        counts[key] = 0
        total = tried.weight + sum(self._count(inner, item, counts) for inner, item in tried.list_inner(value))
        if isinstance(value, dict):
            chosen = (mapping.get(_read_tag(value, name) or "") for name, mapping in tried.by_tag)
            total += sum(self._count(one, value, counts) for one in chosen if one is not None)
        counts[key] = min(total, _MOST_READINGS + 1)
        return counts[key]

    def _resolve(self, schema: Any) -> _Tried:
        tried = _Tried()
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            tried.add(part)
            if isinstance(target := part.get("$ref"), str):
                waiting.append(_look_up(self._root, target))
            waiting += [part[name] for name in _WHOLE if name in part]
            lists = {name: part[name] for name in _WHOLE_LISTS if isinstance(part.get(name), list)}
            tag = part.get("discriminator")
            if "oneOf" in lists and self._is_tagged:
                choices = lists.pop("oneOf")
                if isinstance(tag, dict):
                    mapping = {name: _look_up(self._root, target) for name, target in tag.get("mapping", {}).items()}
                    tried.by_tag.append((tag.get("propertyName", ""), mapping))
                else:
                    # A function chooses, of which the schema does not tell.
                    waiting += choices[:1]
            waiting += [choice for choices in lists.values() for choice in choices]
        return tried


def _read_tag(value: Schema, name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def advise_on_unions(schema: Schema) -> str | None:
    """Describe the fault of a union of models that contain it and cannot be told apart before they are read, and
    name the discriminator that would help; None if there is no such union."""
    definitions = schema.get("$defs", {})
    reached = {name: _find_reached(part, definitions) for name, part in definitions.items()}
    for part in iterate_objects(schema):
        choices = part.get("anyOf")
        if not isinstance(choices, list):
            continue
        names = [found for choice in choices if (found := _name_of(choice)) in definitions]
        inside = [name for name in names if any(name in reached[other] for other in names if name in reached[name])]
        members = Counter(key for name in inside for key in definitions[name].get("properties", {}))
        if max(members.values(), default=0) > 1:
            return _describe_union(names, definitions)
    return None


def _name_of(choice: Any) -> str:
    target = choice.get("$ref") if isinstance(choice, dict) else None
    return target.removeprefix("#/$defs/") if isinstance(target, str) else ""


def _find_reached(part: Any, definitions: Schema) -> set[str]:
    found: set[str] = set()
    waiting = [part]
    while waiting:
        for inner in iterate_objects(waiting.pop()):
            name = _name_of(inner)
            if name in definitions and name not in found:
                found.add(name)
                waiting.append(definitions[name])
    return found


def _describe_union(names: Sequence[str], definitions: Schema) -> str:
    shown = " | ".join(names[:6]) + (" | …" if len(names) > 6 else "")
    models = [definitions[name].get("properties", {}) for name in names]
    tags = [
        key
        for key in models[0]
        if all(isinstance(model.get(key), dict) and model[key].keys() & {"const", "enum"} for model in models)
    ]
    kind = tags[0] if tags else "kind"
    first = "" if tags else f'give each model a field such as `kind: Literal["{names[0].lower()}"]` and '
    return (
        f"the union {shown} contains itself, and its models are tried one by one on each level, so deep values are "
        f'refused; {first}use Annotated[{shown}, Field(discriminator="{kind}")]'
    )
