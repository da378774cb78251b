"""The Chat Completions schema of a function, and the pydantic adapters that read its arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, GenericAlias, MethodType, UnionType
from typing import Annotated, Any, Literal, NewType, Union
from urllib.parse import unquote

from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from swarmkeep.agent.values import FunctionSchemaError, InvalidFunctionError

# Type hints of a function's parameters, resolved one by one.

# A parameter with this hint receives the id of the call, which stays the same when the call is tried again.
ToolCallId = NewType("ToolCallId", str)


def resolve_hint(function: str, parameter: str, hint: Any, namespace: dict[str, Any]) -> Any:
    """A hint with the names in its strings looked up.

    Each hint is resolved alone: a return hint or another parameter's hint that cannot be resolved does no harm.

    Raises FunctionSchemaError if it names something that is not there.
    """
    if isinstance(hint, type) and not isinstance(hint, GenericAlias):
        return hint

    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(probe, namespace, include_extras=True)["hint"]
    except Exception as error:  # a hint in a string is code: evaluating it can raise anything
        raise FunctionSchemaError(function, parameter, f"its hint {hint!r} cannot be resolved ({error})") from error


def find_namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that a function's hints may use: its module's, and those that it closes over."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, (functools.partial, MethodType)):
        inner = inspect.unwrap(inner.func if isinstance(inner, functools.partial) else inner.__func__)
    if not hasattr(inner, "__globals__"):
        inner = inspect.unwrap(type(inner).__call__)
    # ToolCallId comes first, so that it resolves when it is imported for type checkers only.
    namespace: dict[str, Any] = {"ToolCallId": ToolCallId, **getattr(inner, "__globals__", {})}
    closed_over = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    for name, cell in zip(closed_over, getattr(inner, "__closure__", None) or (), strict=False):
        try:
            namespace[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return namespace


def takes_call_id(hint: Any) -> bool:
    """Tell if a hint is ToolCallId, also inside Annotated, Optional or another union."""
    if hint is ToolCallId:
        return True
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return takes_call_id(typing.get_args(hint)[0])
    return (origin is Union or origin is UnionType) and any(takes_call_id(part) for part in typing.get_args(hint))


# Read a function's shape: its name, docstring and parameters, and whether it can be a tool.

CONTEXT = "context_variables"
EMPTY: Any = inspect.Parameter.empty
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that a call can fill. `filled_by` says who does: the model, or the loop with a value of its own."""

    name: str
    filled_by: Literal["model", "context", "call_id"]
    hint: Any
    default: Any
    positional_only: bool

    @property
    def required(self) -> bool:
        return self.default is EMPTY


@dataclass(frozen=True, slots=True)
class Shape:
    """A function as a tool sees it."""

    name: str
    doc: str
    is_async: bool
    parameters: tuple[Parameter, ...]
    takes_keywords: bool  # it has **kwargs
    bound: frozenset[str]  # names that a partial has already filled

    @property
    def model_parameters(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.filled_by == "model"]


def read_shape(function: Callable[..., Any]) -> Shape:
    """Read a function's shape, once: callers keep it.

    Raises InvalidFunctionError if it cannot be a tool, FunctionSchemaError if a hint cannot be resolved.
    """
    inner, bound = unwrap_partial(function)
    name = _read_name(function, inner)
    if reason := _explain_refusal(inner, name):
        raise InvalidFunctionError(name if name and callable(inner) else _shorten_repr(function), reason)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError) as error:
        raise InvalidFunctionError(name, f"its parameters cannot be read ({error})") from error
    parameters = [p for p in signature.parameters.values() if p.name not in bound]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    namespace = find_namespace(inner)
    return Shape(
        name=name,
        doc=_read_doc(inner),
        is_async=_test_code(inspect.iscoroutinefunction, inner),
        parameters=tuple(_read_parameter(name, p, namespace) for p in parameters if p.kind not in variadic),
        takes_keywords=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        bound=bound,
    )


def unwrap_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], frozenset[str]]:
    """Return the function that a partial, or a partial of partials, calls in the end; and the names of the arguments
    given on the way."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound.update(function.keywords)
        function = function.func
    return function, frozenset(bound)


def _read_parameter(function: str, parameter: inspect.Parameter, namespace: dict[str, Any]) -> Parameter:
    filled_by: Literal["model", "context", "call_id"] = "model"
    hint = EMPTY
    if parameter.name == CONTEXT:
        filled_by = "context"
    elif parameter.annotation is not EMPTY:
        hint = resolve_hint(function, parameter.name, parameter.annotation, namespace)
        filled_by = "call_id" if takes_call_id(hint) else "model"
    return Parameter(
        name=parameter.name,
        filled_by=filled_by,
        hint=hint,
        default=parameter.default,
        positional_only=parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
    )


def _read_name(function: Callable[..., Any], inner: Callable[..., Any]) -> str:
    """Its own name, else that of what a partial wraps, else that of a callable object's type."""
    for candidate in (function, inner, type(inner)):
        name = getattr(candidate, "__name__", None)
        if isinstance(name, str):
            return name
    return ""


