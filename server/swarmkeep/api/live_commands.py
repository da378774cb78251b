"""What may be sent over a live connection: a run's creation, cancelling and resuming, with the fields of HTTP."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, structs

from swarmkeep.api.access import Caller
from swarmkeep.api.bodies import Body, parsed
from swarmkeep.api.runs import NewRun, Resume, resumed
from swarmkeep.domain.codec import MalformedJson, decode, encode
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.views import RunView
from swarmkeep.engine.once import Once
from swarmkeep.store.port import SessionKey

MAX_REF = 128
Ref = Annotated[str, Meta(max_length=MAX_REF)] | None
Key = Annotated[str, Meta(pattern=r"^[ -~]{1,255}$")] | None


class RunCreate(NewRun, frozen=True, kw_only=True, tag_field="type", tag="run.create"):
    """`stream` and `background` change nothing here: what happens comes over the connection in any case."""

    ref: Ref = None
    idempotency_key: Key = None


class RunResume(Resume, frozen=True, kw_only=True, tag_field="type", tag="run.resume"):
    run_id: str
    ref: Ref = None
    idempotency_key: Key = None


class RunCancel(Body, frozen=True, kw_only=True, tag_field="type", tag="run.cancel"):
    run_id: str
    ref: Ref = None
    idempotency_key: Key = None


Command = RunCreate | RunCancel | RunResume
COMMANDS = ("run.create", "run.cancel", "run.resume")


class _Named(msgspec.Struct):
    """As much of a frame as can be made out of one that is wrong otherwise."""

    type: Any = None
    ref: Any = None


def command_of(text: bytes) -> Command:
    """Read a frame. Raises InvalidRequest."""
    try:
        named = decode(text, _Named)
    except (MalformedJson, msgspec.ValidationError):
        named = None
    if named is not None and named.type not in COMMANDS:
        raise InvalidRequest(f"a frame's type is one of {', '.join(COMMANDS)}", "/type")
    command: Command = parsed(text, Command, "the frame")
    return command


def ref_of(text: bytes) -> str | None:
    """By what name the sender will know the answer to a frame, which may be a wrong one."""
    try:
        ref = decode(text, _Named).ref
    except (MalformedJson, msgspec.ValidationError):
        return None
    return ref if isinstance(ref, str) and len(ref) <= MAX_REF else None


async def carried_out(caller: Caller, key: SessionKey, command: Command) -> RunView:
    """Do it, and give the run as it is then; returns once it is durable, not once the run has ended.

    Raises what the same request over HTTP would be refused with.
    """
    runs, once = caller.engine.runs, _once(key, command)
    match command:
        case RunCreate():
            feed = await runs.start(key, command.wish(once), once=once)
            return await runs.get(key, feed.run_id)
        case RunResume():
            await resumed(caller, key, command.run_id, command, once)
            return await runs.get(key, command.run_id)
        case RunCancel():
            return await runs.cancel(key, command.run_id, once=once)


def _once(key: SessionKey, command: Command) -> Once | None:
    """The command's idempotency key, with a digest of all that it says, save by what name it is answered."""
    if command.idempotency_key is None:
        return None
    said = encode(structs.replace(command, ref=None))
    return Once(command.idempotency_key, hashlib.sha256(b"live " + key.id.encode() + b"\n" + said).hexdigest())
