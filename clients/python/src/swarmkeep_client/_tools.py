"""Functions of the caller: described to models, and called here with what models ask for.

Arguments are read as agents' functions read theirs on a server: `5.0` and `"5"` are an `int`. msgspec does it where it
can. Hints that it does not know (pydantic models, dataclasses, constraints) are pydantic's, which the client does not
depend on: it is used where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep_client._json import decode
from swarmkeep_client.models import CallerTool, Json, PendingCall, Run, RunOptions, ToolResult

_EMPTY: Any = inspect.Parameter.empty
_PLAIN = frozenset((str, int, float, bool, list, dict, tuple, set, frozenset, type(None)))


@dataclass(frozen=True)
class _Parameter:
    name: str
    hint: Any
    default: Any

    @property
    def shown_hint(self) -> Any:
        """The hint that describes it: a string where there is none, and null only if it is the default."""
        hint = str if self.hint is _EMPTY else self.hint
        return hint if self.default is _EMPTY else hint | UnsetType


class CallerFunction:
    """A function with its description. Its parameters are what `inspect` says of it, by their hints."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises TypeError if it cannot be described."""
        self.function = function
        self.name: str = getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise TypeError(f"{function!r} has no name to be called by: give a function, or its schema")
        self.is_async = inspect.iscoroutinefunction(function)
        self._parameters = {parameter.name: parameter for parameter in _read_parameters(function)}
        self._adapters: dict[str, Any] | None = None
        self._schema = self._make_schema()

    def describe(self) -> Json:
        described: Json = {"name": self.name, "parameters": self._schema}
        if text := inspect.getdoc(self.function):
            described["description"] = text
        return {"type": "function", "function": described}

    def bind(self, arguments: str) -> Mapping[str, Any]:
        """Convert what a model wrote to arguments. Raises WrongArguments, whose sentence is for the model."""
        try:
            given = _read_object(arguments, takes_none=not self._parameters)
        except (ValueError, RecursionError) as error:
            raise WrongArguments(str(error)) from None
        problems = [f"{name!r} is unexpected" for name in given if name not in self._parameters]
        found: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            if name in given:
                try:
                    found[name] = self._convert(parameter, given[name])
                except Exception as error:  # validators of the hinted types are the caller's code
                    problems.append(_describe_problem(name, error))
            elif parameter.default is _EMPTY:
                problems.append(f"{name} is missing")
        if problems:
            raise WrongArguments("; ".join(problems))
        return found

    def _make_schema(self) -> Json:
        parameters = self._parameters.values()
        is_plain = all(_is_plain(parameter.hint) for parameter in parameters)
        try:
            if not is_plain and _find_pydantic() is not None:
                return self._make_pydantic_schema()
            return _make_msgspec_schema(self.name, parameters)
        except Exception as refusal:  # a hint of the caller's may raise anything
            try:
                return _make_msgspec_schema(self.name, parameters) if not is_plain else self._make_pydantic_schema()
            except Exception:
                reason = str(refusal).partition("\n")[0]
                raise TypeError(f"{self.function!r} cannot be described to a model: {reason}") from refusal

    def _make_pydantic_schema(self) -> Json:
        hinted = [parameter for parameter in self._parameters.values() if parameter.hint is not _EMPTY]
        adapters = {parameter.name: _make_adapter(parameter.hint) for parameter in hinted}
        wanted = [(name, "validation", adapter) for name, adapter in adapters.items()]
        made, shared = _find_pydantic().TypeAdapter.json_schemas(wanted)
        schema: Json = {
            "type": "object",
            "properties": {name: made.get((name, "validation"), {"type": "string"}) for name in self._parameters},
            "required": [name for name, parameter in self._parameters.items() if parameter.default is _EMPTY],
            "additionalProperties": False,
        }
        self._adapters = adapters
        return schema | ({"$defs": shared["$defs"]} if "$defs" in shared else {})

    def _convert(self, parameter: _Parameter, value: Any) -> Any:
        """The value as the hint wants it. Raises ValueError: msgspec's and pydantic's errors are some."""
        if parameter.hint is _EMPTY or (value is None and parameter.default is None):
            return value
        if self._adapters is not None:
            return self._adapters[parameter.name].validate_python(value)
        try:
            # First as it is: of `int | str` "5" stays text.
            return msgspec.convert(value, parameter.hint)
        except msgspec.ValidationError as refusal:
            try:
                return _convert_leniently(value, parameter.hint)
            except ValueError:
                raise refusal from None


