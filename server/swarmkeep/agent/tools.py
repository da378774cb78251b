"""A function as a tool: built once, bound to a model's arguments at each call."""

from __future__ import annotations

import functools
import json
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, Protocol, TypeVar, cast, overload

from pydantic import Field, TypeAdapter, ValidationError

from swarmkeep.agent.guardrails import Guardrail, check_guardrails
from swarmkeep.agent.schema import (
    CONTEXT,
    Parameter,
    Schema,
    ToolCallId,
    UnionBounds,
    make_adapters,
    make_schema,
    read_shape,
)
from swarmkeep.agent.values import InvalidFunctionError, NotJsonError, ToolArgumentsError, quote, to_plain_json

# `@tool`: options that say how a function may be run.

_ATTRIBUTE = "__swarmkeep_tool_options__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options for how a function may be run; the defaults are those of an undecorated function."""

    requires_approval: bool = False
    idempotent: bool = False
    timeout: float | None = None
    guardrails: tuple[Guardrail, ...] = ()
    concurrent: bool = False
    summary: str | None = None


@overload
def tool(
    function: F,
    /,
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
    summary: str | None = None,
) -> F: ...


@overload
def tool(
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
    summary: str | None = None,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    requires_approval: bool = False,
    idempotent: bool = False,
    timeout: float | None = None,
    guardrails: Sequence[Guardrail] = (),
    concurrent: bool = False,
    summary: str | None = None,
) -> F | Callable[[F], F]:
    """Say how a function may be run, as `@tool` or `@tool(timeout=20)`; it stays an ordinary function.

    `requires_approval`: a person decides before each call. `idempotent`: after a crash a call that has no result
    may run again, with the same tool call id. `timeout`: seconds after which the model is told that the call took
    too long. `guardrails` look at each call before it runs, and may refuse it. `concurrent`: of an agent with
    `concurrent_tools`, calls to it may run beside others of the same reply: it needs nothing that those change.
    `summary` says what a call does, for the person who approves it: "Refund {amount} to {customer}", with parameters in
    braces.

    Returns the function itself; what takes no attributes (a bound method, a built-in) comes back in a partial.

    Raises ValueError unless `timeout` is a positive number of seconds, `guardrails` are functions, and `summary` is a
    sentence with names in its braces.
    """
    if timeout is not None and not _is_positive_number(timeout):
        raise ValueError(f"timeout must be a positive, finite number of seconds, not {timeout!r}")
    options = ToolOptions(
        requires_approval=requires_approval,
        idempotent=idempotent,
        timeout=None if timeout is None else float(timeout),
        guardrails=tuple(check_guardrails(guardrails, "guardrails")),
        concurrent=concurrent,
        summary=summary,
    )
    if summary is not None:
        list_summary_names(summary)
    if function is None:
        return lambda function: _attach_options(function, options)
    return _attach_options(function, options)


MAX_SUMMARY_CHARACTERS = 200


def list_summary_names(summary: str) -> list[str]:
    """The parameters that a summary names in braces. Raises ValueError if it is not a sentence with names in them."""
    if not isinstance(summary, str) or not 0 < len(summary.strip()) <= len(summary) <= MAX_SUMMARY_CHARACTERS:
        raise ValueError(f"summary must be a text of 1 to {MAX_SUMMARY_CHARACTERS} characters, not {summary!r}")
    try:
        parts = list(string.Formatter().parse(summary))
    except ValueError as error:
        raise ValueError(f"summary {summary!r}: {error}; write {{{{ and }}}} for braces") from None
    for _, name, form, conversion in parts:
        if name is not None and (not name.isidentifier() or form or conversion):
            raise ValueError(f"summary {summary!r}: only the name of a parameter may stand in braces")
    return [name for _, name, _, _ in parts if name is not None]


def get_options(function: Callable[..., Any]) -> ToolOptions:
    """The options given to a function, to what a partial wraps, or to a callable object's `__call__`."""
    while True:
        options = getattr(function, _ATTRIBUTE, None) or getattr(type(function).__call__, _ATTRIBUTE, None)
        if isinstance(options, ToolOptions):
            return options
        if not isinstance(function, functools.partial):
            return ToolOptions()
        function = function.func


def _attach_options(function: F, options: ToolOptions) -> F:
    if not callable(function):
        raise TypeError(f"tool() decorates a function, not {function!r}")
    try:
        setattr(function, _ATTRIBUTE, options)
    except (AttributeError, TypeError, ValueError):  # ValueError: a pydantic model
        wrapped = functools.partial(function)
        setattr(wrapped, _ATTRIBUTE, options)
        return cast("F", wrapped)
    return function


