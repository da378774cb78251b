"""The part of JSON Schema that function parameters use, reduced to what a value should look like."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from swarmkeep.engine.models.offline.words import spell_out

MAX_REFERENCES = 8

# By the words of a parameter's name; the first kind that has one of them.
_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("email", frozenset({"email", "mail", "recipient", "recipients"})),
    ("phone", frozenset({"phone", "telephone", "mobile"})),
    ("url", frozenset({"url", "link", "website"})),
    ("id", frozenset({"id", "ids", "number", "numbers", "code", "codes", "reference", "ref", "sku", "order", "pnr"})),
    ("date", frozenset({"date", "dates", "day", "time", "when", "deadline", "birthday"})),
    (
        "place",
        frozenset({"city", "cities", "location", "locations", "place", "country", "destination", "origin", "town"}),
    ),
    ("name", frozenset({"name", "username"})),
    ("body", frozenset({"message", "body", "text", "content", "comment", "note", "notes"})),
    ("subject", frozenset({"subject", "topic", "title"})),
    ("reason", frozenset({"reason", "cause", "why"})),
)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, what kind of value it wants, and whether the call can do without."""

    name: str
    kind: str
    schema: dict[str, Any]
    required: bool

    @property
    def spoken_name(self) -> str:
        return spell_out(self.name)


def resolve_schema(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The schema behind local references, single `allOf`s and "or null"; {} where there is none."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = _look_up(reference, root)
        elif isinstance(options := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"), list):
            schema = next((option for option in options if option != {"type": "null"}), {})
        else:
            return schema
    return {}


def _look_up(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def choose_type(schema: dict[str, Any]) -> str:
    """The JSON type a value should have; a string where the schema leaves it open."""
    wanted = schema.get("type", "string")
    if isinstance(wanted, list):
        wanted = next((one for one in wanted if one != "null"), "string")
    if "properties" in schema:
        return "object"
    return wanted if wanted in ("integer", "number", "boolean", "array", "object") else "string"


def list_choices(schema: dict[str, Any]) -> list[Any]:
    """The values an `enum` allows; none where there is no `enum`."""
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else []


def choose_kind(name: str, schema: dict[str, Any]) -> str:
    """The kind of value to look for: a choice, a JSON type other than string, or a sort of text such as "email"."""
    if "const" in schema:
        return "const"
    if list_choices(schema):
        return "choice"
    if (wanted := choose_type(schema)) != "string":
        return "number" if wanted == "integer" else wanted
    match schema.get("format"):
        case "date" | "date-time":
            return "iso_date"
        case "email":
            return "email"
        case "uri":
            return "url"
    words = set(spell_out(name).split())
    return next((kind for kind, known in _KINDS if words & known), "text")


def iterate_parameters(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[Parameter]:
    """The parameters that an object schema declares, in its order."""
    properties = schema.get("properties")
    required = schema.get("required")
    for name, declared in properties.items() if isinstance(properties, dict) else ():
        found = resolve_schema(declared, root)
        yield Parameter(name, choose_kind(name, found), found, isinstance(required, list) and name in required)
