"""The fields of a session handle, read without asking the server."""

from __future__ import annotations

from swarmkeep_client.models import Cost, Feedback, Hold, Json, Match, Origin, Parent, SessionState, TakenOver, Usage


class SessionFields:
    """The session's fields as of the last answer about it: when it was made, fetched, updated or refreshed."""

    def __init__(self, state: SessionState) -> None:
        # Replaced as a whole, so that threads sharing a handle never see half of an update.
        self._state = state

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def status(self) -> str:
        """`idle`, `running` or `waiting`."""
        return self._state.status

    @property
    def agent(self) -> str:
        """The active agent's name."""
        return self._state.agent

    @property
    def context_variables(self) -> Json:
        """Empty for a session out of a list that was not asked to include them; `refresh` fetches them."""
        return self._state.context_variables

    @property
    def metadata(self) -> Json:
        return self._state.metadata

    @property
    def seq(self) -> int:
        """The last event's number."""
        return self._state.seq

    @property
    def hash(self) -> str:
        """The last event's hash: noted down, it proves the history up to `seq`."""
        return self._state.hash

    @property
    def active_run_id(self) -> str | None:
        return self._state.active_run_id

    @property
    def message_count(self) -> int:
        return self._state.message_count

    @property
    def usage(self) -> Usage:
        return self._state.usage

    @property
    def cost(self) -> Cost | None:
        """The cost of its own model calls when the session was fetched; None if the server knows no price."""
        return self._state.cost

    @property
    def forked_from(self) -> Origin | None:
        return self._state.forked_from

    @property
    def parent(self) -> Parent | None:
        """The call of another session that it was made for, if an agent did."""
        return self._state.parent

    @property
    def queued_runs(self) -> int:
        """The number of runs that wait for their turn."""
        return self._state.queued_runs

    @property
    def damaged_seq(self) -> int | None:
        """From which event on what is stored is not what was recorded, as far as was found."""
        return self._state.damaged_seq

    @property
    def hold(self) -> Hold | None:
        """Why nothing of it may be redacted or deleted; None if it may be."""
        return self._state.hold

    @property
    def assignee(self) -> str | None:
        """The person or queue that looks after it; None if no one in particular does."""
        return self._state.assignee

    @property
    def feedback(self) -> Feedback | None:
        """How many of its answers people found good, and how many not; None without any."""
        return self._state.feedback

    @property
    def taken_over(self) -> TakenOver | None:
        """The person that answers in the agent's place; None if the agent answers."""
        return self._state.taken_over

    @property
    def created_at(self) -> str:
        return self._state.created_at

    @property
    def updated_at(self) -> str:
        return self._state.updated_at

    @property
    def last_run_status(self) -> str | None:
        return self._state.last_run_status

    @property
    def title(self) -> str | None:
        """Its title (`metadata["title"]`), or its first words; None for an empty session."""
        return self._state.title

    @property
    def matches(self) -> list[Match]:
        """The places that a search found; empty for a session that no search returned."""
        return self._state.matches

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.status} at seq {self.seq}>"
