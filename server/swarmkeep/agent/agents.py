"""The Agent: instructions, functions, and the settings of its model calls."""

from __future__ import annotations

import copy
import inspect
import json
import warnings
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from swarmkeep.agent.guardrails import Guardrail, check_guardrails
from swarmkeep.agent.mcp_servers import MCPServer, check_mcp_servers
from swarmkeep.agent.output import OUTPUT_TOOL, OutputFormat, OutputMode, OutputTypeError, make_output_format
from swarmkeep.agent.schema import CONTEXT, Schema, advise_on_unions, unwrap_partial
from swarmkeep.agent.tools import Tool, make_asking_function
from swarmkeep.agent.values import (
    FunctionSchemaError,
    InvalidFunctionError,
    check_assignee,
    check_model_profile,
    check_model_settings,
    to_text,
)

# When the history of a conversation is made shorter for an agent's model.


class Compaction(BaseModel):
    """Make the history shorter for the model once it takes `at` of `of_tokens`, which is what the model can take.

    Without `of_tokens`, only when the model's provider says that a request is too long. Results of functions longer
    than `result_characters` are shortened; then all but the last `keep_turns` turns are replaced by a summary, which
    the agent's model is asked for, with `instructions` added if there are some. The log keeps all of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float = Field(default=0.8, gt=0, le=1)
    of_tokens: int | None = Field(default=None, ge=100)
    keep_turns: int = Field(default=4, ge=1)
    result_characters: int = Field(default=2_000, ge=100)
    instructions: str | None = Field(default=None, max_length=20_000)


AgentFunction: TypeAlias = Callable[..., Any]


class FunctionList(list[AgentFunction]):
    """An agent's functions, which remembers the tool built for each.

    The memory is one list's own and holds nothing that is not in the list, so it lives as long as its functions
    are in use. It is not part of the value: copies and pickles start without it.
    """

    __slots__ = ("_tool_cache",)

    def __init__(self, functions: Iterable[AgentFunction] = ()) -> None:
        super().__init__(functions)
        self._tool_cache: dict[int, Tool] = {}

    def __reduce_ex__(self, protocol: Any) -> tuple[type[FunctionList], tuple[list[AgentFunction]]]:
        return FunctionList, (list(self),)

    def tools(self, agent: str) -> dict[str, Tool]:
        """The tools by name, in order. Raises InvalidFunctionError, naming the agent."""
        tools: dict[str, Tool] = {}
        built: dict[int, Tool] = {}
        for function in list(self):
            tool = self._tool_cache.get(id(function))
            if tool is None or tool.function is not function:
                tool = _make_tool(agent, function)
            built[id(function)] = tool
            other = tools.setdefault(tool.name, tool)
            if other is not tool and not _is_same_function(other.function, function):
                raise InvalidFunctionError(tool.name, "another of its functions has the same name", agent=agent)
        self._tool_cache = built
        return tools


class Agent(BaseModel):
    """A role in a conversation: what the model is told, and which functions it may call.

    A function that returns another Agent hands the conversation over. Functions may be plain, async, partials,
    bound methods or callable objects; anything else is refused when the Agent is made. `functions` may be
    appended to later, for agents that hand over to each other; additions are checked before they are used.

    `model_settings` are further parameters of a Chat Completions request, such as `temperature`. `model_profile` says
    how its model wants to be asked. `parallel_tool_calls=None` sends no such parameter.

    `output_type` is what its final answers are: a pydantic model, a dataclass, a TypedDict, or a JSON schema as a dict.
    A wrong answer is sent back at most `output_retries` times. `output_mode="tool"`: the model gives it by calling a
    function, for models that know no `response_format`.

    `input_guardrails` look at new messages before its model does, `output_guardrails` at what its model says before
    anybody else does; each may refuse.

    `concurrent_tools`: of the calls in one reply, those to functions declared `@tool(concurrent=True)` run at once.
    `mcp_servers` have further tools for its model.
    """

    model_config = ConfigDict(validate_assignment=True, hide_input_in_errors=True)

    name: str = "Agent"
    model: str = "gpt-4o"
    instructions: str | Callable[..., Any] = "You are a helpful agent."
    functions: list[AgentFunction] = Field(default_factory=FunctionList)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    concurrent_tools: bool = False
    model_settings: dict[str, Any] = {}
    model_profile: dict[str, str] = {}
    output_type: Any = None
    output_mode: OutputMode = "response_format"
    output_retries: Annotated[int, Field(ge=0, le=20)] = 2
    compaction: Compaction | None = None
    input_guardrails: list[Guardrail] = []
    output_guardrails: list[Guardrail] = []
    mcp_servers: list[MCPServer] = []

    @model_validator(mode="before")
    @classmethod
    def _warn_of_unknown_settings(cls, given: Any) -> Any:
        """As OpenAI Swarm's, an Agent takes any keyword; but `output_guardrail=[f]` must not go unnoticed."""
        if not isinstance(given, dict) or cls.model_config.get("extra"):
            return given
        known = _list_settings(cls)
        for name in sorted(name for name in given if isinstance(name, str) and name not in known):
            close = get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            # The caller of __init__, which calls this.
            warnings.warn(f"an Agent has no setting {name!r}, so it is ignored{meant}", UserWarning, stacklevel=3)
        return given

    @field_validator("model_settings", mode="plain")
    @classmethod
    def _check_model_settings(cls, value: object, info: ValidationInfo) -> dict[str, Any]:
        return check_model_settings(value, f"model_settings of agent {info.data.get('name', 'Agent')!r}")

    @field_validator("model_profile", mode="plain")
    @classmethod
    def _check_model_profile(cls, value: object, info: ValidationInfo) -> dict[str, str]:
        return check_model_profile(value, f"model_profile of agent {info.data.get('name', 'Agent')!r}")

    @field_validator("input_guardrails", "output_guardrails", mode="plain")
    @classmethod
    def _check_guardrails(cls, value: object, info: ValidationInfo) -> list[Guardrail]:
        return check_guardrails(value, f"{info.field_name} of agent {info.data.get('name', 'Agent')!r}")

    @field_validator("mcp_servers", mode="plain")
    @classmethod
    def _check_mcp_servers(cls, value: object, info: ValidationInfo) -> list[MCPServer]:
        return check_mcp_servers(value, f"mcp_servers of agent {info.data.get('name', 'Agent')!r}")

    @field_validator("functions", mode="plain")
    @classmethod
    def _check_functions(cls, value: object, info: ValidationInfo) -> FunctionList:
        agent = info.data.get("name", "Agent")
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"the functions of agent {agent!r} must be a list, not a {type(value).__name__}")
        functions = FunctionList(value)
        functions.tools(agent)
        return functions

    @field_validator("output_type")
    @classmethod
    def _copy_schema(cls, value: object) -> object:
        return copy.deepcopy(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_output(self) -> Self:
        output = self.output()
        if output is not None and output.advice is not None:
            warnings.warn(f"output_type of agent {self.name!r}: {output.advice}", UserWarning, stacklevel=2)
        return self

    def output(self) -> OutputFormat | None:
        """The form that final answers must have, if one is set; cheap to ask again.

        Raises OutputTypeError for a type that cannot be described, and InvalidFunctionError where a function has the
        name of the one that takes the output.
        """
        if self.output_type is None:
            return None
        output = make_output_format(self.output_type)
        if self.output_mode == "tool":
            if output.schema.get("type") != "object":
                raise OutputTypeError("with output_mode='tool' the output_type must be a schema of an object")
            if OUTPUT_TOOL in self.tools():
                raise InvalidFunctionError(OUTPUT_TOOL, "that is the function which takes the output", agent=self.name)
        return output

    def tools(self) -> dict[str, Tool]:
        """The agent's tools by name, in the order of its functions; cheap to ask again.

        Raises InvalidFunctionError if a function was added that cannot be a tool, or whose name is taken.
        """
        functions = self.functions
        if not isinstance(functions, FunctionList):  # model_copy(update=...) and model_construct check nothing
            functions = FunctionList(functions)
            self.__dict__["functions"] = functions
        return functions.tools(self.name)

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        requires_approval: bool = False,
        timeout: float | None = None,
        guardrails: Sequence[Guardrail] = (),
        concurrent: bool = False,
    ) -> AgentFunction:
        """This agent as a function of another one, to be put into its `functions`: it takes `input`, a text.

        A call of it is a run of this agent in a session of its own, whose answer is the call's result. Unlike after a
        handoff, the conversation stays with the agent that called. The options are those of `@tool`.

        Raises InvalidFunctionError for a name that no function can have.
        """
        options: dict[str, Any] = {
            "requires_approval": requires_approval,
            "timeout": timeout,
            "guardrails": guardrails,
            "concurrent": concurrent,
        }
        function = make_asking_function(self, name, description, **options)
        _make_tool(self.name, function)
        return function

    def tool_schemas(self) -> list[Schema]:
        """The Chat Completions schemas of the agent's tools; share them, do not change them."""
        return [tool.schema for tool in self.tools().values()]

    def render_instructions(self, context_variables: dict[str, Any]) -> str | Awaitable[str]:
        """The text of the system message; to be awaited if the instructions are an async function.

        A function gets a copy of the context variables in which a missing key reads as "", as in Swarm: what it
        changes there is lost.
        """
        if isinstance(self.instructions, str):
            return self.instructions
        context = defaultdict(str, copy.deepcopy(context_variables))
        text = _call_with_context(self.instructions, context)
        return _await_text(text) if inspect.isawaitable(text) else str(text)


