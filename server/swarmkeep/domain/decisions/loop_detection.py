"""Runs that go round in circles: the same calls again and again, or the same handoffs."""

from __future__ import annotations

from collections.abc import Iterator

from swarmkeep.domain.messages import Entry
from swarmkeep.domain.state import Run, State

# A circle counts once it was gone round this often: two equal turns may well be a second attempt.
_MIN_REPEATS = 3


def is_looping(state: State, run: Run) -> bool:
    """Whether the last `options.loop_turns` turns of the run ask for the same calls, or for a short circle of them.

    Two turns are alike when the same agent asks for the same functions with the same arguments; what came of it does
    not matter. A circle of p turns is found when the turns repeat with period p, at least three times.
    """
    window = run.options.loop_turns
    if window is None or run.turns < window:
        return False
    latest = _list_last_turns(state, run, window)
    return any(_is_repeating(latest, period) for period in range(1, max(window // _MIN_REPEATS, 1) + 1))


def _is_repeating(turns: list[object], period: int) -> bool:
    return all(turn is not None and turn == later for turn, later in zip(turns, turns[period:], strict=False))


def _list_last_turns(state: State, run: Run, count: int) -> list[object]:
    turns: list[object] = []
    for entry in _iterate_backwards(state, run):
        if entry.completion is None:
            continue
        turns.append(_sign_turn(entry))
        if len(turns) == count:
            break
    return turns


def _iterate_backwards(state: State, run: Run) -> Iterator[Entry]:
    return (state.messages[index] for index in range(run.last_message - 1, run.first_message - 1, -1))


def _sign_turn(entry: Entry) -> object:
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in entry.chat_message.get("tool_calls", ())
    ]
    return (entry.message.get("sender"), calls) if calls else None