def _is_positive_number(timeout: object) -> bool:
    return (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and math.isfinite(timeout) and timeout > 0
    )


# An agent as another one's function: what such a function is, and which agent it asks.

_INPUT = "What is asked, in full: nothing else of this conversation is known there."
_ASKED_ATTRIBUTE = "__swarmkeep_asked_agent__"


class AskedAgent(Protocol):
    """All that a tool knows of the agent that it asks: who carries out a run's calls finds it by its name."""

    name: str


def make_asking_function(
    agent: AskedAgent,
    name: str,
    description: str,
    *,
    requires_approval: bool,
    timeout: float | None,
    guardrails: Sequence[Guardrail],
    concurrent: bool,
) -> Callable[[str], str]:
    """Return a function that stands for asking the agent: the code that carries out a run's calls does that."""

    def ask(input: Annotated[str, Field(description=_INPUT)]) -> str:
        raise TypeError(f"{name} asks agent {agent.name!r}, which only a run can do: give it to another agent")

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = description
    setattr(ask, _ASKED_ATTRIBUTE, agent)
    return tool(ask, requires_approval=requires_approval, timeout=timeout, guardrails=guardrails, concurrent=concurrent)


def find_asked_agent(function: Callable[..., Any]) -> AskedAgent | None:
    """The agent that a call of the function asks; None for a function like any other."""
    while isinstance(function, functools.partial):
        function = function.func
    return vars(function).get(_ASKED_ATTRIBUTE) if isinstance(function, FunctionType) else None


_SHOWN_PROBLEMS = 5
_SHOWN_INPUT_CHARACTERS = 60
_ABSENT: Any = object()