def _read_doc(inner: Callable[..., Any]) -> str:
    if inspect.isroutine(inner) or "__doc__" in getattr(inner, "__dict__", ()):
        return inner.__doc__ or ""  # functools.update_wrapper leaves an object the text of what it wraps
    call = type(inner).__call__
    text = (call.__doc__ if isinstance(call, FunctionType) else None) or type(inner).__doc__ or ""
    # A dataclass without a docstring is given its signature for one, which tells a model nothing.
    generated = dataclasses.is_dataclass(inner) and text.startswith(f"{type(inner).__name__}(")
    return "" if generated else text


def _explain_refusal(inner: object, name: str) -> str:
    """Explain why this cannot be a tool; empty if it can."""
    if isinstance(inner, type) or typing.get_origin(inner) is not None:
        return "it is a class; pass a function that makes one"
    if not callable(inner):
        return f"it is of type {type(inner).__name__}, which cannot be called"
    if name == "<lambda>":
        return "a lambda has no name that a model could call; write it with def"
    if not _NAME.fullmatch(name):
        return "a tool's name is 1 to 64 of the characters a-z A-Z 0-9 _ -"
    if _test_code(inspect.isgeneratorfunction, inner) or _test_code(inspect.isasyncgenfunction, inner):
        return "it is a generator; return one value instead of yielding several"
    return ""


def _test_code(test: Callable[[Any], bool], inner: Callable[..., Any]) -> bool:
    """Tell if a test holds for a function, or for the `__call__` of a callable object."""
    return test(inner) or (not isinstance(inner, (FunctionType, MethodType)) and test(type(inner).__call__))


def _shorten_repr(function: object) -> str:
    text = repr(function)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


Schema = dict[str, Any]
Adapters = dict[str, TypeAdapter[Any]]

# Swarm's own table. A hint that is not in it goes to pydantic; no hint at all means a string.
PLAIN_TYPES: dict[Any, str] = {
    EMPTY: "string",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}
_LENIENT = ConfigDict(coerce_numbers_to_str=True)
_REF = "#/$defs/"
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_PLAIN_DATA = frozenset({"const", "enum", "default", "examples", "discriminator"})


class _SchemaGenerator(GenerateJsonSchema):
    # A default inside a model that JSON cannot hold, or a union member it cannot describe, is left out without a word.
    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default", "skipped-discriminator"})  # type: ignore[assignment]


def function_schema(function: Callable[..., Any]) -> Schema:
    """Make the Chat Completions tool schema of a function, a new one each time.

    The docstring is the description; parameters without a default are required; hints become JSON types. A
    docstring's parameter section also describes the parameters. `context_variables`, parameters hinted
    ToolCallId, `*args`, `**kwargs` and what a partial has filled are left out.

    Raises InvalidFunctionError if it cannot be a tool, FunctionSchemaError if a hint has no JSON Schema.
    """
    shape = read_shape(function)
    return make_schema(shape, make_adapters(shape))


def make_adapters(shape: Shape) -> Adapters:
    """By parameter name, what reads and describes each argument that has a hint."""
    adapters = {}
    for parameter in shape.model_parameters:
        if parameter.hint is EMPTY:
            continue
        try:
            adapters[parameter.name] = _get_adapter(parameter.hint)
        except Exception as error:  # building an adapter runs code of the hinted types
            raise _make_schema_error(shape, parameter, error) from error
    return adapters


def make_schema(shape: Shape, adapters: Adapters) -> Schema:
    """The tool schema of a function of this shape. Raises FunctionSchemaError."""
    rich = {p.name: adapters[p.name] for p in shape.model_parameters if not _is_plain(p.hint)}
    described, definitions = _make_pydantic_schemas(shape, rich) if rich else ({}, {})
    properties = {
        p.name: described[p.name] if p.name in described else {"type": PLAIN_TYPES[p.hint]}
        for p in shape.model_parameters
    }
    for name, text in _describe_parameters(shape).items():
        properties[name]["description"] = text
    parameters: Schema = {
        "type": "object",
        "properties": properties,
        "required": [p.name for p in shape.model_parameters if p.required],
    }
    if used := _find_reachable(properties, definitions):
        parameters["$defs"] = {name: definitions[name] for name in definitions if name in used}
    return {"type": "function", "function": {"name": shape.name, "description": shape.doc, "parameters": parameters}}


def _get_adapter(hint: Any) -> TypeAdapter[Any]:
    return _get_plain_adapter(hint) if _is_plain(hint) else _make_adapter(hint)


def _make_adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=_LENIENT)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # models, dataclasses and TypedDicts have their own
            raise
        return TypeAdapter(hint)


_get_plain_adapter = functools.cache(_make_adapter)


def _is_plain(hint: Any) -> bool:
    return isinstance(hint, type) and hint in PLAIN_TYPES


