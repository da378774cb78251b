"""Define the form of an agent's final answer: described to the model by a JSON schema, and checked when it has come."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from swarmkeep.agent.schema import (
    MAX_PARTS,
    Schema,
    UnionBounds,
    advise_on_unions,
    count_patterns,
    describe_type,
    find_foreign_reference,
    find_missing_reference,
    has_too_many_parts,
    inline_references,
    iterate_objects,
)
from swarmkeep.agent.values import ModelSettingsError, NotJsonError, copy_json_object, to_plain_json

# Apply the rules that providers hold a model to exactly: the part of JSON Schema that they call strict.

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
    """Tell if it keeps to the rules: every object says all that it has, requires all of it, and allows no more."""
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
    """Return a type's schema such that the type takes all it allows: with every property, and no other."""
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


OUTPUT_TOOL = "final_output"
MAX_SCHEMA_BYTES = 65_536
# Of an answer: what is read within a few milliseconds, because nothing else runs meanwhile.
MAX_CHARACTERS = 1_000_000
MAX_VALUES = 20_000
MAX_PATTERNS = 200
# Compiled: of one, which is what the engine itself allows, and of all of a schema.
_MAX_PATTERN_BYTES = 10_000_000
_MAX_PATTERNS_BYTES = 64_000_000
_RULES = "https://json-schema.org/draft/2020-12/schema"
_SHOWN_PROBLEMS = 5
_SHOWN_CHARACTERS = 300
_TOO_DEEP = "it is nested too deep for a union whose schemas contain it"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")

OutputMode = Literal["response_format", "tool"]
Check = Callable[[str, Any], Any]


class OutputTypeError(ValueError):
    """Something cannot be an agent's `output_type`; the sentence says why."""