class Tool:
    """One function of an agent, and all that the loop asks of it. It never changes.

    `schema` is the Chat Completions tool schema; share it, do not change it. `timeout` is in seconds. Whether
    `is_async` or not, what a call returns may be awaitable: a plain function can hand on a coroutine.
    `asked_agent` is the agent that a call is to be answered by, where it is not the function itself that does.
    """

    __slots__ = (
        "_adapters",
        "_bounds",
        "_hidden",
        "_shape",
        "asked_agent",
        "concurrent",
        "function",
        "guardrails",
        "has_parameters",
        "idempotent",
        "is_async",
        "name",
        "requires_approval",
        "schema",
        "summary",
        "timeout",
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises InvalidFunctionError or FunctionSchemaError."""
        shape = read_shape(function)
        options = get_options(function)
        self.function = function
        self.asked_agent: AskedAgent | None = find_asked_agent(function)
        self.name: str = shape.name
        self.is_async: bool = shape.is_async
        self.requires_approval: bool = options.requires_approval
        self.idempotent: bool = options.idempotent
        self.timeout: float | None = options.timeout
        self.guardrails = options.guardrails
        self.concurrent: bool = options.concurrent
        self.summary: str | None = options.summary
        self.has_parameters: bool = bool(shape.model_parameters) or shape.takes_keywords
        known = {parameter.name for parameter in shape.model_parameters}
        for name in list_summary_names(options.summary) if options.summary else ():
            if name not in known and not shape.takes_keywords:
                raise InvalidFunctionError(shape.name, f"its summary names {name!r}, which is no parameter")
        self._shape = shape
        self._adapters: dict[str, TypeAdapter[Any]] = make_adapters(shape)
        self.schema: Schema = make_schema(shape, self._adapters)
        self._bounds = UnionBounds(self.schema["function"]["parameters"], is_tagged=True)
        # Names that **kwargs must not let the model fill.
        self._hidden = {CONTEXT, *shape.bound, *(p.name for p in shape.parameters)}

    def __repr__(self) -> str:
        return f"Tool({self.name})"

    def bind(self, arguments: str, *, context_variables: dict[str, Any], tool_call_id: str) -> functools.partial[Any]:
        """The call that a model asked for, ready to be made: it takes no arguments.

        `arguments` is the model's JSON text; blank counts as `{}`, and so does `null` for a function without
        parameters. Values are converted to the hinted types.
        `context_variables` is passed as it is, not copied, so the caller sees changes made in place.

        Raises ToolArgumentsError, whose sentence is for the model; nothing has been called then.
        """
        given = self.parse_arguments(arguments)
        problems: list[str] = []
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._shape.parameters:
            value = self._fill_parameter(parameter, given, context_variables, tool_call_id, problems)
            if parameter.positional_only:
                positional.append(parameter.default if value is _ABSENT else value)
            elif value is not _ABSENT:
                named[parameter.name] = value
        known = {p.name for p in self._shape.model_parameters}
        for name, value in given.items():
            if name in known:
                continue
            if self._shape.takes_keywords and name not in self._hidden:
                named[name] = value
            else:
                problems.append(self._describe_unexpected(name))
        if problems:
            raise ToolArgumentsError(self.name, problems)
        return functools.partial(self.function, *positional, **named)

    def parse_arguments(self, arguments: str) -> dict[str, Any]:
        """Return a model's JSON text as an object, with any content. Raises ToolArgumentsError."""
        if not arguments or arguments.isspace():
            return {}
        try:
            given = to_plain_json(json.loads(arguments, object_pairs_hook=_refuse_repeated_keys), "arguments")
        except json.JSONDecodeError as error:
            # Some messages end for a place that follows: "Unterminated string starting at".
            why = f"{error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
            raise ToolArgumentsError(self.name, [f"they are not valid JSON: {why}"]) from error
        except (NotJsonError, _RepeatedKey) as error:
            raise ToolArgumentsError(self.name, [str(error)]) from error
        except RecursionError:
            raise ToolArgumentsError(self.name, ["they are nested too deep"]) from None
        except ValueError as error:  # an integer with thousands of digits
            raise ToolArgumentsError(self.name, ["they hold a number with too many digits"]) from error
        if given is None and not self.has_parameters:
            return {}
        if not isinstance(given, dict):
            raise ToolArgumentsError(self.name, [f"they must be a JSON object, but are {_shorten_json(given)}"])
        return given

    def _fill_parameter(
        self,
        parameter: Parameter,
        given: dict[str, Any],
        context_variables: dict[str, Any],
        tool_call_id: str,
        problems: list[str],
    ) -> Any:
        if parameter.filled_by == "context":
            return context_variables
        if parameter.filled_by == "call_id":
            return ToolCallId(tool_call_id)
        if parameter.name not in given:
            if parameter.required:
                problems.append(f"{parameter.name} is missing")
            return _ABSENT
        return self._convert_value(parameter, given[parameter.name], problems)

    def _convert_value(self, parameter: Parameter, value: Any, problems: list[str]) -> Any:
        adapter = self._adapters.get(parameter.name)
        if adapter is None or (value is None and parameter.default is None):
            return value
        if self._bounds.is_too_deep(value, self.schema["function"]["parameters"]["properties"].get(parameter.name)):
            problems.append(f"{parameter.name} is nested too deep for a union whose models contain it")
            return _ABSENT
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            problems.extend(_describe_problems(parameter.name, error))
        except Exception as error:  # validators of the hinted types are the user's code
            problems.append(f"{parameter.name} could not be read: {type(error).__name__}: {error}")
        return _ABSENT

    def _describe_unexpected(self, name: str) -> str:
        names = ", ".join(p.name for p in self._shape.model_parameters)
        return f"{quote(name)} is unexpected ({f'it takes {names}' if names else 'it takes no arguments'})"


class _RepeatedKey(Exception):
    """An object names a key twice. An approver of the one value may not have meant the other."""


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RepeatedKey(f"the key {_quote_key(repeated)} is there more than once")
    return found


def _describe_problems(parameter: str, error: ValidationError) -> list[str]:
    found = error.errors(include_url=False, include_context=False)
    # Of each the value is written: of one that is large, not of all that is wrong in it.
    texts = [
        _describe_problem(parameter, problem["loc"], problem["type"], problem["msg"], problem["input"])
        for problem in found[:_SHOWN_PROBLEMS]
    ]
    return texts if len(found) <= _SHOWN_PROBLEMS else [*texts, f"{parameter} has more such errors"]


def _describe_problem(parameter: str, location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    where = parameter + "".join(f"[{part}]" if isinstance(part, int) else f".{_quote_key(part)}" for part in location)
    if kind == "missing":
        return f"{where} is missing"
    if message.startswith("Input should "):
        return f"{where} should {message.removeprefix('Input should ')}, but is {_shorten_json(value)}"
    return f"{where}: {message}"


def _quote_key(part: str) -> str:
    return part if part.isascii() and part.isprintable() and len(part) <= _SHOWN_INPUT_CHARACTERS else quote(part)


def _shorten_json(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= _SHOWN_INPUT_CHARACTERS else text[:_SHOWN_INPUT_CHARACTERS] + "…"
