"""Routes for the audit log: what was done to whole sessions, and whether it is complete."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from litestar import Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from swarmkeep.events.codec import parse_timestamp
from swarmkeep.events.views import SessionView
from swarmkeep.history.checkpoints import AuditEntry, verify_audit_log, view_entry
from swarmkeep.history.compare import Comparison, StateDiff, compare_sessions, diff_session
from swarmkeep.history.divergences import Replayed, check_kinds
from swarmkeep.history.erasure import Erasure, erase_person
from swarmkeep.history.proofs import Checkpoint, Leaf, Proof, view_leaf
from swarmkeep.history.redact import Redaction, redact
from swarmkeep.history.replay import replay_session
from swarmkeep.history.retention import DuePage, list_due
from swarmkeep.history.verify import Verification, follow_verification, parse_head, verify
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.parameters import MAX_SEQ, AfterSeq, Cursor, Limit, NotedHead, parse_cursor, read_time, take_page
from swarmkeep.http.routes.sessions import ETAG, make_session_response
from swarmkeep.runs.sessions import MAX_REASON, hold_session, release_session
from swarmkeep.store.records import utc_now

# Routes that compare: replay, diff and compare.


class Replay(Body, frozen=True, kw_only=True):
    """Everything is optional."""

    may_be_absent: ClassVar[bool] = True
    ignore: tuple[str, ...] = ()
    """Kinds of differences to leave out."""


@post(
    "/sessions/{session_id:str}/replay",
    status_code=200,
    operation_id="replay_session",
    summary="Compare today's agents with what is recorded",
    opt={PERMISSION: ("read",)},
    responses=problem_specs("session_not_found", "too_large", "unsupported_media_type", "overloaded"),
)
async def replay(session_id: FromPath[str], data: JSONBody[Replay], principal: NamedDependency[Principal]) -> Replayed:
    """The recorded completions and results stand in for the model and the tools: neither is called, and nothing is
    written. Functions that make instructions, and guardrails except those that ask outside, are called; they should
    have no effects. Each difference is reported once, where it first appears. A server process makes one replay of a
    tenant at a time, for a minute at most."""
    ignore, key = check_kinds(data.ignore), principal.session_key(session_id)
    service = principal.service
    async with service.replays.enter(principal.tenant):
        return await replay_session(
            principal.store,
            principal.engine.registry,
            key,
            ignore=ignore,
            seconds=service.limits.replay_seconds,
        )


EarlierSeq = Annotated[
    int, QueryParameter(ge=0, le=MAX_SEQ, description="The earlier seq; 0 is before the first event.")
]
LaterSeq = Annotated[int, QueryParameter(ge=1, le=MAX_SEQ, description="The later seq.")]


@get(
    "/sessions/{session_id:str}/diff",
    operation_id="diff_session",
    summary="Get what changed between two events",
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def diff(
    session_id: FromPath[str], principal: NamedDependency[Principal], before: EarlierSeq, after: LaterSeq
) -> StateDiff:
    return await diff_session(principal.store, principal.session_key(session_id), before, after)


@get(
    "/sessions/{session_id:str}/compare",
    operation_id="compare_sessions",
    summary="Compare a session with another one",
    responses=problem_specs("session_not_found"),
)
async def compare(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    other: Annotated[str, QueryParameter(name="with", description="The other session's id.")],
) -> Comparison:
    """The sessions part after `shared_seq`: up to there, their events have the same hashes."""
    return await compare_sessions(principal.store, principal.session_key(session_id), principal.session_key(other))


ROUTES = [replay, diff, compare]


# Route that redacts a session.


class RedactionRequest(Body, frozen=True, kw_only=True):
    """The events whose content is removed."""

    seqs: list[Annotated[int, Meta(ge=1, le=MAX_SEQ)]]
    """The events, up to 1,000."""
    reason: str
    """Why, in up to 1,000 characters, kept in the session."""
    include_forks: bool = False
    """`true`: also in the other sessions that hold the same events, except those that are busy."""
    dry_run: bool = False
    """`true`: only show what would be removed."""


@post(
    "/sessions/{session_id:str}/redact",
    status_code=200,
    summary="Remove the payloads of events for good",
    responses=problem_specs(
        "session_not_found",
        "event_not_found",
        "session_busy",
        "on_hold",
        "idempotency_mismatch",
        "too_large",
        "unsupported_media_type",
        "overloaded",
    ),
)
async def redact_session(
    session_id: FromPath[str], data: JSONBody[RedactionRequest], principal: NamedDependency[Principal]
) -> Redaction:
    """The chain still verifies. Repeating the request is harmless. While a run waits, what it goes on from stays: its
    options, and its turn from the calls that it waits for on. With `dry_run` nothing is removed: `seqs` and
    `forks` say what would be, and where else the same events are, and `seq` is null."""
    return await redact(
        principal.store,
        principal.session_key(session_id),
        data.seqs,
        data.reason,
        by=principal.name,
        include_forks=data.include_forks,
        dry_run=data.dry_run,
        idempotency=await principal.read_idempotency(),
        publish=principal.engine.publish,
    )


# Routes that keep a session from being redacted or deleted.


class HoldRequest(Body, frozen=True, kw_only=True):
    """A hold."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON)]
    """Why, for the log."""


