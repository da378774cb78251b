"""What a model is just saying, for whoever ends its run: asked of the server that hears it, if that is another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from swarmkeep.domain.codec import decode, encode_text
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.decisions.settling import find_outside_step
from swarmkeep.domain.decisions.steps import AskModel
from swarmkeep.domain.state import State
from swarmkeep.engine.streams.hub import Hub
from swarmkeep.store.ports import EventStore, Lease, SessionHead, SessionKey

# How often to look whether the other server has answered.
_LOOK_SECONDS = 0.02


class PartialReplies:
    """Asks other servers what their models have said so far, and tells them. `owner` is the name of this one.

    The wish and the answer are in the session's row. A server that is asked knows it at its next poll or hint, so one
    that does not answer within two polls and a bit is dead or stands still, and what it heard is lost.
    """

    def __init__(
        self,
        store: EventStore,
        hub: Hub,
        owner: str,
        poll_seconds: float,
        is_advancing: Callable[[SessionKey], bool],
    ) -> None:
        self._store = store
        self._hub = hub
        self._owner = owner
        self._patience_seconds = 2 * poll_seconds + 0.5
        self._is_advancing = is_advancing

    async def find(self, key: SessionKey, run_id: str | None = None) -> PartialReply:
        """What the model of the session's active run has said so far, wherever that goes on.

        With `run_id`, only if that is the active one. Raises SessionNotFound.
        """
        if self._is_advancing(key):
            return self._hub.get_partial(key)
        if not _is_model_asked(await self._store.state(key), run_id):
            return NOTHING_SAID
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds):
                return await self._ask_other(key)
        return NOTHING_SAID

    async def _ask_other(self, key: SessionKey) -> PartialReply:
        if not await self._store.ask_for_partial(key, self._owner):
            return NOTHING_SAID
        while True:
            head = await self._store.read_head(key)
            if head is None or head.partial is None:
                # The run is over, or somebody has taken it over.
                return NOTHING_SAID
            if head.partial:
                return _read_answer(head.partial)
            await asyncio.sleep(_LOOK_SECONDS)

    async def answer(self, leases: Mapping[SessionKey, Lease], heads: Mapping[SessionKey, SessionHead]) -> None:
        """Tell what is asked for in these rows, of the runs that are still this server's."""
        for key, lease in leases.items():
            head = heads.get(key)
            if head is not None and head.is_partial_wanted and head.lease == lease:
                await self._store.answer_partial(key, lease, encode_text(self._hub.get_partial(key)))


def _is_model_asked(state: State, run_id: str | None) -> bool:
    if state.run is None or run_id not in (None, state.run.id):
        return False
    return isinstance(find_outside_step(state), AskModel)


def _read_answer(text: str) -> PartialReply:
    try:
        return decode(text, PartialReply)
    except ValueError:
        return NOTHING_SAID
