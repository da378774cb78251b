"""What providers hold a model to exactly: the part of JSON Schema that they call strict."""

from __future__ import annotations

from typing import Any

from swarmkeep.agent.schema import Schema, inline_references
from swarmkeep.agent.schema_bounds import iterate_objects

_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs"),
    *("definitions", "title", "description", "pattern", "format", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])
_TYPES = frozenset(["string", "number", "integer", "boolean", "object", "array", "null"])
_DEFINITIONS = ("$defs", "definitions")
_MAX_LEVELS = 10
_MAX_PROPERTIES = 5_000
# What a schema holds that is no schema.
_DATA = frozenset({"const", "enum", "default", "examples", "required"})


def is_strict(schema: Schema) -> bool:
    """Whether it keeps to the rules: every object says all that it has, requires all of it, and allows no more."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    definitions = [part for name in _DEFINITIONS for part in _read_map(schema, name).values()]
    parts = [{key: value for key, value in schema.items() if key not in _DEFINITIONS}, *definitions]
    return all(_is_strict_part(part, _MAX_LEVELS) for part in parts) and _count_properties(schema) <= _MAX_PROPERTIES


def _is_strict_part(part: Any, levels: int) -> bool:
    if not isinstance(part, dict) or not part.keys() <= _KEYWORDS or levels == 0:
        return False
    if "$ref" in part:
        return part.keys() == {"$ref"}
    if not part.keys() & {"type", "anyOf", "enum", "const"} or not _has_known_types(part):
        return False
    if part.get("format", "date") not in _FORMATS:
        return False
    if ("object" in _list_types(part) or "properties" in part) and not _is_closed_object(part):
        return False
    if "array" in _list_types(part) and "items" not in part:
        return False
    inner = [*_read_map(part, "properties").values(), *([part["items"]] if "items" in part else [])]
    branches = part.get("anyOf", [])
    return all(_is_strict_part(item, levels - 1) for item in inner) and (
        isinstance(branches, list) and all(_is_strict_part(item, levels) for item in branches)
    )


def _has_known_types(part: Schema) -> bool:
    return all(isinstance(name, str) and name in _TYPES for name in _list_types(part))


def _list_types(part: Schema) -> list[Any]:
    found = part.get("type", [])
    return found if isinstance(found, list) else [found]


def _is_closed_object(part: Schema) -> bool:
    names, required = part.get("properties"), part.get("required")
    if not isinstance(names, dict) or not isinstance(required, list) or part.get("additionalProperties") is not False:
        return False
    return len(required) == len(names) and all(isinstance(name, str) and name in names for name in required)


def _read_map(part: Schema, name: str) -> Schema:
    found = part.get(name, {})
    return found if isinstance(found, dict) else {}


def _count_properties(value: Any) -> int:
    return sum(len(_read_map(part, "properties")) for part in iterate_objects(value))


def tighten(schema: Schema) -> Schema:
    """The schema of a type, such that whatever it allows, the type takes: with every property, and no other."""
    made: Schema = _tighten_part(inline_references(schema))
    return made


def _tighten_part(part: Any) -> Any:
    if isinstance(part, list):
        return [_tighten_part(item) for item in part]
    if not isinstance(part, dict):
        return part
    made = {key: value if key in _DATA else _tighten_part(value) for key, value in part.items() if key != "default"}
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        # The names of properties are no keywords.
        made["properties"] = {name: _tighten_part(item) for name, item in part["properties"].items()}
        made["required"] = list(part["properties"])
        made.setdefault("additionalProperties", False)
    return made
