"""The `param` of refusals: a message is named by the item of the request that it was made of."""

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
def map_error_params(given: Input) -> Iterator[None]:
    """While the messages of an input are checked: have refusals name the items that the messages were made of."""
    try:
        yield
    except Refused as error:
        raise Refused(str(error), _rename(error.param, given), code=error.error_code, status=error.status) from None
    except InvalidRequest as error:
        raise Refused(str(error), _rename(to_param(error.errors[0]["pointer"]), given)) from None


def _rename(param: str | None, given: Input) -> str | None:
    found = _MESSAGE.fullmatch(param or "")
    if found is None or found[2] == ".approval_request_id":
        # A decision is no message, and named by its item already.
        return param
    place = int(found[1]) if found[1] else -1
    at = f"[{given.places[place]}]" if 0 <= place < len(given.places) else ""
    rest = "" if found[2].startswith(_OF_MESSAGES_ONLY) and given.param != "messages" else found[2]
    return f"{given.param}{at}{rest}"
