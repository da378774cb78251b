"""Words for values that do not have the shape they should have: where they are, and what may stand there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from swarmkeep.domain.errors import InvalidRequest

ID_RULE = "an id must have 1 to 128 of the characters A-Z a-z 0-9 . _ : - and must not be '.' or '..'"

_WRONG_CHOICE = "Invalid enum value"
_QUOTED_FIELD = re.compile(r" field `([^`]*)`")
_PATH_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def make_invalid_request(error: msgspec.ValidationError, type_: Any, pointer: str = "") -> InvalidRequest:
    """The refusal of a value, below `pointer`, that does not have the shape of `type_`."""
    detail, _, place = str(error).partition(" - at `")
    # `$.path`, or of one of an object's keys: `key` in `$.path`.
    is_key = place.startswith("key` in `")
    known, is_deeper, _ = place.partition("$")[2].partition("[...]")
    steps = [name or index for name, index in _PATH_STEP.findall(known)]
    pointer += "".join(f"/{step}" for step in steps)
    where = pointer
    if (named := _QUOTED_FIELD.search(detail)) is not None:
        pointer += f"/{named[1]}"
    if pointer == "/id" and "matching regex" in detail:
        return InvalidRequest(ID_RULE, pointer)
    if detail.startswith("Expected `null`, got"):
        return InvalidRequest(f"'{pointer.rpartition('/')[2]}' is not supported here; leave it out", pointer)
    if is_key:
        detail = f"a key: {detail}"
    elif detail.startswith(_WRONG_CHOICE) and not is_deeper:
        detail = add_choices(detail, type_, steps)
    return InvalidRequest(detail.replace("`", "'"), pointer, place=_name_place(where))


def add_choices(detail: str, type_: Any, steps: Sequence[str] = ()) -> str:
    """What is wrong with a value, and if it is none of several known ones, which these are."""
    choices = _list_choices(inspect.type_info(type_), steps) if detail.startswith(_WRONG_CHOICE) else []
    return f"{detail}; known: {', '.join(choices)}" if choices else detail


def _list_choices(shape: inspect.Type, steps: Sequence[str]) -> list[str]:
    """The values that may stand at a place in a value of this shape, if they are a few known ones."""
    match shape:
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _list_choices(each, steps)]
        case inspect.LiteralType(values=values) if not steps:
            return [str(value) for value in values]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if steps:
            return _list_choices(item, steps[1:])
        case inspect.StructType(fields=fields) if steps:
            found = (field.type for field in fields if field.encode_name == steps[0])
            return [choice for each in found for choice in _list_choices(each, steps[1:])]
        case _:
            return []


def _name_place(pointer: str) -> str:
    """`/input/0/role` as people write it: `input[0].role`."""
    steps = pointer.removeprefix("/").split("/")
    return "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps).removeprefix(".")