def _make_pydantic_schemas(shape: Shape, adapters: Adapters) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """The schema of each parameter, and the definitions they share."""
    try:
        made, shared = _generate_schemas(adapters)  # together, so that two types of one name get two definitions
    except Exception as error:
        raise _make_schema_error(shape, _find_culprit(shape, adapters), error) from error
    definitions = {name: _remove_titles(schema) for name, schema in shared.get("$defs", {}).items()}
    schemas = {name: _inline_reference(_remove_titles(schema), definitions) for (name, _), schema in made.items()}
    for schema in schemas.values():
        schema.pop("default", None)
    return schemas, definitions


def _find_culprit(shape: Shape, adapters: Adapters) -> Parameter:
    """The parameter whose schema cannot be made alone; the first, if it takes several to fail."""
    rich = [parameter for parameter in shape.model_parameters if parameter.name in adapters]
    for parameter in rich:
        try:
            _generate_schemas({parameter.name: adapters[parameter.name]})
        except Exception:
            return parameter
    return rich[0]


def _generate_schemas(adapters: Adapters) -> tuple[Mapping[tuple[str, str], Any], Schema]:
    made, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], schema_generator=_SchemaGenerator
    )
    return {(str(name), mode): schema for (name, mode), schema in made.items()}, shared


def _remove_titles(schema: Any) -> Any:
    """Without the titles that pydantic makes from class and field names: they only cost tokens."""
    if isinstance(schema, list):
        return [_remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: Schema = {}
    for key, value in schema.items():
        if key in _MAPS_OF_SCHEMAS and isinstance(value, dict):
            kept[key] = {name: _remove_titles(item) for name, item in value.items()}
        elif key in _PLAIN_DATA:
            kept[key] = value
        elif key != "title":
            kept[key] = _remove_titles(value)
    return kept


def _inline_reference(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """A parameter that is only a reference becomes what it refers to, which more servers read; not if recursive."""
    name = schema.get("$ref", "").removeprefix(_REF)
    if name not in definitions or name in _find_reachable(definitions[name], definitions):
        return schema
    return {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}


def describe_type(adapter: TypeAdapter[Any]) -> Schema:
    """The JSON Schema of a type, with the definitions that it needs. Raises what pydantic raises."""
    made = adapter.json_schema(schema_generator=_SchemaGenerator)
    definitions = {name: _remove_titles(schema) for name, schema in made.pop("$defs", {}).items()}
    schema: Schema = _remove_titles(made)
    name = schema.get("$ref", "").removeprefix(_REF)
    if name in definitions:
        # What refers to itself is an object at its root all the same.
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    if used := _find_reachable(schema, definitions):
        schema["$defs"] = {name: definitions[name] for name in definitions if name in used}
    return schema


def inline_references(schema: Schema) -> Schema:
    """The schema with each reference that stands beside something else replaced by what it refers to."""
    definitions = schema.get("$defs", {})

    def inline(part: Any) -> Any:
        if isinstance(part, list):
            return [inline(item) for item in part]
        if not isinstance(part, dict):
            return part
        kept = {key: value if key in _PLAIN_DATA else inline(value) for key, value in part.items()}
        return _inline_reference(kept, definitions) if "$ref" in kept and len(kept) > 1 else kept

    made: Schema = inline(schema)
    return made


def _find_reachable(schema: Any, definitions: dict[str, Schema]) -> set[str]:
    """The names of all definitions that a schema needs."""
    found: set[str] = set()
    waiting = list(_iterate_references(schema))
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in found:
            found.add(name)
            waiting.extend(_iterate_references(definitions[name]))
    return found


def _iterate_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _iterate_references(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(_REF)
            else:
                yield from _iterate_references(value)


def _describe_parameters(shape: Shape) -> dict[str, str]:
    """Return the docstring's description of each parameter; a description in the hint itself goes before it."""
    wanted = {p.name for p in shape.model_parameters if not _describes_itself(p.hint)}
    if "\n" not in shape.doc or not any(name in shape.doc for name in wanted):
        return {}
    import docstring_parser  # a fifth of this package's import time, and many functions need none of it

    try:
        parsed = docstring_parser.parse(shape.doc).params
    except Exception:  # a docstring is prose first: even if it is not valid markup, it is the description
        return {}
    texts = {param.arg_name: " ".join((param.description or "").split()) for param in parsed}
    return {name: text for name, text in texts.items() if text and name in wanted}


def _describes_itself(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated and any(
        isinstance(getattr(extra, "description", None), str) for extra in typing.get_args(hint)[1:]
    )


def _make_schema_error(shape: Shape, parameter: Parameter, error: Exception) -> FunctionSchemaError:
    reason = str(getattr(error, "message", None) or error).partition("\n")[0]
    return FunctionSchemaError(
        shape.name, parameter.name, f"its hint {parameter.hint!r} has no JSON Schema ({reason or type(error).__name__})"
    )


# Bound the references of a JSON schema, its size once they are followed, and the cost of reading by it.

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
