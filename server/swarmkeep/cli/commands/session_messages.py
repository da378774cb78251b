"""What was said in a session, and in those of the agents that were asked in it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swarmkeep.cli.render.messages import format_message
from swarmkeep.cli.terminal import put

if TYPE_CHECKING:
    from swarmkeep.cli.sources.source import Source
    from swarmkeep_client import Message


def put_messages(source: Source, messages: Sequence[Message], shown: set[str], depth: int = 0) -> None:
    """Show messages, and below each result of an agent that was asked what was said there.

    `shown` are the sessions that are shown already: what was imported may name any, as deep as it likes.
    """
    from swarmkeep.engine.teams.links import MOST_DEPTH

    indent = "      " * depth
    for message in messages:
        put(textwrap.indent(format_message(message), indent))
        asked = message.get("session_id")
        if asked and asked not in shown and depth < MOST_DEPTH:
            shown.add(asked)
            below = _read_below(source, asked)
            if isinstance(below, str):
                put(f"{indent}      ({asked} cannot be shown: {below})")
            else:
                put_messages(source, below, shown, depth + 1)


def _read_below(source: Source, session_id: str) -> Sequence[Message] | str:
    """What was said in a session; or why that cannot be shown, which is no reason not to show the one above."""
    from swarmkeep.domain.errors import DomainError, SessionNotFound
    from swarmkeep_client import SessionNotFound as NoSession
    from swarmkeep_client import SwarmkeepError

    try:
        return source.messages(session_id)
    except (SessionNotFound, NoSession):
        # It was deleted, or left out of an export.
        return ()
    except (DomainError, SwarmkeepError) as error:
        return str(error)