class WrongArguments(ValueError):
    """Arguments that do not fit the function, which has not been called."""


def _read_object(arguments: str, *, takes_none: bool) -> Json:
    """Blank is an empty object, and for a function that takes nothing `null` is, too. Raises ValueError."""
    try:
        return decode((arguments.strip() or "{}").encode(), dict[str, Any])
    except msgspec.ValidationError:
        if takes_none and arguments.strip() == "null":
            return {}
        raise ValueError("they must be a JSON object") from None
    except ValueError as error:
        raise ValueError(f"they are not valid JSON: {error}") from None


def _read_parameters(function: Callable[..., Any]) -> list[_Parameter]:
    found = list(inspect.signature(function).parameters.values())
    for parameter in found:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"{function!r}: {parameter} cannot be described to a model; name each parameter, or pass a schema"
            )

    # Without the hint of the return value, which need not be resolvable.
    def probe() -> None: ...

    probe.__annotations__ = {p.name: p.annotation for p in found if p.annotation is not _EMPTY}
    inner: Any = inspect.unwrap(getattr(function, "__func__", function))
    closed_over: Mapping[str, Any] = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    try:
        hints = get_type_hints(probe, getattr(inner, "__globals__", {}), dict(closed_over), include_extras=True)
    except Exception as error:  # a hint in a string is code
        raise TypeError(f"{function!r}: a hint cannot be resolved: {error}") from error
    return [_Parameter(p.name, hints.get(p.name, _EMPTY), p.default) for p in found]


def _make_msgspec_schema(name: str, parameters: Iterable[_Parameter]) -> Json:
    fields: list[Any] = [
        (p.name, p.shown_hint) if p.default is _EMPTY else (p.name, p.shown_hint, UNSET) for p in parameters
    ]
    schema = msgspec.json.schema(msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True))
    definitions = schema.get("$defs", {})
    described = {key: value for key, value in definitions.pop(name).items() if key != "title"}
    return described | ({"$defs": definitions} if definitions else {})


def _is_plain(hint: Any) -> bool:
    """Return whether msgspec reads all of a hint as pydantic would."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_plain(inner[0]) and all(isinstance(extra, (str, msgspec.Meta)) for extra in inner[1:])
    if origin is not None:
        known = origin in _PLAIN or origin in (Union, UnionType)
        return origin is Literal or (known and all(part is ... or _is_plain(part) for part in inner))
    if hint is Any or hint is _EMPTY:
        return True
    return isinstance(hint, type) and (hint in _PLAIN or issubclass(hint, (Enum, msgspec.Struct)))


def _convert_leniently(value: Any, hint: Any) -> Any:
    if (adapter := _make_known_adapter(hint)) is not None:
        return adapter.validate_python(value)
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError:
        if type(value) not in (int, float):
            raise
        return msgspec.convert(str(value), hint)


@cache
def _find_pydantic() -> Any:
    """pydantic where it is installed, or None. It is loaded only once a function needs it."""
    try:
        return importlib.import_module("pydantic")
    except ImportError:
        return None


def _make_adapter(hint: Any) -> Any:
    pydantic = _find_pydantic()
    try:
        return pydantic.TypeAdapter(hint, config={"coerce_numbers_to_str": True})
    except pydantic.PydanticUserError:  # models, dataclasses and TypedDicts have a configuration of their own
        return pydantic.TypeAdapter(hint)


def _make_known_adapter(hint: Any) -> Any:
    """pydantic's reader of a hint; None without pydantic, and for a hint that it does not know, as one of msgspec."""
    try:
        return None if _find_pydantic() is None else _make_adapter(hint)
    except Exception:
        return None


