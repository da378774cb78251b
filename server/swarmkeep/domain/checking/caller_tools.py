"""Checking the functions that a caller brings to a run."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from swarmkeep.domain.checking.inputs import check_object
from swarmkeep.domain.checking.refusals import make_invalid_request
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.errors import InvalidRequest, TooLarge
from swarmkeep.domain.run_options import CallerTool

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
# As many as providers take in one request.
_MAX_TOOLS = 128
# They are recorded with the run, and sent with each of its model calls.
_MAX_BYTES = 262_144

MAX_CHOSEN = 1_000
"""Names in a choice between some: the agents' own, those of their servers and the caller's together are fewer."""
_CHOICES = ("auto", "none", "required")


def check_tools(tools: Sequence[Json], pointer: str = "/tools") -> tuple[CallerTool, ...]:
    """The functions, in the form of Chat Completions. Raises InvalidRequest and TooLarge."""
    if len(tools) > _MAX_TOOLS:
        raise TooLarge(f"{pointer} has more than {_MAX_TOOLS} functions")
    checked: dict[str, CallerTool] = {}
    for place, tool in enumerate(tools):
        here = f"{pointer}/{place}"
        found = _check_tool(check_object(tool, here), here)
        if checked.setdefault(found.function.name, found) is not found:
            raise InvalidRequest(f"two functions are called {found.function.name!r}", f"{here}/function/name")
    if len(encode(list(checked.values()))) > _MAX_BYTES:
        raise TooLarge(f"{pointer} would have more than {_MAX_BYTES} bytes as JSON")
    return tuple(checked.values())


def _check_tool(tool: Json, pointer: str) -> CallerTool:
    try:
        found = msgspec.convert(tool, CallerTool)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, CallerTool, pointer) from error
    if not _NAME.fullmatch(found.function.name):
        detail = "a function's name must have 1 to 64 of the characters a-z A-Z 0-9 _ -"
        raise InvalidRequest(detail, f"{pointer}/function/name")
    return found


def check_tool_choice(choice: str | Json, pointer: str = "/tool_choice") -> str | Json:
    """`auto`, `none`, `required`, or an object that names a function. Raises InvalidRequest."""
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise InvalidRequest(f"`tool_choice` must be one of {', '.join(_CHOICES)}, or name a function", pointer)
        return choice
    if not isinstance(choice.get("type"), str):
        raise InvalidRequest("`tool_choice` needs a `type`", pointer)
    allowed = choice.get("allowed_tools")
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if isinstance(tools, list) and len(tools) > MAX_CHOSEN:
        raise InvalidRequest(f"a choice may name at most {MAX_CHOSEN} tools", f"{pointer}/allowed_tools/tools")
    return check_object(choice, pointer)
