"""Checks query parameters and headers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from litestar import Request
from litestar.handlers import BaseRouteHandler
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.types import Scope
from litestar.typing import FieldDefinition

from swarmkeep.decide.checks import add_choices
from swarmkeep.events.codec import encode, to_timestamp
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.store.records import BAD_CURSOR

# As far as every JSON reader counts.
MAX_SEQ = 2**53 - 1
MAX_METADATA_FILTERS = 20

Limit = Annotated[int, QueryParameter(ge=1, le=200, description="How many items a page holds.")]
Cursor = Annotated[str | None, QueryParameter(description="`next_cursor` of the page before.")]
AtSeq = Annotated[int | None, QueryParameter(ge=1, le=MAX_SEQ, description="As of this seq, rather than now.")]
AfterSeq = Annotated[int | None, QueryParameter(ge=0, le=MAX_SEQ, description="Only events with a greater seq.")]
Seq = Annotated[int, PathParameter(ge=1, le=MAX_SEQ, description="An event's number in its session.")]
LastEventId = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", description="The id of the last frame seen; the stream continues after it."),
]
IfMatch = Annotated[
    str | None,
    HeaderParameter(name="If-Match", description='The ETag that the session must still have, as in `"7"`.'),
]

NotedHead = Annotated[
    str | None,
    QueryParameter(description="A head recorded earlier, as SEQ:HASH, that the log must still contain."),
]

# A handler's `opt` that admits parameters of any name that begins so.
OPEN_QUERY_PREFIX = "open_query_prefix"
_JSON = "application/json"
_SINGLE_HEADERS = {b"idempotency-key": "Idempotency-Key", b"if-match": "If-Match", b"last-event-id": "Last-Event-ID"}


def choose_form(request: Request[Any, Any, Any], *forms: str) -> str:
    """Of these media types the one that `Accept` gives most weight, the first of several; JSON for anything else."""
    best, most = _JSON, 0.0
    for part in request.headers.get("accept", "").lower().split(","):
        kind, *parameters = (text.strip() for text in part.split(";"))
        weight = _read_weight(parameters)
        if weight > most and (kind in forms or kind == _JSON):
            best, most = kind, weight
    return best


def _read_weight(parameters: Iterable[str]) -> float:
    given = next((text.removeprefix("q=") for text in parameters if text.startswith("q=")), "1")
    try:
        return float(given)
    except ValueError:
        return 1.0


async def refuse_unread_parameters(request: Request[Any, Any, Any]) -> None:
    """Refuse query parameters that the route does not know, and what is given twice where one is read."""
    given = [name for name, _ in request.scope["headers"]]
    for name, shown in _SINGLE_HEADERS.items():
        if given.count(name) > 1:
            raise InvalidRequest(f"the header {shown!r} is given twice", f"/header/{shown}")
    if request.scope["query_string"]:
        handler = request.route_handler
        read_query(request.scope, _known_names(handler), handler.opt.get(OPEN_QUERY_PREFIX))


def read_query(scope: Scope, known: Mapping[str, bool], open_prefix: str | None = None) -> list[tuple[str, str]]:
    """The query parameters. `known` says of each whether it may be repeated.

    Raises InvalidRequest for one that is given twice, and for one that is not known and does not begin with the prefix.
    """
    pairs = _parse_query(scope)
    seen: set[str] = set()
    for name, _ in pairs:
        if name not in known and not (open_prefix and name.startswith(open_prefix)):
            names = ", ".join(sorted(known)) or "none"
            raise InvalidRequest(f"unknown query parameter {name!r}; known: {names}", f"/query/{name}")
        if name in seen and not known.get(name):
            raise InvalidRequest(f"the query parameter {name!r} is given twice", f"/query/{name}")
        seen.add(name)
    return pairs


def _parse_query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def describe_parameter(handler: BaseRouteHandler, name: str, detail: str) -> tuple[str, str]:
    """Describe a parameter of a handler: the callers' name for it, and its error, with its possible values."""
    field = _list_parameters(handler).get(name)
    if field is None or not isinstance(field.kwarg_definition, QueryParameter):
        return name, detail
    return field.kwarg_definition.name or name, add_choices(detail, field.annotation)