def _list_settings(kind: type[BaseModel]) -> list[str]:
    """The names by which agents of this kind are given their settings: a subclass may have others for its own."""
    names: list[str] = []
    for name, info in kind.model_fields.items():
        alias = info.validation_alias
        ways = alias.choices if isinstance(alias, AliasChoices) else [alias]
        names += [name, *(way if isinstance(way, str) else str(way.path[0]) for way in ways if way is not None)]
    return names


def _make_tool(agent: str, function: AgentFunction) -> Tool:
    try:
        tool = Tool(function)
        if (advice := advise_on_unions(tool.schema["function"]["parameters"])) is not None:
            warnings.warn(f"{tool.name}() of agent {agent!r}: {advice}", UserWarning, stacklevel=2)
        return tool
    except InvalidFunctionError as error:
        raise InvalidFunctionError(error.function, error.reason, agent=agent) from error
    except FunctionSchemaError as error:
        raise InvalidFunctionError(error.function, str(error), agent=agent) from error


def _is_same_function(one: AgentFunction, other: AgentFunction) -> bool:
    """One function listed twice is one tool; a method read twice from its object makes two equal objects."""
    return one is other or (inspect.ismethod(one) and inspect.ismethod(other) and one == other)


def _call_with_context(function: Callable[..., Any], context: dict[str, Any]) -> Any:
    _, bound = unwrap_partial(function)
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in bound]
    except (ValueError, TypeError):  # some built-ins do not tell; Swarm passes it by position
        return function(context)
    by_position = {p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}
    if any(p.name == CONTEXT and p.name not in by_position and p.kind is not p.VAR_KEYWORD for p in parameters):
        return function(**{CONTEXT: context})
    if by_position or any(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters):
        return function(context)
    return function()


