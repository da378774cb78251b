"""Errors of the agent package: each carries its data, and a sentence that says what to do."""

from __future__ import annotations


class NotJsonError(ValueError):
    """A value holds something that JSON cannot.

    `path` leads to it from the value's label, as in `context_variables.cart[2].when`; `type_name` is its type.
    """

    def __init__(self, path: str, type_name: str, problem: str = "") -> None:
        super().__init__(f"{path} {problem or f'is of type {type_name}, which JSON cannot hold'}")
        self.path = path
        self.type_name = type_name


class InvalidFunctionError(ValueError):
    """Something in an agent's functions cannot be a tool. `agent` is None outside an agent."""

    def __init__(self, function: str, reason: str, *, agent: str | None = None) -> None:
        super().__init__(
            f"{function} cannot be a tool: {reason}"
            if agent is None
            else f"agent {agent!r} cannot use {function} as a tool: {reason}"
        )
        self.function = function
        self.reason = reason
        self.agent = agent


class FunctionSchemaError(ValueError):
    """A parameter's type hint has no JSON Schema, so a model could not be told what to pass."""

    def __init__(self, function: str, parameter: str, reason: str) -> None:
        super().__init__(f"parameter {parameter!r} of {function}: {reason}")
        self.function = function
        self.parameter = parameter
        self.reason = reason


class ToolArgumentsError(ValueError):
    """A model called a function with arguments that it does not take.

    The sentence is written for the model to read. `problems` has one entry for each thing wrong.
    """

    def __init__(self, function: str, problems: list[str]) -> None:
        super().__init__(f"{function} was not called, its arguments are wrong: {'; '.join(problems)}")
        self.function = function
        self.problems = problems
