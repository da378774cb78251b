"""Functions of the caller: described to models, and called here with what models ask for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep_client.inputs import CallerTool, ToolResult
from swarmkeep_client.models import Json, PendingCall, Run


class CallerFunction:
    """A function with its description. Its parameters are what `inspect` says of it, by their hints."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", "")
        if not self.name.isidentifier():
            raise TypeError(f"{function!r} has no name to be called by: give a function, or its schema")
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments = msgspec.defstruct(self.name, _list_fields(function), forbid_unknown_fields=True, kw_only=True)

    def describe(self) -> Json:
        schema = msgspec.json.schema(self._arguments)
        definitions = schema.get("$defs", {})
        parameters = {key: value for key, value in definitions.pop(self.name).items() if key != "title"}
        described: Json = {
            "name": self.name,
            "parameters": parameters | ({"$defs": definitions} if definitions else {}),
        }
        if text := inspect.getdoc(self.function):
            described["description"] = text
        return {"type": "function", "function": described}

    def bind(self, arguments: str) -> Mapping[str, Any]:
        """What a model wrote, as the function takes it. Raises msgspec.DecodeError and ValidationError."""
        found = msgspec.json.decode(arguments or "{}", type=self._arguments)
        return {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not UNSET}


def _list_fields(function: Callable[..., Any]) -> list[Any]:
    hints = get_type_hints(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"{function!r}: {parameter} cannot be described to a model")
        hint = hints.get(parameter.name, str)
        is_needed = parameter.default is parameter.empty
        fields.append((parameter.name, hint) if is_needed else (parameter.name, hint | UnsetType, UNSET))
    return fields


class CallerTools:
    """The functions that a run was given. A schema in their place is one that somebody else carries out."""

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


def carry_out(call: PendingCall, function: CallerFunction) -> ToolResult:
    """Call the function; whatever happens becomes a result that the model reads."""
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
    """As `carry_out`; plain functions run in a thread, and what they return is awaited where it can be."""
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
    """What a plain function returns, or raises: whoever waits for a thread that raises StopIteration waits forever."""
    try:
        return function.function(**function.bind(call.arguments)), None
    except Exception as error:
        return None, error


def _describe_error(call: PendingCall, error: Exception) -> ToolResult:
    text = f"Error: {call.name} failed: {type(error).__name__}: {error}"
    return {"tool_call_id": call.tool_call_id, "content": text, "is_error": True}


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:
        return str(value)