def _describe_problem(name: str, error: Exception) -> str:
    errors: Any = getattr(error, "errors", None)
    if errors is None or not isinstance(error, ValueError):
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return f"{name}: {kind}{error}"
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, (name, *each['loc'])))}: {each['msg']}" for each in found[:5])


class CallerTools:
    """The functions that a run was given. A schema in their place is for a function that another program calls."""

    def __init__(self, tools: Sequence[CallerTool], *, allow_async: bool = True) -> None:
        found = [CallerFunction(tool) if callable(tool) else tool for tool in tools]
        self.definitions = [tool.describe() if isinstance(tool, CallerFunction) else dict(tool) for tool in found]
        self._functions = {tool.name: tool for tool in found if isinstance(tool, CallerFunction)}
        for tool in self._functions.values():
            if tool.is_async and not allow_async:
                raise TypeError(f"{tool.name} is an async function: use the AsyncClient with it")

    def list_calls(self, run: Run) -> list[tuple[PendingCall, CallerFunction]]:
        """The calls that a run waits for, if all of them are to be carried out here; else none."""
        if run.status != "waiting":
            return []
        found = [
            (call, function)
            for call in run.pending
            if call.reason == "tool_results" and (function := self._functions.get(call.name)) is not None
        ]
        return found if len(found) == len(run.pending) else []


def make_tools(options: RunOptions, *, background: bool) -> CallerTools:
    """Read the functions of a blocking run. An async one is only for the background, where it is not called here."""
    return CallerTools(options.get("tools") or (), allow_async=background)


def make_async_tools(options: RunOptions, *, background: bool) -> CallerTools:
    return CallerTools(options.get("tools") or ())


def carry_out(call: PendingCall, function: CallerFunction) -> ToolResult:
    """Call the function; its value, or its error, becomes a result that the model reads."""
    try:
        value = function.function(**function.bind(call.arguments))
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError("it returned a coroutine, which the AsyncClient would await")
        content = _to_text(value)
    except Exception as error:
        return _describe_error(call, error)
    return {"tool_call_id": call.tool_call_id, "content": content}


async def carry_out_async(call: PendingCall, function: CallerFunction) -> ToolResult:
    """Call the function as `carry_out` does; plain functions run in a thread, and an awaitable result is awaited."""
    try:
        if function.is_async:
            value = await function.function(**function.bind(call.arguments))
        else:
            value, error = await asyncio.to_thread(_try, call, function)
            if error is not None:
                raise error
        content = _to_text(await value if inspect.isawaitable(value) else value)
    except Exception as error:
        return _describe_error(call, error)
    return {"tool_call_id": call.tool_call_id, "content": content}


def _try(call: PendingCall, function: CallerFunction) -> tuple[Any, Exception | None]:
    """Return what a plain function returns or raises: to wait for a thread that raises StopIteration takes forever."""
    try:
        return function.function(**function.bind(call.arguments)), None
    except Exception as error:
        return None, error


def _describe_error(call: PendingCall, error: Exception) -> ToolResult:
    text = f"Error: {call.name} failed: {type(error).__name__}: {error}"
    if isinstance(error, WrongArguments):
        text = f"Error: {call.name} was not called, its arguments are wrong: {error}"
    return {"tool_call_id": call.tool_call_id, "content": text, "is_error": True}


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value, enc_hook=_dump_model).decode()
    except TypeError:
        return str(value)


def _dump_model(value: Any) -> Any:
    """A pydantic model as JSON data. Raises TypeError for any other value that msgspec does not know."""
    if not hasattr(value, "__pydantic_serializer__"):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return value.model_dump(mode="json")
