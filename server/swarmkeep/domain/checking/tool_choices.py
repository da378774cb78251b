"""Which functions a model may call, or has to: what was chosen, until a call that was forced has been made."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from swarmkeep.domain.codec import Json
from swarmkeep.domain.state import Run, State


def find_tool_choice(
    state: State, agent: str, own: str | Json | None, asked: str | Json | UnsetType | None, *, answers_by_call: bool
) -> str | Json | None:
    """What the next request says, by the agent's `own` choice and what the run's caller `asked` for.

    Whoever forces a call forces one: the caller the run's first reply, an agent its own first in a run. Where the
    answer is a call, it may be required of each.
    """
    run = state.run
    choice = own if asked is UNSET else asked
    if run is None or (choice == "required" and answers_by_call):
        return choice
    if asked is not UNSET:
        return _relax(choice) if run.turns > run.turns_before else choice
    relaxed = _relax(choice)
    return relaxed if relaxed != choice and _has_replied(state, run, agent) else choice


def _has_replied(state: State, run: Run, agent: str) -> bool:
    latest = (state.messages[index] for index in range(len(state.messages) - 1, run.first_message - 1, -1))
    return any(entry.completion is not None and entry.message.get("sender") == agent for entry in latest)


def _relax(choice: str | Json | None) -> str | Json | None:
    """The choice without force. Held to it in each turn, a model could never answer."""
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return "auto" if isinstance(choice, dict) else choice
    allowed = choice.get("allowed_tools")
    return {**choice, "allowed_tools": {**allowed, "mode": "auto"}} if isinstance(allowed, dict) else choice
