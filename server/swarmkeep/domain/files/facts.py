"""The files that events refer to."""

from __future__ import annotations

from swarmkeep.domain.events import MessageAdded, RunQueued, SessionEvent
from swarmkeep.domain.files.references import FileReference, list_references
from swarmkeep.domain.files.results import list_result_references


def list_fact_references(fact: SessionEvent) -> list[FileReference]:
    """What an event's messages refer to."""
    match fact:
        case MessageAdded():
            return [*list_references(fact.message), *list_result_references(fact.tool)]
        case RunQueued():
            return [found for message in fact.messages for found in list_references(message)]
        case _:
            return []


def list_fact_files(fact: SessionEvent) -> list[str]:
    """The files, by their hashes, that an event's messages refer to."""
    return [found.sha256 for found in list_fact_references(fact)]
