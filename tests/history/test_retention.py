"""Retention and holds: which sessions go, when, and what keeps them."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.errors import InvalidRequest, OnHold, SessionNotFound
from swarmkeep.events.facts import Parent
from swarmkeep.events.state import State
from swarmkeep.history.redact import redact
from swarmkeep.history.retention import (
    DueSession,
    RetentionError,
    apply_retention,
    iterate_due,
    list_due,
    read_retention,
)
from swarmkeep.history.verify import verify
from swarmkeep.runs.sessions import delete_session, fork_session, hold_session, release_session
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.store.sessions import KEY, OTHER, begin_run, begin_session, draft_user_messages

RULES = """[
    {"tenant": "acme", "keep": null},
    {"metadata": {"class": "credit"}, "keep": "7y"},
    {"metadata": {"class": "chat"}, "keep": "30d"},
    {"keep": "180d"}
]"""


async def begin_old(url: str, key: SessionKey, days: float, **given: Any) -> None:
    store = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=days))
    await begin_session(store, key, **given)
    await store.close()


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{kind}_ready"))


async def list_all(
    store: SqlStore, tenant: str = "default", *, days: float = 0, rules: str = RULES
) -> list[DueSession]:
    before = datetime.now(UTC) + timedelta(days=days)
    return [due async for due in iterate_due(store, tenant, read_retention(rules), before=before)]


async def test_first_rule_that_fits_counts(store: SqlStore, url: str) -> None:
    for name, days, kind in (
        ("chat-old", 31, "chat"), ("chat-new", 29, "chat"), ("credit-old", 400, "credit"), ("other-old", 181, "x"),
        ("other-new", 170, "x"),
    ):  # fmt: skip
        await begin_old(url, SessionKey("default", name), days, metadata={"class": kind, "n": 1})
    await begin_old(url, SessionKey("acme", "kept"), 9000)
    assert [(due.session_id, due.keep) for due in await list_all(store)] == [
        ("chat-old", "30d"), ("other-old", "180d"),
    ]  # fmt: skip
    later = await list_all(store, days=20)
    assert [due.session_id for due in later] == ["chat-new", "chat-old", "other-new", "other-old"]
    goes = datetime.fromisoformat(later[0].goes_at) - datetime.now(UTC)
    assert timedelta(hours=23) < goes < timedelta(days=1, minutes=1)
    assert await list_all(store, "acme", days=9000) == []
    assert await apply_retention(store, read_retention(RULES)) == 2
    for name in ("chat-old", "other-old"):
        with pytest.raises(SessionNotFound):
            await store.state(SessionKey("default", name))
    entries = await store.read_audit_log("default")
    assert {(entry.type, entry.by) for entry in entries} == {("session.deleted", "retention")}
    assert '"reason":"kept for 30d"' in "".join(entry.payload for entry in entries)
    assert await apply_retention(store, read_retention(RULES)) == 0


async def test_holds_and_runs_keep_sessions(store: SqlStore, url: str) -> None:
    old = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=40))
    held, running = SessionKey("default", "held"), SessionKey("default", "running")
    await begin_session(old, held)
    await hold_session(old, held, "case 12", by="Lee")
    await begin_run(old, running)
    await old.close()
    rules = read_retention("30d")
    assert [(due.session_id, due.held) for due in await list_all(store, rules="30d")] == [("held", True)]
    assert await apply_retention(store, rules) == 0
    await release_session(store, held, by="Lee")
    # Lifting the hold is a change, too.
    assert await apply_retention(store, rules) == 0
    await store.state(held)
    await store.state(running)


async def test_asked_session_goes_with_its_asker(store: SqlStore, url: str) -> None:
    old = open_store(url, clock=lambda: datetime.now(UTC) - timedelta(days=40))
    await begin_session(old, KEY)
    for name, asker in (("asked", KEY.id), ("left", "gone")):
        parent = Parent(session_id=asker, run_id="r", tool_call_id="c", depth=1)
        drafts = draft_events("Ann", create_session("Ann", {}, {}, [], parent=parent), None)
        await old.append(SessionKey("default", name), State(), drafts)
    await old.close()
    assert [due.session_id for due in await list_all(store, rules="30d")] == ["left", KEY.id]


async def test_two_servers_delete_each_once(store: SqlStore, url: str) -> None:
    for number in range(30):
        await begin_old(url, SessionKey("default", f"s{number}"), 40)
    other = open_store(url)
    counts = await asyncio.gather(*(apply_retention(one, read_retention("30d")) for one in (store, other)))
    await other.close()
    assert sum(counts) == 30
    assert len(await store.read_audit_log("default")) == 30


async def test_pages_go_through_all_rules(store: SqlStore, url: str) -> None:
    for number in range(5):
        await begin_old(
            url, SessionKey("default", f"s{number}"), 40 + number, metadata={"class": "chat"} if number % 2 else {}
        )
    rules = read_retention('[{"metadata": {"class": "chat"}, "keep": "30d"}, {"keep": "30d"}]')
    found, cursor = [], None
    while True:
        page = await list_due(store, "default", rules, before=datetime.now(UTC), limit=1, cursor=cursor)
        found += [due.session_id for due in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ["s1", "s3", "s0", "s2", "s4"]
    for wrong in ("x", "WyI5IiwiIl0"):
        with pytest.raises(InvalidRequest):
            await list_due(store, "default", rules, before=datetime.now(UTC), limit=1, cursor=wrong)


def test_setting_is_text_json_or_file(tmp_path: Path) -> None:
    assert read_retention(None) == read_retention("  ") == ()
    assert [rule.keep for rule in read_retention("180d")] == ["180d"]
    (tmp_path / "rules.json").write_text(RULES)
    (tmp_path / "rules.toml").write_text('[[rules]]\nkeep = "2y"\nmetadata = {class = "chat"}\n')
    assert read_retention(str(tmp_path / "rules.json")) == read_retention(RULES)
    assert read_retention(str(tmp_path / "rules.toml"))[0].metadata == {"class": "chat"}


@pytest.mark.parametrize(
    "wrong",
    ["180", "0d", "none", "[1]", '[{"keep": "3 days"}]', '[{"keep": "3d", "team": "a"}]', '[{"metadata": {}}]', "[{}",
     '{"keep": "3d"}', str([{"keep": "1d"}] * 101).replace("'", '"'), "[" * 5000],
)  # fmt: skip
def test_wrong_setting_is_told(wrong: str) -> None:
    with pytest.raises(RetentionError, match="SWARMKEEP_RETENTION") as refused:
        read_retention(wrong)
    assert wrong != "180" or "; write it as in 180d" in str(refused.value)


@given(st.text(max_size=50))
def test_any_setting_is_rules_or_refused(text: str) -> None:
    with contextlib.suppress(RetentionError):
        assert isinstance(read_retention(text), tuple)


# Sessions on hold: nothing of them is redacted or deleted, however it is asked for.


async def begin_held(store: SqlStore, key: SessionKey = KEY) -> None:
    await store.append(key, await begin_session(store, key), draft_user_messages("keep me"))
    view = await hold_session(store, key, "case 12", by="Lee")
    assert view.hold is not None
    assert (view.hold.reason, view.hold.by) == ("case 12", "Lee")


async def test_hold_stops_redaction_and_deletion(store: SqlStore) -> None:
    await begin_held(store)
    for attempt in (
        lambda: redact(store, KEY, [2], "a name"),
        lambda: redact(store, KEY, [2], "a name", dry_run=True),
        lambda: delete_session(store, KEY),
        lambda: delete_session(store, KEY, force=True),
    ):
        with pytest.raises(OnHold, match="case 12"):
            await attempt()
    again = await hold_session(store, KEY, "case 12", by="Eve")
    assert again.seq == 3
    assert (await hold_session(store, KEY, "case 13", by="Eve")).seq == 4
    released = await release_session(store, KEY, by="Lee")
    assert (released.seq, (await release_session(store, KEY, by="Lee")).seq) == (5, 5)
    # Who held it and why can be removed as any other text.
    await redact(store, KEY, [2, 3, 4, 5], "a name")
    assert "case 12" not in str([event.payload for event in await store.read(KEY)])
    assert (await verify(store, KEY)).valid
    entries = await store.read_audit_log(KEY.tenant, after=0, limit=100)
    assert [entry.type for entry in entries] == [
        "session.held", "session.held", "session.released", "session.redacted",
    ]  # fmt: skip
    await delete_session(store, KEY)


async def test_hold_needs_session_and_reason(store: SqlStore) -> None:
    with pytest.raises(SessionNotFound):
        await hold_session(store, KEY, "case 12", by=None)
    await begin_session(store, KEY)
    for reason in ("", "x" * 1001):
        with pytest.raises(InvalidRequest):
            await hold_session(store, KEY, reason, by=None)


async def test_fork_is_not_held_but_copy_stays(store: SqlStore) -> None:
    await begin_held(store)
    assert (await fork_session(store, KEY, session_id=OTHER.id)).hold is UNSET
    done = await redact(store, OTHER, [2], "a name", include_forks=True)
    assert [(copy.session_id, copy.redacted) for copy in done.forks] == [(KEY.id, False)]
    assert "keep me" in str([event.payload for event in await store.read(KEY)])
    await delete_session(store, OTHER)


async def test_forced_deletion_loses_against_hold(store: SqlStore) -> None:
    """Whichever of the two comes first counts; never are both told that it was done."""
    for number in range(12):
        key = SessionKey(KEY.tenant, f"raced-{number}")
        await begin_session(store, key)
        held, gone = await asyncio.gather(
            hold_session(store, key, "case", by=None), delete_session(store, key, force=True), return_exceptions=True
        )
        left = await store.read_head(key)
        assert (left is not None) == (not isinstance(held, Exception)) == isinstance(gone, OnHold)
