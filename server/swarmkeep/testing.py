"""For a team's own tests: recorded conversations, and the claim that today's agents would have them again."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from swarmkeep.agent import Agent
from swarmkeep.history.divergences import Divergence, check_kinds, format_sides
from swarmkeep.history.recordings import RecordedSession, read_recorded_sessions
from swarmkeep.history.replay import replay
from swarmkeep.runs.agents import Registry, load_registry

__all__ = ["RecordedConversation", "assert_replays", "differences", "recorded"]


class RecordedConversation:
    """One session of an export. As a parameter of a test it goes by its file's name and its own."""

    def __init__(self, file: Path, conversation: RecordedSession) -> None:
        self.file = file
        self.session_id = conversation.session_id
        self.conversation = conversation
        # What pytest calls a parameter that has one.
        self.__name__ = f"{file.name}:{conversation.session_id}"

    def __repr__(self) -> str:
        return f"<RecordedConversation {self.__name__}>"


def recorded(*patterns: str | Path) -> list[RecordedConversation]:
    """The conversations in the export files that the patterns (with `*`, `?` and `**`) match, in order of their names.

    Raises FileNotFoundError for a pattern that matches nothing, so that no test of nothing succeeds, and
    InvalidImport for a file that is not an export.
    """
    found = []
    for pattern in patterns:
        files = sorted(glob.glob(str(pattern), recursive=True))
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        found += [conversation for file in files for conversation in _read_file(Path(file))]
    return found


def _read_file(file: Path) -> Iterable[RecordedConversation]:
    with file.open("rb") as lines:
        for conversation in read_recorded_sessions(lines):
            yield RecordedConversation(file, conversation)


def differences(
    conversation: RecordedConversation,
    agents: Sequence[Agent] | str | Path,
    *,
    ignore: str | Collection[str] = (),
    model: str | None = None,
) -> list[Divergence]:
    """Return the differences in what today's agents would do; no model and no tool is called.

    `agents` are agents, or the file, folder or module that defines them, `model` that of agents that name none.
    """
    if isinstance(agents, str | Path):
        registry = load_registry([str(agents)], model=model)
    else:
        registry = Registry(agents, model=model)
    recording = conversation.conversation
    kinds = check_kinds([ignore] if isinstance(ignore, str) else ignore)
    return replay(recording.events, registry, recording.texts, ignore=kinds).divergences


def assert_replays(
    conversation: RecordedConversation,
    agents: Sequence[Agent] | str | Path,
    *,
    ignore: str | Collection[str] = (),
    model: str | None = None,
) -> None:
    """Fail, with every difference named, unless today's agents would do what is recorded; see `differences`."""
    found = differences(conversation, agents, ignore=ignore, model=model)
    if found:
        title = f"{conversation.__name__} is not what would happen today"
        raise AssertionError("\n".join([title, *_list_lines(found)]))


def _list_lines(found: Iterable[Divergence]) -> Iterator[str]:
    for divergence in found:
        yield f"event {divergence.seq}: {divergence.kind}"
        yield from (f"  {line}" for line in format_sides(divergence.kind, divergence.recorded, divergence.actual))
