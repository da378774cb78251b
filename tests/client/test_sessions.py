"""The client reads like the URL: each verb makes one request, and its answer comes back typed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from swarmkeep_client import (
    AgentInfo,
    AsyncClient,
    Client,
    Done,
    Event,
    MCPServerInfo,
    Origin,
    Session,
    Usage,
)
from tests.client import samples
from tests.client.stub_server import (
    ReceivedRequest,
    Reply,
    StubServer,
    make_json_reply,
    make_problem_reply,
    make_reply,
    make_sse_reply,
)

NOTHING = make_reply(204, b"", "application/json")


def test_the_readme_in_one_go(server: StubServer) -> None:
    server.script(
        make_json_reply(samples.make_session(), 201),
        make_json_reply(samples.make_run()),
        make_sse_reply(
            samples.durable_frame(samples.make_event(6, "run.started")), samples.done_frame(samples.make_run(id="r2"))
        ),
        make_json_reply(samples.make_page([{"seq": 3, "role": "user", "content": "Hi", "sender": "user"}])),
        make_json_reply(samples.make_page([samples.make_event(1, "session.created", run_id=None)])),
        make_json_reply(samples.make_session(seq=3)),
        make_json_reply(samples.make_session(id="s2", forked_from={"session_id": "s1", "seq": 3, "hash": "h3"}), 201),
        make_json_reply({"valid": True, "events": 9, "head": {"seq": 9, "hash": "h9"}, "problems": []}),
        NOTHING,
    )
    with Client(server.url, api_key=None) as client:
        session = client.sessions.create(agent="Triage Agent", context_variables={"user_name": "John"})
        run = session.run("I want a refund.")
        assert (run.output_text, run.agent) == ("Hello, John.", "Refunds Agent")
        assert run.context_variables == {"user_name": "John"}
        assert [item.type for item in session.stream("Yes, please.")] == ["run.started", "done"]
        assert session.messages()[0]["content"] == "Hi"
        assert [event.seq for event in session.events()] == [1]
        assert session.state(at=3).seq == 3
        fork = session.fork(at=3)
        assert (fork.id, fork.forked_from) == ("s2", Origin(session_id="s1", seq=3, hash="h3"))
        assert session.verify().valid
        session.delete()
    assert server.lines == [
        "POST /v1/sessions",
        "POST /v1/sessions/s1/runs",
        "POST /v1/sessions/s1/runs",
        "GET /v1/sessions/s1/messages",
        "GET /v1/sessions/s1/events",
        "GET /v1/sessions/s1?at=3",
        "POST /v1/sessions/s1/fork",
        "GET /v1/sessions/s1/verify",
        "DELETE /v1/sessions/s1",
    ]


async def test_async_readme_example_works(server: StubServer) -> None:
    server.script(
        make_json_reply(samples.make_session(), 201),
        make_json_reply(samples.make_run()),
        make_sse_reply(samples.done_frame(samples.make_run(id="r2"))),
        make_json_reply(samples.make_page([{"seq": 3, "role": "user", "content": "Hi"}])),
        make_json_reply(samples.make_page([samples.make_event(1, "session.created", run_id=None)])),
        make_json_reply(samples.make_session(seq=3)),
        make_json_reply(samples.make_session(id="s2"), 201),
        make_json_reply({"valid": True, "events": 9, "head": {"seq": 9, "hash": "h9"}, "problems": []}),
        NOTHING,
    )
    async with AsyncClient(server.url, api_key=None) as client:
        session = await client.sessions.create(agent="Triage Agent", context_variables={"user_name": "John"})
        assert (await session.run("I want a refund.")).output_text == "Hello, John."
        items = [item async for item in session.stream("Yes, please.")]
        assert isinstance(items[-1], Done)
        assert (await session.messages())[0]["content"] == "Hi"
        assert [event.seq async for event in session.events()] == [1]
        assert (await session.state(at=3)).seq == 3
        assert (await session.fork(at=3)).id == "s2"
        assert (await session.verify()).valid
        await session.delete()


def test_session_has_contract_fields(session: Session) -> None:
    sample = samples.make_session()
    for name in sample:
        if name != "usage":
            assert getattr(session, name) == sample[name]
    assert session.usage == Usage()
    assert repr(session) == "<Session 's1' idle at seq 1>"


SESSION, RUN = make_json_reply(samples.make_session()), make_json_reply(samples.make_run())
NO_ITEMS, REQUEST = make_json_reply(samples.make_page([])), make_json_reply({"model": "m"})
SIDE = {"id": "s1", "seq": 4, "hash": "h4", "agent": "A"}
SIDES = make_json_reply({"shared_seq": 3, "shared_hash": "h", "identical": False, "a": SIDE, "b": SIDE})
CHANGES = {"before": 3, "after": 9, "changes": [{"path": "/agent", "before": "A", "after": "B"}]}
DIVERGENCE = {"seq": 4, "kind": "tools", "recorded": [], "actual": ["x"]}
REPLAY = make_json_reply({"matches": False, "turns": 2, "divergences": [DIVERGENCE]})
COMPACTED = {"session": samples.make_session(), "summary": "s", "first_seq": 2, "last_seq": 7}
REDACTED = {"session": samples.make_session(), "seqs": [3, 4], "seq": 5, "forks": []}
ANSWERED = samples.make_page([{"role": "assistant", "content": "Hello.", "person": "Ann"}])
TAKEN = samples.make_session(taken_over={"by": "Ann", "at": "", "note": "angry"})
OPTIONS: dict[str, Any] = {
    "background": True, "agent": "A", "context_variables": {"a": None}, "model": "m", "max_turns": 2,
    "execute_tools": False, "model_settings": {"seed": 1}, "instructions": "Be brief.",
    "response_format": {"type": "json_object"}, "on_busy": "queue",
}  # fmt: skip
SAID = [{"role": "user", "content": "Hi"}]
RESULT: Any = {"tool_results": [{"tool_call_id": "c", "content": "x", "is_error": True}]}
BLOB = "ab" * 32
# A verb, what is answered, the request's method and path below the session's, and its body.
VERBS: list[tuple[Callable[[Session], object], Reply, str, Any]] = [
    (lambda s: s.run("Hi"), RUN, "POST runs", {"input": "Hi"}),
    (lambda s: s.run(SAID, **OPTIONS, idempotency_key="k"), RUN, "POST runs", {"input": SAID, **OPTIONS}),
    (lambda s: s.cancel("r1"), RUN, "POST runs/r1/cancel", None),
    (lambda s: s.resume("r1", **RESULT), RUN, "POST runs/r1/resume", RESULT),
    (lambda s: s.resume("r1"), RUN, "POST runs/r1/resume", {}),
    (lambda s: s.get_run("r1"), make_json_reply(samples.make_failed_run()), "GET runs/r1", None),
    (lambda s: list(s.runs()), make_json_reply(samples.make_page([samples.make_run()])), "GET runs", None),
    (lambda s: s.messages(at=3), NO_ITEMS, "GET messages?at=3", None),
    (lambda s: list(s.events(after=3, type=("run.started", "message.added"), page_size=7)), NO_ITEMS,
     "GET events?after=3&limit=7&type=run.started&type=message.added", None),
    (lambda s: s.update(context_variables={"a": None}, metadata={"b": 1}, agent="B"), SESSION, "PATCH ",
     {"context_variables": {"a": None}, "metadata": {"b": 1}, "agent": "B"}),
    (lambda s: s.fork(3, id="s2", metadata={"a": 1}), SESSION, "POST fork",
     {"at": 3, "id": "s2", "metadata": {"a": 1}}),
    (lambda s: s.fork(3, agent="B"), SESSION, "POST fork", {"at": 3, "agent": "B"}),
    (lambda s: s.compact(keep_turns=2, instructions="In French.").summary, make_json_reply(COMPACTED), "POST compact",
     {"keep_turns": 2, "instructions": "In French."}),
    (lambda s: s.take_over(note="angry", force=True).taken_over.by, make_json_reply(TAKEN), "POST takeover",
     {"note": "angry", "force": True}),
    (lambda s: s.answer("Hello.")["person"], make_json_reply(ANSWERED), "POST answer", {"content": "Hello."}),
    (lambda s: s.assign("billing", reason="an invoice").assignee, SESSION, "POST assign",
     {"to": "billing", "reason": "an invoice"}),
    (lambda s: s.assign(None).assignee is None, SESSION, "POST assign", {"to": None}),
    (lambda s: s.add_feedback("down", seq=4, comment="Wrong.").seq,
     make_json_reply(samples.make_event(5, "feedback.added")), "POST feedback",
     {"value": "down", "seq": 4, "comment": "Wrong."}),
    (lambda s: s.add_note("Twice before.").seq, make_json_reply(samples.make_event(4, "note.added")), "POST notes",
     {"text": "Twice before."}),
    (lambda s: s.put_on_hold("case 12").hold, SESSION, "PUT hold", {"reason": "case 12"}),
    (lambda s: s.release(), SESSION, "DELETE hold", None),
    (lambda s: s.hand_back(), SESSION, "POST handback", {}),
    (lambda s: s.remove_message(7), NOTHING, "DELETE messages/7", None),
    (lambda s: s.remove_message(7, tool_call_id="c 1"), NOTHING, "DELETE messages/7?tool_call_id=c+1", None),
    (lambda s: s.redact((3, 4), "asked for"), make_json_reply(REDACTED), "POST redact",
     {"seqs": [3, 4], "reason": "asked for"}),
    (lambda s: s.request(4)["model"], REQUEST, "GET events/4/request", None),
    (lambda s: s.request_body(4)[:1] == b"{", REQUEST, "GET events/4/request", None),
    (lambda s: s.redacted_request(4).exact, make_json_reply({"exact": False, "request": {}}),
     "GET events/4/request?redacted=true", None),
    (lambda s: s.blob(BLOB)[:1] == b"{", REQUEST, f"GET blobs/{BLOB}", None),
    (lambda s: s.replay().divergences[0].actual, REPLAY, "POST replay", None),
    (lambda s: s.replay(ignore=["model", "instructions"]).last_seq, REPLAY, "POST replay",
     {"ignore": ["model", "instructions"]}),
    (lambda s: s.diff(3, 9).changes[0].before, make_json_reply(CHANGES), "GET diff?before=3&after=9", None),
    (lambda s: s.compare("s2").a.id, SIDES, "GET compare?with=s2", None),
    (lambda s: s.compare(s).b.calls, SIDES, "GET compare?with=s1", None),
    (lambda s: s.delete(force=True), NOTHING, "DELETE ?force=true", None),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "answer", "line", "body"), VERBS)
def test_verb_makes_its_request(
    server: StubServer, session: Session, verb: Callable[[Session], object], answer: Reply, line: str, body: Any
) -> None:
    server.script(answer)
    verb(session)
    method, _, rest = line.partition(" ")
    assert server.lines == [f"{method} /v1/sessions/s1{'' if rest[:1] in ('', '?') else '/'}{rest}"]
    assert (server.last.json if server.last.body else None) == body
    if server.last.method in ("POST", "PATCH"):
        assert server.last.key
    if server.last.body:
        assert server.last.headers["content-type"] == "application/json"


def test_update_and_refresh_renew_the_fields(server: StubServer, session: Session) -> None:
    server.script(
        make_json_reply(samples.make_session(seq=2, agent="B")), make_json_reply(samples.make_session(seq=3, agent="C"))
    )
    assert session.update(agent="B", if_match=1) is session
    assert server.last.headers["if-match"] == '"1"'
    assert (session.seq, session.agent) == (2, "B")
    assert (session.refresh().seq, session.agent) == (3, "C")


def test_cancel_without_run_targets_active(server: StubServer, session: Session) -> None:
    cancelled = samples.make_run(status="cancelled")
    server.script(
        make_json_reply(samples.make_session(active_run_id="r9")),
        make_json_reply(cancelled),
        make_json_reply(samples.make_session()),
    )
    run = session.cancel()
    assert run is not None
    assert run.status == "cancelled"
    assert server.lines[1] == "POST /v1/sessions/s1/runs/r9/cancel"
    assert session.cancel() is None


def test_unknown_option_refused_before_sending(server: StubServer, session: Session) -> None:
    with pytest.raises(TypeError, match="modle"):
        session.run("Hi", modle="gpt")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="aprovals"):
        session.resume("r1", aprovals=[])  # type: ignore[call-arg]
    assert server.received == []


def test_sessions_are_made_with_everything_given(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session()))
    body = {
        "id": "s1",
        "agent": "A",
        "context_variables": {"a": 1},
        "metadata": {"b": None},
        "messages": [{"role": "user", "content": "Hi"}],
    }
    client.sessions.create(**body)
    assert server.last.json == body


def reply_with_page(request: ReceivedRequest) -> Reply:
    """Six things on three pages; the cursor is the first thing of the next page."""
    first = int(request.query.get("cursor", 0))
    following = str(first + 2) if first < 4 else None
    if request.path.endswith("/events"):
        return make_json_reply(samples.make_page([samples.make_event(first + i + 1, "x") for i in range(2)], following))
    return make_json_reply(samples.make_page([samples.make_session(id=f"s{first + i}") for i in range(2)], following))


def test_lists_fetch_pages_lazily(server: StubServer, client: Client) -> None:
    server.answer = reply_with_page
    found = client.sessions.list(agent="A b", status="idle", metadata={"k&y": "ä", "n": 1, "t": True}, page_size=2)
    assert isinstance(next(found), Session)
    assert len(server.received) == 1
    assert [session.id for session in found] == ["s1", "s2", "s3", "s4", "s5"]
    filters = {"agent": "A b", "status": "idle", "metadata.k&y": "ä", "metadata.n": "1", "metadata.t": "true"}
    pages: list[dict[str, str]] = [{}, {"cursor": "2"}, {"cursor": "4"}]
    assert [request.query for request in server.received] == [filters | {"limit": "2"} | page for page in pages]


def test_list_has_contexts_only_if_asked(server: StubServer, client: Client) -> None:
    bare = {name: value for name, value in samples.make_session().items() if name != "context_variables"}
    server.answer = lambda request: make_json_reply(samples.make_page([bare]))
    assert [session.context_variables for session in client.sessions.list()] == [{}]
    list(client.sessions.list(include="context_variables"))
    assert [request.query for request in server.received] == [{}, {"include": "context_variables"}]


def test_list_order_is_requested(server: StubServer, client: Client) -> None:
    listed = {**samples.make_session(), "last_run_status": "failed"}
    server.answer = lambda request: make_json_reply(samples.make_page([listed]))
    found = client.sessions.list(last_run="failed", order="activity")
    assert [session.last_run_status for session in found] == ["failed"]
    assert [request.query for request in server.received] == [{"last_run": "failed", "order": "activity"}]


def test_a_search_says_where(server: StubServer, client: Client) -> None:
    match = {"seq": 2, "snippet": "a refund", "ranges": [[2, 8]]}
    listed = {**samples.make_session(), "title": "How it began", "matches": [match]}
    server.answer = lambda request: make_json_reply(samples.make_page([listed]))
    (found,) = client.sessions.list(q="refund", active_after="2026-01-01", active_before="2026-02-01")
    (place,) = found.matches
    assert (found.title, place.seq, [place.snippet[begin:end] for begin, end in place.ranges]) == (
        "How it began",
        2,
        ["refund"],
    )
    asked = {"q": "refund", "active_after": "2026-01-01", "active_before": "2026-02-01"}
    assert [request.query for request in server.received] == [asked]


@pytest.mark.parametrize(
    ("session_id", "path"),
    [("a:b_c.d-1", "a:b_c.d-1"), ("..", "%2E%2E"), (".", "%2E"), ("a/../b", "a%2F..%2Fb"), ("ü?#", "%C3%BC%3F%23")],
)
def test_ids_form_one_path_segment(server: StubServer, client: Client, session_id: str, path: str) -> None:
    server.script(make_json_reply(samples.make_session(id=session_id)))
    client.sessions.get(session_id)
    assert server.last.raw_path == f"/v1/sessions/{path}"


@pytest.mark.parametrize("name", ["Triage Agent", "a/b", "Ägent?", "100%", "..", "a+b&c=d#e", "%2F"])
def test_agents_have_any_name(server: StubServer, client: Client, name: str) -> None:
    server.script(make_json_reply({"name": name, "model": "m", "tools": [], "handoffs": ["Refunds Agent"]}))
    assert client.agents.get(name).name == name
    assert server.last.path == f"/v1/agents/{name}"
    assert server.last.raw_path.count("/") == 3


def test_empty_id_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="empty"):
        client.sessions.get("")


def test_agents_are_listed(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_page([{"name": "A", "instructions": "Be kind."}, {"name": "B"}])))
    assert client.agents.list() == [AgentInfo(name="A", instructions="Be kind."), AgentInfo(name="B")]


def test_agent_told_with_server_details(server: StubServer, client: Client) -> None:
    said = {"name": "A", "asks": {"ask_b": "B"}, "concurrent_tools": ["look"], "mcp_servers": [{"name": "files"}]}
    server.script(make_json_reply(said))
    agent = client.agents.get("A")
    assert (agent.asks, agent.concurrent_tools) == ({"ask_b": "B"}, ["look"])
    assert agent.mcp_servers == [MCPServerInfo(name="files")]


def test_health_is_told_and_not_raised(server: StubServer, client: Client) -> None:
    server.script(make_json_reply({"status": "ready"}), make_problem_reply(503, "draining"))
    assert client.health().ready
    health = client.health()
    assert (health.ready, health.detail["code"]) == (False, "draining")
    assert server.lines == ["GET /health/ready"] * 2


def test_newer_server_answers_are_read(server: StubServer, session: Session) -> None:
    server.script(
        make_json_reply(samples.make_run(mood="good", status="dreaming")),
        make_json_reply(samples.make_session(colour="blue")),
    )
    assert session.run("Hi").status == "dreaming"
    assert session.state().id == "s1"


def test_lists_are_iterators(server: StubServer, session: Session, async_client: AsyncClient) -> None:
    assert isinstance(session.events(), Iterator)
    assert isinstance(async_client.sessions.list(), AsyncIterator)
    assert Event.__struct_fields__ == (
        "session_id", "seq", "type", "version", "run_id", "agent", "at", "data", "hash",
    )  # fmt: skip
