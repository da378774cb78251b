"""Refusals of messages, told by what of the request each message was made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from swarmkeep.api.openai.errors import Refused, to_param
from swarmkeep.api.openai.items.input_items import Input
from swarmkeep.domain.errors import InvalidRequest

_MESSAGE = re.compile(r"(?:input|messages)(?:\[(\d+)\])?(.*)", re.DOTALL)
# Of messages that are made of several items: these have no such fields.
_OF_MESSAGES_ONLY = (".tool_calls", ".tool_call_id")


@contextmanager
def name_items(said: Input) -> Iterator[None]:
    """Have refusals of the messages name what the request has in their place."""
    try:
        yield
    except Refused as error:
        raise Refused(str(error), _rename(error.param, said), code=error.error_code, status=error.status) from None
    except InvalidRequest as error:
        raise Refused(str(error), _rename(to_param(error.errors[0]["pointer"]), said)) from None


def _rename(param: str | None, said: Input) -> str | None:
    found = _MESSAGE.fullmatch(param or "")
    if found is None or found[2] == ".approval_request_id":
        # A decision is no message, and named by its item already.
        return param
    place = int(found[1]) if found[1] else -1
    at = f"[{said.places[place]}]" if 0 <= place < len(said.places) else ""
    rest = "" if found[2].startswith(_OF_MESSAGES_ONLY) and said.param != "messages" else found[2]
    return f"{said.param}{at}{rest}"
