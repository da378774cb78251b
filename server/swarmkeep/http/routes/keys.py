"""Routes for the API keys of the caller's own tenant: list, make, revoke; and who the caller is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, cast

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from swarmkeep.decide.checks import FileLimits
from swarmkeep.http.auth import PERMISSION, PERMISSIONS, Permission, Principal
from swarmkeep.http.bodies import Body, JsonResponse
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.parameters import Cursor, Limit
from swarmkeep.store.keys import ApiKey, Role


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ApiKey]
    next_cursor: str | None


class NewKey(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    name: str = ""
    """Who or what uses it, in up to 200 printable characters; events name it."""
    role: Role = "write"
    """What it may do."""
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    """A time with its zone; by default it never expires."""


class CreatedKey(ApiKey, frozen=True, kw_only=True):
    """A key as in lists, and the key itself."""

    key: str | None
    """The key, only this once: null when the request is repeated."""


class CallerKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key that a request was sent with."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    expires_at: str | None
    """When it expires, or null."""


class FileRules(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a message may have. Sizes are in bytes, decoded."""

    types: list[str]
    """Their media types; `audio/*` is all of audio."""
    max_bytes: int
    """The size of one."""
    max_message_bytes: int
    """Their size together, in a request that is as large as the server reads; as base64 they are a third longer."""
    max_count: int
    """Their number."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, and what they may do."""

    tenant: str
    """The tenant whose sessions they see."""
    key: CallerKey | None
    """Their key; null while the server requires none."""
    role: Role | None
    """Its role; null while the server requires none."""
    permissions: list[Permission]
    """Their rights; others may be added."""
    files: FileRules
    """The server's limits for files in messages."""


# What a request has beside the files of its message.
_BESIDE_FILES_BYTES = 100_000


@get("/me", summary="Get the caller, and what they may do", responses=problem_specs())
async def get_caller(request: Request[Any, Any, Any], principal: NamedDependency[Principal]) -> Caller:
    used = principal.api_key
    key = None if used is None else CallerKey(id=used.id, name=used.name, expires_at=used.expires_at)
    return Caller(
        tenant=principal.tenant,
        key=key,
        role=None if used is None else used.role,
        # The first key is made in the database only.
        permissions=sorted(PERMISSIONS["admin"] - {"keys"} if used is None else PERMISSIONS[used.role]),
        files=_make_file_rules(principal.engine.limits.files, cast(int, request.app.request_max_body_size)),
    )


def _make_file_rules(limits: FileLimits, max_body_bytes: int) -> FileRules:
    in_body = max(max_body_bytes - _BESIDE_FILES_BYTES, 0) // 4 * 3
    return FileRules(
        types=list(limits.blob_types),
        max_bytes=min(limits.max_blob_bytes, in_body),
        max_message_bytes=min(limits.max_message_blob_bytes, in_body),
        max_count=limits.max_message_blobs,
    )


@get(
    "/keys", summary="List the tenant's API keys, oldest first", opt={PERMISSION: ("keys",)}, responses=problem_specs()
)
async def list_keys(principal: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None) -> KeyList:
    """Including keys that were revoked or have expired. The keys themselves are not stored."""
    keys = await principal.service.keyring.keys.list_keys(tenant=principal.tenant, after=cursor, limit=limit + 1)
    following = keys[limit - 1].id if len(keys) > limit else None
    return KeyList(data=keys[:limit], next_cursor=following)


@post(
    "/keys",
    status_code=201,
    summary="Make an API key",
    opt={PERMISSION: ("keys",)},
    responses={
        200: ResponseSpec(CreatedKey, description="The key that was made before", generate_examples=False),
        **problem_specs("idempotency_mismatch", "too_large", "unsupported_media_type", "overloaded"),
    },
)
async def create_key(data: JSONBody[NewKey], principal: NamedDependency[Principal]) -> Response[CreatedKey]:
    """A key of the caller's tenant. If the `Idempotency-Key` was used before, the answer is 200 without the key itself,
    which is not stored: if you did not receive it, revoke it and make another one.
    """
    keys, request = principal.service.keyring.keys, await principal.read_idempotency()
    wanted: dict[str, Any] = {**msgspec.structs.asdict(data), "by": principal.name}
    made, secret = await (
        keys.create(principal.tenant, **wanted)
        if request is None
        else keys.create_once(principal.tenant, request.key, **wanted)
    )
    found = CreatedKey(**msgspec.structs.asdict(made), key=secret)
    return JsonResponse(found, status_code=201 if secret else 200)


@post(
    "/keys/{key_id:str}/revoke",
    status_code=200,
    summary="Revoke an API key, for good",
    opt={PERMISSION: ("keys",)},
    responses=problem_specs("key_not_found", "overloaded"),
)
async def revoke_key(key_id: FromPath[str], principal: NamedDependency[Principal]) -> ApiKey:
    """Every server refuses it within two seconds. A key that is revoked already stays as it is."""
    return await principal.service.keyring.keys.revoke(key_id, tenant=principal.tenant, by=principal.name)


ROUTES = [get_caller, list_keys, create_key, revoke_key]
