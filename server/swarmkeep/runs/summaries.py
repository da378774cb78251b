"""When a history is made shorter for the model, and the summary that its model is asked for."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial

from swarmkeep.agent import Agent
from swarmkeep.events.facts import (
    CompactionFailed,
    CompactionReason,
    CompactionStarted,
    CompactionSummarised,
    RunError,
    SessionEvent,
)
from swarmkeep.events.messages import Entry, shorten_text
from swarmkeep.events.state import State
from swarmkeep.events.wording import join_content
from swarmkeep.models.failures import CONTEXT_TOO_LONG, Secrets
from swarmkeep.models.model import Model, Reply, TurnFailed
from swarmkeep.request.compaction import build_summary_request, halve_piece, plan_compaction
from swarmkeep.request.request import ModelRequest, find_last_reply
from swarmkeep.runs.identifiers import MODEL_SENT, reach
from swarmkeep.store.threads import run_off_loop

_BYTES_PER_TOKEN = 4


def find_compaction(
    agent: Agent, state: State, request: ModelRequest, *, is_too_long: bool = False
) -> CompactionStarted | None:
    """The compaction that the agent's settings ask for before this request is sent, if they do.

    Once between two replies: what was of no use is not done again.
    """
    settings, last = agent.compaction, find_last_reply(state)
    if settings is None or state.compacted_at > (0 if last is None else last.seq):
        return None
    tokens, estimated = _count_tokens(last, request)
    is_full = settings.of_tokens is not None and tokens >= settings.at * settings.of_tokens
    if not is_full and not is_too_long:
        return None
    reason: CompactionReason = "too_long" if is_too_long else "tokens"
    plan = CompactionStarted(
        reason=reason,
        keep_turns=settings.keep_turns,
        result_characters=settings.result_characters,
        of_tokens=settings.of_tokens,
        prompt_tokens=tokens,
        estimated=estimated,
        instructions=settings.instructions,
    )
    return plan_compaction(state, plan)


def _count_tokens(last: Entry | None, request: ModelRequest) -> tuple[int, bool]:
    """Return the tokens of the last request, as its provider counted; where it did not, what this one may take."""
    usage = None if last is None or last.completion is None else last.completion.usage
    count = None if usage is None else usage.get("prompt_tokens")
    if isinstance(count, int) and count > 0:
        return count, False
    size = request.history.size + len(request.instructions) + len(request.tools or "")
    return size // _BYTES_PER_TOKEN, True


def start_compaction(before: State, state: State, fact: CompactionStarted) -> list[SessionEvent]:
    """The compaction that was planned for `before`; nothing if something has come in between."""
    return [fact] if state.compaction is None and state.last_change == before.last_change else []


async def summarise(
    model: Model, state: State, name: str, secrets: Secrets
) -> tuple[CompactionSummarised, ModelRequest]:
    """Ask for the next summary of a compaction that is under way, with less at once where it is too much.

    Neither what is said nor the error has secrets in it. Raises TurnFailed.
    """
    assert state.compaction is not None
    characters = state.compaction.fact.piece_characters
    while True:
        build = partial(build_summary_request, state, name, characters)
        request, piece = await run_off_loop(len(state.messages), build)
        if not piece.text:
            raise TurnFailed(RunError(code="summary_empty", message="there is nothing to sum up"))
        try:
            reply = await _ask(model, request)
        except TurnFailed as failure:
            left = halve_piece(characters) if failure.error.code == CONTEXT_TOO_LONG else None
            if left is None:
                raise failure.mask(secrets) from failure
            characters = left
            continue
        # Masked before it is cut, so that no half of a secret stays.
        text = secrets.mask(join_content(reply.message.get("content")).strip())
        # However long an answer is: the next request has to hold it, and what follows.
        text = shorten_text(text, characters)
        if not text:
            raise TurnFailed(RunError(code="summary_empty", message="the model's summary has no text"))
        fact = CompactionSummarised(
            first_seq=piece.first_seq,
            last_seq=piece.last_seq,
            summary=text,
            characters=characters,
            completion=reply.completion,
        )
        return fact, request


async def attempt_summary(
    model: Model, state: State, name: str, secrets: Secrets
) -> tuple[CompactionSummarised | CompactionFailed, dict[str, str]]:
    """The next summary, or that there is none, as it is to be recorded; and the texts that its request was made of."""
    await reach(MODEL_SENT)
    try:
        fact, request = await summarise(model, state, name, secrets)
    except TurnFailed as failure:
        return describe_failure(failure.error), {}
    return fact, request.blobs


def describe_failure(error: RunError) -> CompactionFailed:
    """That there is no summary, as it is to be recorded."""
    return CompactionFailed(
        code=error.code,
        message=error.message,
        retryable=error.retryable,
        provider_status=error.provider_status,
    )


async def _ask(model: Model, request: ModelRequest) -> Reply:
    async with aclosing(model.ask(request, stream=False)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Reply):
                return piece
    raise TurnFailed(RunError(code="summary_empty", message="the model did not answer"))


def record_summary(before: State, state: State, fact: CompactionSummarised | CompactionFailed) -> list[SessionEvent]:
    """Record the outcome of the summary that was asked for in `before`; nothing if it is no summary of what is there
    now."""
    same = state.compaction is not None and before.compaction is not None and state.compaction == before.compaction
    # Another session that was made under the id may have come to the same place.
    is_same_session = state.created_at == before.created_at
    return [fact] if same and is_same_session and state.last_change == before.last_change else []
