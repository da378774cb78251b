"""Documents of very long messages: nobody waits for them."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.state import State
from swarmkeep.history.transcript import TranscriptFormat, open_transcript
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.support.loop_watch import measure_limit, watch_callbacks

pytestmark = pytest.mark.one_database

KEY = SessionKey("default", "large")


@pytest.mark.long
@pytest.mark.parametrize("form", ["markdown", "html"])
async def test_long_message_document_blocks_no_others(store: SqlStore, form: TranscriptFormat) -> None:
    texts = ("\n" * 400_000, "`" * 800_000, "<\u202e" * 200_000)
    facts = create_session("A", {}, {}, [{"role": "user", "content": text} for text in texts])
    await store.append(KEY, State(), draft_events("A", facts, None))
    with watch_callbacks() as watch:
        async with aclosing(await open_transcript(store, KEY, form)) as pieces:
            size = sum([len(piece) async for piece in pieces])
    assert size > sum(map(len, texts))
    # On the loop each of these took far longer.
    assert watch.longest_seconds < 4 * measure_limit(), watch.longest
