"""The Chat Completions schema of a function, and the pydantic adapters that read its arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, GenericAlias, MethodType, UnionType
from typing import Annotated, Any, Literal, NewType, Union

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