async def _await_text(text: Awaitable[Any]) -> str:
    return str(await text)


# Define the results of a function and of a run: Result, with its Files, or ToolFailed; and Response.


@dataclass(frozen=True)
class File:
    """A picture, audio or any other file that a function gives. `media_type` is such as `image/png`."""

    data: bytes = field(repr=False)
    media_type: str
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"the data of a File are bytes, not {type(self.data).__name__}")
        if not isinstance(self.media_type, str) or not isinstance(self.name, str | None):
            raise TypeError("the media type of a File is a text, and so is its name")


class Result(BaseModel):
    """The return value of a function that does more than answer: hand over to `agent`, update the context variables,
    give files, say who looks after the conversation.

    `value` is kept as the text that the model reads: dict, list, pydantic model and dataclass as JSON, anything else as
    `str(value)`. `context_variables` are merged into the session's. `assign` names the person or queue that looks after
    the session from here on.
    """

    model_config = ConfigDict(validate_assignment=True)

    value: str = ""
    agent: Agent | None = None
    context_variables: dict[Any, Any] = {}
    files: list[File] = []
    assign: str | None = None

    def __init__(
        self,
        value: object = "",
        agent: Agent | None = None,
        context_variables: dict[Any, Any] | None = None,
        files: Sequence[File] = (),
        assign: str | None = None,
        **fields: Any,
    ) -> None:
        """Raises NotJsonError if `value` holds something that JSON cannot; `fields` are a subclass's own."""
        super().__init__(
            value=to_text(value),
            agent=agent,
            context_variables={} if context_variables is None else context_variables,
            files=list(files),
            assign=assign,
            **fields,
        )

    @field_validator("value", mode="before")
    @classmethod
    def _convert_value(cls, value: object) -> str:
        return to_text(value)

    @field_validator("assign")
    @classmethod
    def _check_assign(cls, name: str | None) -> str | None:
        return name if name is None else check_assignee(name)


class ToolFailed(Exception):
    """A tool says itself that it failed, in words for the model to read. `files` are what it gave with them."""

    def __init__(self, text: str, files: Sequence[File] = ()) -> None:
        super().__init__(text)
        self.files = list(files)


class Response(BaseModel):
    """The result of a run: its new messages, the agent that is active now, the context variables.

    `output` is the answer as the agent's `output_type` says, if it has one.
    """

    messages: list[dict[str, Any]] = []
    agent: Agent | None = None
    context_variables: dict[str, Any] = {}
    output: Any = None


def to_result(value: object) -> Result:
    """Return a function's return value as a Result.

    An Agent is a handoff to it; a File, or a list of nothing but Files, is given as such. An object with the three
    attributes that a Result had first, such as another library's Result, counts as one. Raises NotJsonError, and
    nothing else, if the value has no text.
    """
    if isinstance(value, Result):
        return value
    if isinstance(value, Agent):
        return Result(value=json.dumps({"assistant": value.name}, ensure_ascii=False), agent=value)
    if isinstance(value, File):
        return Result(files=[value])
    if isinstance(value, list | tuple) and value and all(isinstance(item, File) for item in value):
        return Result(files=value)
    parts = _read_result_parts(value)
    return Result(value) if parts is None else Result(*parts)


def _read_result_parts(value: Any) -> tuple[object, Agent | None, dict[Any, Any]] | None:
    try:
        text, agent, context_variables = value.value, value.agent, value.context_variables
    except Exception:  # it lacks one, or reading it fails: then it is a value like any other
        return None
    if isinstance(context_variables, dict) and (agent is None or isinstance(agent, Agent)):
        return text, agent, context_variables
    return None
