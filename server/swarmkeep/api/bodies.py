"""JSON bodies in and out. Lone surrogates pass, as everywhere else; repeated keys do not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.serialization import default_serializer
from litestar.types import Serializer

from swarmkeep.api.aside import run_aside
from swarmkeep.api.body_limits import UNCOUNTED_BYTES
from swarmkeep.api.http_errors import RequestTimeout, UnsupportedMediaType
from swarmkeep.api.limits import ServerLimits
from swarmkeep.domain.checking.refusals import make_invalid_request
from swarmkeep.domain.codec import MalformedJson, decode, encode, has_more_values
from swarmkeep.domain.errors import InvalidRequest, TooLarge

T = TypeVar("T")

# A file may take longer than a body: a second more for each of so many bytes.
SLOWEST_BYTES_PER_SECOND = 100_000


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body. One that may be absent counts as `{}` then."""

    may_be_absent: ClassVar[bool] = False


class JsonRequest(Request[Any, Any, State]):
    """Decodes a body straight into the type that the handler asks for."""

    async def body(self) -> bytes:
        if isinstance(self._body, bytes):
            return self._body or b"{}"
        seconds, parts = self._body_seconds, []
        with self.app.state.body_limits.track_body() as count_bytes, _limit_time(seconds):
            async with asyncio.timeout(seconds), aclosing(self.stream()) as pieces:
                async for piece in pieces:
                    count_bytes(len(piece))
                    parts.append(piece)
        self._body = self._connection_state.body = b"".join(parts)
        # The framework asks no further where there is nothing; here an empty body has a meaning.
        return self._body or b"{}"

    async def stream_file(self) -> AsyncGenerator[bytes]:
        """The body piece by piece, for files that are too large for memory. The more has come, the longer it may take.

        Raises RequestTimeout, InvalidRequest, Overloaded.
        """
        seconds = self._body_seconds
        with self.app.state.body_limits.track_file(), _limit_time(seconds):
            now = asyncio.get_running_loop().time
            began, size = now(), 0
            async with aclosing(self.stream()) as pieces:
                while True:
                    async with asyncio.timeout_at(began + seconds + size / SLOWEST_BYTES_PER_SECOND):
                        piece = await anext(pieces, None)
                    if piece is None:
                        return
                    size += len(piece)
                    yield piece

    async def json(self) -> Any:
        self._refuse_other_types()
        body = await self.body()
        wanted = self._body_type
        if self._body == b"" and not wanted.may_be_absent:
            raise InvalidRequest("the body must be a JSON object")
        max_values = self.app.state.body_limits.max_values
        return await run_aside(len(body) > UNCOUNTED_BYTES, parse_json, body, wanted, "the body", max_values)

    @property
    def _body_seconds(self) -> float:
        limits: ServerLimits = self.app.state.service.limits
        return limits.body_seconds

    @property
    def _body_type(self) -> type[Body]:
        field = self.route_handler.parsed_data_field
        assert field is not None
        wanted: type[Body] = field.annotation
        return wanted

    def _refuse_other_types(self) -> None:
        for name, value in self.scope["headers"]:
            if name == b"content-type" and not _is_json(value.decode("latin-1")):
                raise UnsupportedMediaType("the body must be JSON: send the header `Content-Type: application/json`")


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {seconds:g} seconds") from None
    except InternalServerException:
        # The client left in the middle of its request; nobody reads the answer.
        raise InvalidRequest("the body ended early") from None


def parse_json(text: bytes, type_: Any, name: str, max_values: int) -> Any:
    """Decode a JSON text and check it against `type_`; `name` is what a refusal calls it.

    Raises InvalidRequest and TooLarge.
    """
    refuse_too_many_values(text, max_values)
    try:
        _refuse_repeated_keys(text)
        return decode(text, type_)
    except msgspec.ValidationError as error:
        raise make_invalid_request(error, type_) from error
    except MalformedJson as error:
        raise InvalidRequest(f"{name} is not valid JSON: {error}") from error


def refuse_too_many_values(body: bytes, max_values: int) -> None:
    """Refuse a JSON text with more values than that, before it is read: many tiny ones cost far more than their bytes.
    Raises TooLarge.
    """
    if has_more_values(body, max_values):
        raise TooLarge(f"the body holds more than {max_values} JSON values (SWARMKEEP_MAX_BODY_VALUES)")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _refuse_repeated_keys(body: bytes) -> None:
    # Parsers differ on which of two equal keys counts, so what one has checked another may read as something else.
    try:
        _REPEATED_KEY_DECODER.decode(body.decode())
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise MalformedJson(str(error)) from None


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {repeated!r} is given twice")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_REPEATED_KEY_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_repeated_names, parse_constant=_refuse_constant)


class JsonResponse(Response[T]):
    """An answer in JSON, encoded once."""

    def render(self, content: Any, media_type: str, enc_hook: Serializer = default_serializer) -> bytes:
        return content if isinstance(content, bytes) else encode(content)
