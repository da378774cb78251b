"""The request for a summary: total, and rebuilt from the log like any other."""

from __future__ import annotations

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.compaction.planning import Piece, next_piece
from swarmkeep.domain.compaction.texts import make_instructions, make_prompt
from swarmkeep.domain.history.sent import History
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.request import ModelRequest
from swarmkeep.domain.state import State


def build_summary_request(state: State, model: str, characters: int) -> tuple[ModelRequest, Piece]:
    """What a model is asked to sum up next, with the summary so far; of about so many characters at most."""
    assert state.compaction is not None
    piece = next_piece(state, characters)
    prompt = make_prompt("" if state.summary is None else state.summary.text, piece.text)
    asked = Entry(seq=0, at="", run_id=None, message={"role": "user", "content": prompt})
    request = ModelRequest(
        instructions=make_instructions(state.compaction.fact.instructions),
        tools=None,
        params={"model": model},
        history=History(0, Chain([asked]), (asked.chat_json,)),
    )
    return request, piece
