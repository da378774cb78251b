"""Commands over a WebSocket: create, cancel and resume a run, with the fields of HTTP."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, structs

from swarmkeep.api.aside import run_aside
from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import Body, parse_json
from swarmkeep.api.body_limits import UNCOUNTED_BYTES
from swarmkeep.api.run_bodies import NewRun, Resume
from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.views import RunView
from swarmkeep.engine.idempotency import IdempotentRequest
from swarmkeep.store.ports import SessionKey

MAX_REF_CHARACTERS = 128
Ref = Annotated[str, Meta(max_length=MAX_REF_CHARACTERS)] | None
IdempotencyKey = Annotated[str, Meta(pattern=r"^[ -~]{1,255}$")] | None


class RunCreate(NewRun, frozen=True, kw_only=True, tag_field="type", tag="run.create"):
    """`stream` and `background` change nothing here: what happens comes over the connection in any case."""

    ref: Ref = None
    idempotency_key: IdempotencyKey = None


class RunResume(Resume, frozen=True, kw_only=True, tag_field="type", tag="run.resume"):
    run_id: str
    ref: Ref = None
    idempotency_key: IdempotencyKey = None


class RunCancel(Body, frozen=True, kw_only=True, tag_field="type", tag="run.cancel"):
    run_id: str
    ref: Ref = None
    idempotency_key: IdempotencyKey = None


SocketCommand = RunCreate | RunCancel | RunResume
COMMAND_TYPES = ("run.create", "run.cancel", "run.resume")


class _FrameHeader(msgspec.Struct):
    """As much of a frame as can be made out of one that is wrong otherwise."""

    type: Any = None
    ref: Any = None


async def read_command(text: bytes, max_values: int) -> SocketCommand:
    """Read a frame, a large one in a thread: nobody else waits for it. Raises InvalidRequest and TooLarge."""
    return await run_aside(len(text) > UNCOUNTED_BYTES, _parse_command, text, max_values)


def _parse_command(text: bytes, max_values: int) -> SocketCommand:
    try:
        named = decode(text, _FrameHeader)
    except (MalformedJson, msgspec.ValidationError):
        named = None
    if named is not None and named.type not in COMMAND_TYPES:
        raise InvalidRequest(f"a frame's type must be one of {', '.join(COMMAND_TYPES)}", "/type")
    command: SocketCommand = parse_json(text, SocketCommand, "the frame", max_values)
    return command


def read_ref(text: bytes) -> str | None:
    """By what name the sender will know the answer to a frame, which may be a wrong one."""
    try:
        ref = decode(text, _FrameHeader).ref
    except (MalformedJson, msgspec.ValidationError):
        return None
    return ref if isinstance(ref, str) and len(ref) <= MAX_REF_CHARACTERS else None


async def execute_command(principal: Principal, key: SessionKey, command: SocketCommand) -> RunView:
    """Do it, and give the run as it is then; returns once it is durable, not once the run has ended.

    Raises what the same request over HTTP would be refused with.
    """
    runs, idempotency = principal.engine.runs, _read_idempotency(key, command)
    match command:
        case RunCreate():
            principal.require("run")
            start = await command.to_command(idempotency, principal.engine.limits.max_messages, by=principal.name)
            position = await runs.start(key, start, idempotency=idempotency)
            # As it began, which is still at hand: another look at the log might come after the end of a quick run.
            return await principal.reader.get_run(key, position.run_id, at=position.seq)
        case RunResume():
            await command.submit(principal, key, command.run_id, idempotency)
            return await principal.reader.get_run(key, command.run_id)
        case RunCancel():
            principal.require("run")
            return await runs.cancel(key, command.run_id, idempotency=idempotency)


def _read_idempotency(key: SessionKey, command: SocketCommand) -> IdempotentRequest | None:
    """The command's idempotency key, with a digest of all that it says, save by what name it is answered."""
    if command.idempotency_key is None:
        return None
    said = encode(structs.replace(command, ref=None))
    return IdempotentRequest(
        command.idempotency_key, hashlib.sha256(b"live " + key.id.encode() + b"\n" + said).hexdigest()
    )
