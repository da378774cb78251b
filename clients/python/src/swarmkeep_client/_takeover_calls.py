"""Routes for people who speak in the agent's place, as functions from their arguments to a Call."""

from __future__ import annotations

from swarmkeep_client._requests import build_session_path, make_write, read_as
from swarmkeep_client._wire import Call
from swarmkeep_client.models import Message, Page, SessionState


def take_over(session_id: str, *, note: str | None, force: bool, idempotency_key: str | None) -> Call[SessionState]:
    return _change(session_id, "takeover", note, force, idempotency_key)


def hand_back(session_id: str, *, note: str | None, force: bool, idempotency_key: str | None) -> Call[SessionState]:
    return _change(session_id, "handback", note, force, idempotency_key)


def answer(session_id: str, content: str, *, idempotency_key: str | None) -> Call[Page[Message]]:
    path = build_session_path(session_id, "answer")
    return Call(make_write("POST", path, {"content": content}, idempotency_key), read_as(Page[Message]))


def _change(
    session_id: str, what: str, note: str | None, force: bool, idempotency_key: str | None
) -> Call[SessionState]:
    body = {"note": note, "force": force or None}
    return Call(make_write("POST", build_session_path(session_id, what), body, idempotency_key), read_as(SessionState))