@put(
    "/sessions/{session_id:str}/hold",
    operation_id="hold_session",
    summary="Put a session on hold",
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "too_large", "unsupported_media_type", "overloaded"),
)
async def hold(
    session_id: FromPath[str], data: JSONBody[HoldRequest], principal: NamedDependency[Principal]
) -> Response[SessionView]:
    """Until the hold is lifted, nothing of the session, or of those in which its agents asked others, is redacted or
    deleted: such a request is 409 `on_hold`. The session can go on. Repeating the request is harmless."""
    key, publish = principal.session_key(session_id), principal.engine.publish
    held = await hold_session(principal.store, key, data.reason, by=principal.name, publish=publish)
    return make_session_response(held)


@delete(
    "/sessions/{session_id:str}/hold",
    status_code=200,
    operation_id="release_session",
    summary="Lift a session's hold",
    response_headers=[ETAG],
    responses=problem_specs("session_not_found", "overloaded"),
)
async def release(session_id: FromPath[str], principal: NamedDependency[Principal]) -> Response[SessionView]:
    """Without a hold nothing changes."""
    key, publish = principal.session_key(session_id), principal.engine.publish
    return make_session_response(await release_session(principal.store, key, by=principal.name, publish=publish))


class ErasureRequest(Body, frozen=True, kw_only=True):
    """A person to be erased."""

    person: str | int | float | bool
    """The person, as the sessions' metadata say."""
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON)]
    """Why, in up to 1,000 characters, kept in the sessions and in the audit log."""
    dry_run: bool = False
    """`true`: only show which sessions there are."""


@post(
    "/people/erase",
    status_code=200,
    operation_id="erase_person",
    summary="Erase a person in every copy of the database",
    responses=problem_specs(
        "person_not_found", "session_busy", "on_hold", "too_large", "unsupported_media_type", "overloaded"
    ),
)
async def erase(data: JSONBody[ErasureRequest], principal: NamedDependency[Principal]) -> Erasure:
    """All events of the person's sessions are redacted, and the key is erased that they are encrypted by wherever else
    they are: in backups, replicas and archives. The chains still verify; nothing can be added to these sessions any
    more. While one of them is busy or on hold, nothing is erased. Repeating the request is harmless."""
    return await erase_person(
        principal.store,
        principal.tenant,
        data.person,
        data.reason,
        by=principal.name,
        dry_run=data.dry_run,
        publish=principal.engine.publish,
    )


REDACT_ROUTES = [redact_session, hold, release, erase]


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AuditEntry]
    next_cursor: str | None


@get(
    "/audit", summary="List what was done to sessions and keys", opt={PERMISSION: ("audit",)}, responses=problem_specs()
)
async def list_audit(
    principal: NamedDependency[Principal], after: AfterSeq = None, limit: Limit = 50, cursor: Cursor = None
) -> AuditList:
    """Actions on whole sessions and on keys, redactions, and decisions on approvals, oldest first. The log of the
    tenant `default` also has the starts and stops of servers; one that is killed, or cannot write, leaves no entry.
    What `data` has, by type:

    - `session.damaged`, `session.mended`: `session_id`; of one that was found damaged also `seq`, the first event that
      is not as recorded, and `code`, that of `verify`. Mended: it verifies again.
    - `session.deleted`, `session.imported`: `session_id`, its last `seq` and `hash`, and the `reason`, or null; for an
      import also `source`, the kind of file, and `digest`, its SHA-256.
    - `session.redacted`: `session_id`, the `seqs` that were emptied, and the `seq` and `hash` of the event, which has
      the reason.
    - `session.archived`: `session_id`, its `seq` and `hash`, and the `object` that has its events now.
    - `session.held`, `session.released`: `session_id`, and the `seq` and `hash` of the event, which has the reason.
    - `approval.decided`: `session_id`, `run_id`, the `decision`, and the `seq` and `hash` of the event, which has the
      reason.
    - `key.created`, `key.revoked`: `key_id`, `name`, `role` and `expires_at`.
    - `webhook.created`, `webhook.updated`, `webhook.rotated`, `webhook.deleted`, `webhook.disabled` (the receiver
      answered 410): `webhook_id`, its `state`, and its `url` without the path; `webhook.resent` also the `cursor`.
    - `agent.created`, `agent.updated`, `agent.deleted`, of agents that clients make: `agent_id` and `version`.
    - `server.started`, `server.stopped`: `server`, an id of this one start, `version`, and the number of its `worker`
      if there are several; a start also has `address`, `api_keys` (it needed keys then) and `settings`: those that
      decide who may do what, without secrets: `agents`, `offline`, `cors_origins`, `allowed_hosts`,
      `forwarded_allow_ips`, `separate_approvers`, `rate_limit_per_minute`, `approval_seconds`, `run_seconds`,
      `tool_seconds`, `migrate`, every `max_…`, and the existence of a `metrics_token`.
    """
    start = max(after or 0, parse_cursor(cursor) or 0)
    entries = await principal.store.read_audit_log(principal.tenant, after=start, limit=limit + 1)
    page = take_page(map(view_entry, entries[:limit]), principal.reader.page_bytes)
    return AuditList(data=page, next_cursor=str(page[-1].seq) if len(page) < len(entries) else None)