@lru_cache(256)
def _known_names(handler: BaseRouteHandler) -> dict[str, bool]:
    """The query parameters of a route, and whether each may be repeated."""
    return {
        field.kwarg_definition.name or name: any(part.is_non_string_collection for part in (field, *field.inner_types))
        for name, field in _list_parameters(handler).items()
        if isinstance(field.kwarg_definition, QueryParameter)
    }


def _list_parameters(handler: BaseRouteHandler) -> dict[str, FieldDefinition]:
    """The parameters of a route and of what it depends on."""
    own = handler.parsed_fn_signature.parameters
    found = dict(own)
    for name, provide in handler.resolve_dependencies().items():
        if name in own:
            found |= provide.parsed_fn_signature.parameters
    return found


def read_metadata_filter(request: Request[Any, Any, Any]) -> Mapping[str, str]:
    """The `metadata.KEY=VALUE` parameters."""
    wanted = [pair for pair in _parse_query(request.scope) if pair[0].startswith("metadata.")]
    # Each is a search of its own in the index, and a database takes ever longer to plan many.
    if len(wanted) > MAX_METADATA_FILTERS:
        raise InvalidRequest(
            f"at most {MAX_METADATA_FILTERS} `metadata.` filters at once", f"/query/{wanted[MAX_METADATA_FILTERS][0]}"
        )
    return {name.removeprefix("metadata."): value for name, value in wanted}


def wants_listed_context(request: Request[Any, Any, Any]) -> bool:
    """Tell if a list of sessions must have their context variables for a client that cannot ask for them.

    The client of 0.1 takes no other list.
    """
    return str(request.headers.get("User-Agent", "")).startswith("swarmkeep-client/0.1.")


def read_time(text: str | None, name: str) -> str | None:
    """A time in the form that sessions have, so that they compare as texts."""
    if text is None:
        return None
    try:
        # A `+` that was not encoded comes as a space.
        at = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text)
        return to_timestamp(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise InvalidRequest("write a time as in 2026-01-31T12:00:00Z", f"/query/{name}") from None


def parse_day(text: str | None, pointer: str) -> date | None:
    """Parse a day that is written as `YYYY-MM-DD`."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if (day := date.fromisoformat(text)).isoformat() == text:
            return day
    raise InvalidRequest("write a day as YYYY-MM-DD", pointer)


def parse_cursor(cursor: str | None) -> int | None:
    """A cursor that is the seq of the last item shown."""
    return None if cursor is None else parse_seq(cursor, "/query/cursor", BAD_CURSOR)


def parse_last_event_id(text: str | None) -> int | None:
    # An empty one is none: https://html.spec.whatwg.org/multipage/server-sent-events.html#the-last-event-id-header
    return parse_seq(text, "/header/Last-Event-ID", "must be the seq of an event") if text else None


def parse_if_match(if_match: str | None) -> int | None:
    """Parse the position that `If-Match` asks for; any state does for `*`."""
    if if_match is None or if_match.strip() == "*":
        return None
    # Proxies that compress an answer make its ETag a weak one; it is the same seq.
    text = if_match.strip().removeprefix("W/")
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return parse_seq(text[1:-1] if quoted else "", "/header/If-Match", 'write the seq as an ETag, as in "7"')


def parse_seq(text: str, pointer: str, detail: str) -> int:
    """The text as a number. Raises InvalidRequest with this detail if it is not a seq."""
    # More digits than a seq can have would cost time to read.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not 0 <= number <= MAX_SEQ:
        raise InvalidRequest(detail, pointer)
    return number


def takes_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell if a request's headers say that its answer may be gzipped."""
    for name, value in headers:
        if name.lower() != b"accept-encoding":
            continue
        for choice in value.decode("latin-1").lower().split(","):
            coding, *parameters = (text.strip() for text in choice.split(";"))
            if coding in ("gzip", "*"):
                return _read_weight(parameters) > 0
    return False


# Pages of lists that are put together in memory.

T = TypeVar("T")


def take_page(items: Iterable[T], max_bytes: int) -> list[T]:
    """The first items, up to the one that fills so many bytes of JSON."""
    page: list[T] = []
    size = 0
    for item in items:
        page.append(item)
        size += len(encode(item))
        if size >= max_bytes:
            break
    return page
