"""How large a response's first request to its model would be. An estimate: only a model's provider counts exactly."""

from __future__ import annotations

from typing import Any

from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec.structs import asdict, replace

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.openai.answers import read_answers
from swarmkeep.api.openai.command import make_command
from swarmkeep.api.openai.errors import Refused
from swarmkeep.api.openai.fields import CountTokens, CreateResponse
from swarmkeep.api.openai.items.error_params import map_error_params
from swarmkeep.api.openai.run_request import RunRequest, read_run_request
from swarmkeep.api.openai.unstored import load_unstored_session
from swarmkeep.domain.codec import encode
from swarmkeep.domain.decisions.commands import start_run
from swarmkeep.domain.decisions.resuming import resume_run
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.request import ModelRequest
from swarmkeep.domain.state import State
from swarmkeep.engine.models.model import TurnFailed
from swarmkeep.engine.swarm.unstored import UnstoredSession

# Of text, whatever its language: few tokens are shorter, most of them in English are about as long.
_BYTES_PER_TOKEN = 4
# A picture of 1024 × 1024 in detail. How large one is, or how long a file, nobody looks up for an estimate.
_TOKENS_PER_MEDIUM = 765


@post(
    "/responses/input_tokens",
    status_code=200,
    operation_id="count_input_tokens",
    summary="Estimate the tokens of a response's input",
    opt={PERMISSION: ("run",)},
)
async def count_input_tokens(data: JSONBody[CountTokens], principal: NamedDependency[Principal]) -> dict[str, Any]:
    """Of everything that would be sent to the model first: instructions, functions, the history, and the input.
    Estimated from the bytes of its text, with a fixed number for each picture or file. Nothing is recorded.
    """
    run_request = await read_run_request(principal, CreateResponse(**asdict(data)))
    session = await load_unstored_session(principal, run_request)
    with map_error_params(run_request.input):
        request = await _preview(principal, run_request, session)
    return {"object": "response.input_tokens", "input_tokens": estimate_tokens(request), "estimated": True}


async def _preview(principal: Principal, run_request: RunRequest, session: UnstoredSession) -> ModelRequest:
    run = session.state.run
    if run is not None and run.status == "waiting":
        answers = read_answers(principal, session.id, run, run_request)
        now = await principal.store.read_clock() if answers.approvals else None

        def decide(state: State) -> list[EventDraft]:
            given = answers.results, answers.approvals
            return resume_run(state, run.id, *given, messages=answers.messages, options=run_request.options, now=now)
    else:
        # What another run is going to say nobody knows: as if it were cut off now.
        command = replace(make_command(principal, session.state, run_request), on_busy="interrupt")

        def decide(state: State) -> list[EventDraft]:
            return start_run(state, command)

    try:
        return await principal.engine.unstored.preview(session, decide, run_request.options)
    except TurnFailed as failure:
        raise Refused(failure.error.message, "model", code=failure.error.code, status=409) from failure


def estimate_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has. What its history comes to is known, however long that is."""
    media = request.history.media
    texts = len(encode(request.instructions)) + len((request.tools or "").encode())
    size = texts + request.history.size - media.size
    return size // _BYTES_PER_TOKEN + media.count * _TOKENS_PER_MEDIUM


ROUTES = [count_input_tokens]