@get(
    "/audit/verify", summary="Check the audit log's hash chain", opt={PERMISSION: ("audit",)}, responses=problem_specs()
)
async def verify_audit(principal: NamedDependency[Principal], head: NotedHead = None) -> Verification:
    """The answer is as for a session."""
    noted = None if head is None else parse_head(head)
    return await verify_audit_log(principal.store, principal.tenant, noted=noted)


# Routes for the log of heads: checkpoints, and what is proven from them.


class LeafList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Leaf]
    next_cursor: str | None


CheckpointNumber = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_SEQ, description="A checkpoint's number; by default the newest.")
]


@get(
    "/checkpoint",
    summary="Get a signed checkpoint of all sessions",
    opt={PERMISSION: ("audit",)},
    responses=problem_specs("checkpoint_not_found", "log_damaged"),
)
async def get_checkpoint(
    principal: NamedDependency[Principal],
    number: CheckpointNumber = None,
    since: Annotated[
        int | None,
        QueryParameter(ge=0, le=MAX_SEQ, description="With the proof that it goes on from so many first leaves."),
    ] = None,
) -> Checkpoint:
    """Without a number it is of all that is recorded: a new one, if there is anything new. Keep its `note` elsewhere:
    it shows later what was changed, left out or rolled back since. Requests that come at once share one."""
    log = principal.service.head_log
    found = await (log.make(principal.tenant) if number is None else log.read(principal.tenant, number))
    return found if since is None else await log.add_consistency(principal.tenant, found, since)


@get(
    "/checkpoint/leaves",
    summary="List the leaves that checkpoints are of",
    opt={PERMISSION: ("audit",)},
    responses=problem_specs(),
)
async def list_leaves(
    principal: NamedDependency[Principal],
    after: Annotated[int, QueryParameter(ge=-1, le=MAX_SEQ, description="Only leaves with a greater index.")] = -1,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> LeafList:
    """In the order of the log: a Merkle tree over them (RFC 6962) has the root that a checkpoint of so many names."""
    start = max(after, -1 if (given := parse_cursor(cursor)) is None else given)
    found = await principal.store.read_leaves(principal.tenant, after=start, limit=limit + 1)
    page = [view_leaf(leaf) for leaf in found[:limit]]
    return LeafList(data=page, next_cursor=str(page[-1].index) if len(found) > limit else None)


@get(
    "/sessions/{session_id:str}/proof",
    operation_id="prove_session",
    summary="Prove that a session is in a checkpoint",
    responses=problem_specs("session_not_found", "checkpoint_not_found", "not_in_checkpoint", "log_damaged"),
)
async def prove(
    session_id: FromPath[str], principal: NamedDependency[Principal], checkpoint: CheckpointNumber = None
) -> Proof:
    """That the session's event `seq` with this hash is in the checkpoint, and that the newest checkpoint goes on from
    that one. It shows nothing of other sessions. Make a checkpoint first, if the session is newer."""
    return await principal.service.head_log.prove(principal.session_key(session_id), checkpoint)


AUDIT_ROUTES = [list_audit, verify_audit, get_checkpoint, list_leaves]


# Route that tells which sessions are going.


@get(
    "/retention",
    operation_id="list_due",
    summary="List the sessions that go by the server's retention",
    responses=problem_specs(),
)
async def list_due_sessions(
    principal: NamedDependency[Principal],
    before: Annotated[
        str | None, QueryParameter(description="Those that go before this time; by default those that are due.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DuePage:
    """Rule by rule, those that were used last first. A page may be short while there are more. Without a retention
    nothing goes."""
    text = read_time(before, "before")
    at = None if text is None else parse_timestamp(text)
    service = principal.service
    return await list_due(
        principal.store, principal.tenant, service.retention, before=at or utc_now(), limit=limit, cursor=cursor
    )


RETENTION_ROUTES = [list_due_sessions]


# Route that verifies a session.


@get(
    "/sessions/{session_id:str}/verify",
    summary="Check a session's hash chain, and everything stored with it",
    responses=problem_specs("session_not_found"),
)
async def verify_session(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    head: NotedHead = None,
) -> Verification:
    """This finds any change, insertion, removal or reordering; with an earlier head, also a log that was cut off."""
    noted = None if head is None else parse_head(head)
    key = principal.session_key(session_id)
    found = await verify(principal.store, key, noted=noted)
    await follow_verification(principal.store, key, found)
    return found


VERIFY_ROUTES = [verify_session, prove]