class InvalidOutput(ValueError):
    """An answer is not what it has to be. `problems` has a sentence for each thing wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = [problem[:_SHOWN_CHARACTERS] for problem in problems[:_SHOWN_PROBLEMS]]
        more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        self.problems = (*shown, *more)
        super().__init__("; ".join(self.problems))


class OutputFormat:
    """A type or a JSON schema that answers are made to. It never changes.

    `schema` is what the model is told; share it, do not change it. `runs_code`: checking an answer may run code of the
    type's author. `advice` is what its author should know.
    """

    __slots__ = ("_check", "advice", "name", "runs_code", "schema", "strict")

    def __init__(
        self, name: str, schema: Schema, check: Check, *, strict: bool, runs_code: bool, advice: str | None = None
    ) -> None:
        self.advice = advice
        self.name = name
        self.schema = schema
        self.strict = strict
        self.runs_code = runs_code
        self._check = check

    @property
    def response_format(self) -> Schema:
        """The parameter of a Chat Completions request."""
        return {
            "type": "json_schema",
            "json_schema": {"name": self.name, "schema": self.schema, "strict": self.strict},
        }

    @property
    def tool_schema(self) -> Schema:
        """The function that takes the output, for models that know functions only."""
        return {
            "type": "function",
            "function": {
                "name": OUTPUT_TOOL,
                "description": "Give the final answer. Call this once, when everything else is done.",
                "parameters": self.schema,
            },
        }

    def check(self, text: str) -> Any:
        """The value that a model's text stands for: of a type an instance, of a schema JSON. Raises InvalidOutput."""
        if is_too_large(text):
            raise InvalidOutput([f"it has more than {MAX_CHARACTERS} characters, or more than {MAX_VALUES} values"])
        try:
            value = to_plain_json(json.loads(text, object_pairs_hook=_refuse_repeated_names), "it")
        except json.JSONDecodeError as error:
            raise InvalidOutput([f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"]) from None
        except NotJsonError as error:
            raise InvalidOutput([str(error)]) from None
        except RecursionError:
            raise InvalidOutput(["it is nested too deep"]) from None
        except ValueError as error:
            raise InvalidOutput([f"it is not JSON: {error}"]) from None
        return self._check(text, value)


def is_too_large(text: str) -> bool:
    """Tell if an answer is too large to be parsed. Commas and brackets in its texts count as well."""
    return len(text) > MAX_CHARACTERS or sum(map(text.count, ",[{")) > MAX_VALUES


def make_output_format(output_type: Any) -> OutputFormat:
    """The format of a type, or of a JSON schema given as a dict; made once for each. Raises OutputTypeError."""
    if isinstance(output_type, dict):
        try:
            schema = copy_json_object(output_type, "output_type", max_bytes=MAX_SCHEMA_BYTES)
        except ModelSettingsError as error:
            raise OutputTypeError(str(error)) from error
        return _make_schema_format(json.dumps(schema))
    try:
        return _make_type_format(output_type)
    except TypeError as error:
        if "unhashable" in str(error):
            return _make_type_format.__wrapped__(output_type)
        raise


@functools.lru_cache(maxsize=256)
def _make_type_format(hint: Any) -> OutputFormat:
    name = getattr(hint, "__name__", "") or "output"
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        schema = describe_type(adapter)
    except Exception as error:  # building an adapter runs code of the type
        reason = str(getattr(error, "message", None) or error).partition("\n")[0]
        raise OutputTypeError(f"output_type {hint!r} has no JSON Schema ({reason or type(error).__name__})") from error
    if schema.get("type") != "object":
        raise OutputTypeError(f"output_type {hint!r} is not an object: wrap it in a model, a dataclass or a TypedDict")

    bounds = UnionBounds(schema, is_tagged=True)

    def check(text: str, value: Any) -> Any:
        if bounds.is_too_deep(value):
            raise InvalidOutput([_TOO_DEEP])
        try:
            return adapter.validate_json(text, strict=True)
        except ValidationError as error:
            raise InvalidOutput([_describe_problem(problem) for problem in error.errors(include_url=False)]) from None
        except Exception as error:  # validators are the type's code
            raise InvalidOutput([f"{type(error).__name__}: {error}"]) from error

    narrow = tighten(schema)
    strict = is_strict(narrow)
    sent, advice = narrow if strict else schema, advise_on_unions(schema)
    return OutputFormat(_clean_name(name), sent, check, strict=strict, runs_code=True, advice=advice)


@functools.lru_cache(maxsize=256)
def _make_schema_format(text: str) -> OutputFormat:
    schema: Schema = json.loads(text)
    validator = _make_validator(schema, "output_type")

    bounds = UnionBounds(schema, is_tagged=False)

    def check(text: str, value: Any) -> Any:
        if bounds.is_too_deep(value):
            raise InvalidOutput([_TOO_DEEP])
        problems = []
        for error in validator.iter_errors(value):
            place = "".join(f"/{step}" for step in error.instance_path)
            problems.append(f"{place or 'it'}: {error.message}")
            if len(problems) > _SHOWN_PROBLEMS:
                break
        if problems:
            raise InvalidOutput(problems)
        return value

    title = schema.get("title")
    name = _clean_name(title if isinstance(title, str) else "")
    return OutputFormat(name, schema, check, strict=is_strict(schema), runs_code=False)


def check_schema(schema: Schema, label: str) -> None:
    """Check that it is a JSON schema, without what it takes to check values by it: its patterns are not compiled, of
    which a few characters can take megabytes. Raises OutputTypeError."""
    if (foreign := find_foreign_reference(schema)) is not None:
        raise OutputTypeError(f"{label} refers to {foreign[:100]!r}, which is outside of the schema itself")
    if has_too_many_parts(schema):
        raise OutputTypeError(f"{label} has more than {MAX_PARTS} parts once its references are followed")
    error = next(_load_rules().iter_errors(schema), None)
    if error is not None:
        place = "".join(f"/{step}" for step in error.instance_path)
        problem = f"{place or 'it'}: {error.message[:_SHOWN_CHARACTERS]}"
        raise OutputTypeError(f"{label} is not a JSON schema that can be checked: {problem}")
    if (missing := find_missing_reference(schema)) is not None:
        raise OutputTypeError(f"{label} is not a JSON schema that can be checked: {missing[:100]!r} is not there")


@functools.cache
def _load_rules() -> Any:
    """Load the library that checks schemas. It is its own, because a schema can name another by an address, which would
    be fetched."""
    import jsonschema_rs  # only what brings a schema needs it

    return jsonschema_rs.Draft202012Validator({"$ref": _RULES}, retriever=_refuse_retrieval)


def _make_validator(schema: Schema, label: str) -> Any:
    """Make the validator of values by an agent's schema. Raises OutputTypeError where that cannot be done, or would
    take too long."""
    check_schema(schema, label)
    import jsonschema_rs

    count = count_patterns(schema)
    if count > MAX_PATTERNS:
        raise OutputTypeError(f"{label} has more than {MAX_PATTERNS} patterns")
    # A regular expression takes time in proportion to the text; one that cannot is refused, and so is one that is
    # larger, compiled, than its part of what all may take together.
    size = min(_MAX_PATTERN_BYTES, _MAX_PATTERNS_BYTES // max(count, 1))
    options = jsonschema_rs.RegexOptions(size_limit=size)
    try:
        return jsonschema_rs.Draft202012Validator(schema, pattern_options=options, retriever=_refuse_retrieval)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        raise OutputTypeError(f"{label} is not a JSON schema that can be checked: {reason[:300]}") from error


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"{uri} is outside of the schema")


def _describe_problem(problem: Any) -> str:
    place = "".join(f"/{step}" for step in problem["loc"])
    return f"{place or 'it'}: {problem['msg']}"


def _clean_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name).strip("_")[:64] or "output"


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found
