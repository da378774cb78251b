"""A stream gives each durable event once, in order, however often its connection breaks."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing

import pytest
from httpx2 import ServerSentEvent

from swarmkeep_client import (
    ApiError,
    Approval,
    AsyncClient,
    AsyncSession,
    ChangedSession,
    Client,
    ConnectionFailed,
    Done,
    Event,
    InvalidRequest,
    MessageDelta,
    MessageStarted,
    RunFailed,
    RunNotFound,
    Session,
    SessionBusy,
    SessionChanges,
    SessionNotFound,
    StreamItem,
    Unauthenticated,
)
from swarmkeep_client._retries import LONGEST_PAUSE_SECONDS, Retries
from swarmkeep_client._streams import GOOD_AFTER_SECONDS, EventStream
from swarmkeep_client._wire import LostAnswer
from tests.client import samples
from tests.client.conftest import RecordedSleeps
from tests.client.samples import delta_frame, done_frame, durable_frame, make_event, passing_frame, started_frame
from tests.client.stub_server import (
    DROPPED,
    ReceivedRequest,
    Reply,
    StubServer,
    make_chunked_sse_reply,
    make_json_reply,
    make_problem_reply,
    make_sse_reply,
)

PING = b": ping\n\n"
START = durable_frame(make_event(2, "run.started"))
USER = durable_frame(make_event(3, "message.added", data={"message": {"role": "user", "content": "¿Qué?"}}))
REPLY = durable_frame(make_event(4, "message.added", data={"message": {"role": "assistant", "content": "👋"}}))
END = durable_frame(make_event(5, "run.completed"))
DONE = done_frame(samples.make_run())
RECORDED = [START, USER, PING, started_frame(), delta_frame("👋"), REPLY, END, DONE]
TYPES = ["run.started", "message.added", "message.started", "message.delta", "message.added", "run.completed", "done"]


@pytest.fixture
async def async_session(server: StubServer, async_client: AsyncClient) -> AsyncSession:
    server.script(make_json_reply(samples.make_session()))
    session = await async_client.sessions.get("s1")
    server.received.clear()
    return session


def list_types(items: Iterable[StreamItem]) -> list[str]:
    return [item.type for item in items]


def list_seqs(items: Iterable[StreamItem]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Event)]


def replies_after(seq: int | None) -> list[bytes]:
    """What a server sends to a reader that has seen `seq`: the durable frames after it, and all passing ones."""
    return [frame for frame in RECORDED if not frame.startswith(b"id: ") or int(frame.split()[1]) > (seq or 0)]


def cut_once_after(count: int, reply: Callable[..., Reply]) -> Callable[[ReceivedRequest], Reply]:
    """A server whose first answer breaks off after `count` bytes of the stream, and which is well afterwards."""
    answers = 0

    def answer(request: ReceivedRequest) -> Reply:
        nonlocal answers
        answers += 1
        text = b"".join(replies_after(request.last_event_id))
        return reply(text[:count]) if answers == 1 else reply(text)

    return answer


def assert_complete(items: list[StreamItem]) -> None:
    assert list_seqs(items) == [2, 3, 4, 5]
    assert list_types(items)[-1] == "done"
    shown = ""
    for item in items:
        if isinstance(item, MessageStarted):
            shown = ""
        elif isinstance(item, MessageDelta):
            shown += item.content or ""
    assert shown in ("👋", "")


def test_stream_gives_events_deltas_and_run(server: StubServer, session: Session) -> None:
    server.script(make_sse_reply(*RECORDED))
    items = list(session.stream("¿Qué?", max_turns=3))
    assert list_types(items) == TYPES
    assert [item.content for item in items if isinstance(item, MessageDelta)] == ["👋"]
    assert isinstance(items[0], Event)
    assert (items[0].seq, items[0].run_id, items[0].agent, items[0].hash) == (2, "r1", "Triage Agent", "h2")
    assert isinstance(items[-1], Done)
    assert items[-1].run.output_text == "Hello, John."
    assert server.lines == ["POST /v1/sessions/s1/runs"]
    assert server.last.json == {"input": "¿Qué?", "stream": True, "max_turns": 3}
    assert server.last.headers["accept"] == "text/event-stream"


@pytest.mark.long
@pytest.mark.parametrize(
    ("reply", "step"), [(make_sse_reply, 1), (make_chunked_sse_reply, 7)], ids=["plain", "chunked"]
)
def test_stream_cut_at_bytes_gives_events_once(
    server: StubServer, session: Session, reply: Callable[..., Reply], step: int
) -> None:
    for count in range(0, len(b"".join(RECORDED)), step):
        server.received.clear()
        server.answer = cut_once_after(count, reply)
        items = list(session.stream("¿Qué?"))
        assert_complete(items)
        first, second = server.received
        assert first.method == "POST"
        if count < len(START):
            assert (second.method, second.key, second.body) == ("POST", first.key, first.body)
        else:
            assert second.target == "/v1/sessions/s1/runs/r1/stream"
            assert second.last_event_id in (2, 3, 4, 5)


def test_repeating_server_is_heard_once(server: StubServer, session: Session) -> None:
    for count in range(0, len(b"".join(RECORDED)), 37):
        text = b"".join(RECORDED)
        server.script(make_sse_reply(text[:count]), make_sse_reply(text))
        assert_complete(list(session.stream("¿Qué?")))


def test_stream_cut_at_events_gives_each_once(server: StubServer, session: Session) -> None:
    def up_to_the_next_event(request: ReceivedRequest) -> Reply:
        frames = replies_after(request.last_event_id)
        events = [index for index, frame in enumerate(frames) if frame.startswith(b"id: ")]
        return make_sse_reply(*frames[: events[0] + 1]) if events else make_sse_reply(*frames)

    server.answer = up_to_the_next_event
    assert_complete(list(session.stream("¿Qué?")))
    assert [request.last_event_id for request in server.received] == [None, 2, 3, 4, 5]


def test_cut_message_begins_again(server: StubServer, session: Session) -> None:
    server.script(
        make_sse_reply(START, started_frame(), delta_frame("Hel")),
        make_sse_reply(delta_frame("Hel"), delta_frame("lo"), REPLY, DONE),
    )
    assert list_types(session.stream("Hi")) == [
        "run.started",
        "message.started",
        "message.delta",
        "message.started",
        "message.delta",
        "message.delta",
        "message.added",
        "done",
    ]


def test_run_joined_after_only_a_delta(server: StubServer, session: Session) -> None:
    server.script(make_sse_reply(started_frame(), delta_frame("x")), make_sse_reply(*RECORDED))
    assert list_seqs(session.stream("Hi")) == [2, 3, 4, 5]
    assert server.lines[1] == "GET /v1/sessions/s1/runs/r1/stream"
    assert server.last.last_event_id is None


def test_interrupted_run_events_ignored(server: StubServer, session: Session) -> None:
    stopped = durable_frame(make_event(2, "run.cancelled", run_id="r0"))
    server.script(make_sse_reply(stopped), make_sse_reply(stopped, durable_frame(make_event(3, "run.started")), DONE))
    assert list_seqs(session.stream("Hi", on_busy="interrupt")) == [2, 3]
    assert server.received[0].key == server.received[1].key


def test_early_dropped_connection_retried_with_key(
    server: StubServer, session: Session, sleeps: RecordedSleeps
) -> None:
    server.script(DROPPED, make_problem_reply(503, "draining", {"retry-after": "2"}), make_sse_reply(*RECORDED))
    assert list_types(session.stream("Hi")) == TYPES
    assert len({request.key for request in server.received}) == 1
    assert len({request.body for request in server.received}) == 1
    assert sleeps.seconds[1] >= 2


def test_unresumable_stream_fails(server: StubServer, session: Session, sleeps: RecordedSleeps) -> None:
    server.answer = lambda request: make_sse_reply(START if request.method == "POST" else PING)
    stream = session.stream("Hi")
    assert next(stream).type == "run.started"
    with pytest.raises(ConnectionFailed, match="ended before its last frame") as failed:
        next(stream)
    assert "/v1/sessions/s1/runs/r1/stream" in failed.value.detail
    assert len(sleeps.seconds) <= 10


def test_silent_connection_dropped_and_resumed(server: StubServer, sleeps: RecordedSleeps) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        if request.target == "/v1/sessions/s1":
            return make_json_reply(samples.make_session())
        if request.last_event_id is None:
            return make_sse_reply(START, then="silence")
        return make_sse_reply(*replies_after(request.last_event_id))

    server.answer = answer
    with Client(server.url, stream_idle_seconds=0.2, sleep=sleeps.sleep) as client:
        assert list_seqs(client.sessions.get("s1").stream("Hi")) == [2, 3, 4, 5]
    assert server.last.last_event_id == 2


def test_refusal_to_start_is_raised(server: StubServer, session: Session) -> None:
    server.script(make_problem_reply(409, "session_busy", active_run_id="r0"))
    with pytest.raises(SessionBusy) as refused:
        next(session.stream("Hi"))
    assert refused.value.active_run_id == "r0"


def test_resumption_refusal_is_raised(server: StubServer, session: Session) -> None:
    server.script(make_sse_reply(START), make_problem_reply(404, "run_not_found"))
    stream = session.stream("Hi")
    next(stream)
    with pytest.raises(RunNotFound):
        next(stream)


def test_in_stream_refusal_is_raised(server: StubServer, session: Session) -> None:
    server.script(
        make_sse_reply(START, passing_frame("error", {"status": 404, "code": "session_not_found", "detail": "gone"}))
    )
    stream = session.stream("Hi")
    next(stream)
    with pytest.raises(SessionNotFound, match="gone"):
        next(stream)


@pytest.mark.parametrize("frame", [b"id: 3\nevent: x\ndata: {\n\n", b"id: 3\nevent: x\ndata: []\n\n"])
def test_senseless_frame_is_error(server: StubServer, session: Session, frame: bytes) -> None:
    server.script(make_sse_reply(START, frame))
    stream = session.stream("Hi")
    next(stream)
    with pytest.raises(ApiError) as failed:
        next(stream)
    assert failed.value.code == "unexpected_answer"


def test_non_stream_answer_is_error(server: StubServer, session: Session) -> None:
    server.script(make_json_reply(samples.make_run()))
    with pytest.raises(ApiError, match="application/json"):
        next(session.stream("Hi"))


def test_failed_run_is_raised_after_done(server: StubServer, session: Session) -> None:
    server.script(make_sse_reply(START, done_frame(samples.make_failed_run())))
    stream = session.stream("Hi")
    assert [next(stream).type, next(stream).type] == ["run.started", "done"]
    with pytest.raises(RunFailed) as failed:
        next(stream)
    assert (failed.value.error.code, failed.value.run.id) == ("provider_error", "r1")


def test_newer_server_additions_ignored(server: StubServer, session: Session) -> None:
    server.script(
        make_sse_reply(
            passing_frame("message.thought", {"text": "hm"}),
            durable_frame(make_event(2, "run.dreamt", weather="fine", data=["anything"])),
            passing_frame("message.started", {"run_id": "r1", "agent": "A", "mood": "good"}),
            DONE,
        )
    )
    items = list(session.stream("Hi"))
    assert list_types(items) == ["run.dreamt", "message.started", "done"]


def test_reader_that_stops_closes_the_connection(server: StubServer, session: Session) -> None:
    endless = make_sse_reply(*RECORDED[:5], then="silence")
    server.script(endless)
    for item in session.stream("Hi"):
        if item.type == "message.delta":
            break
    assert endless.gone.wait(5)


async def test_async_abandoned_reader_leaves_nothing(
    server: StubServer, async_client: AsyncClient, async_session: AsyncSession
) -> None:
    endless = make_sse_reply(*RECORDED[:5], then="silence")
    server.script(endless)
    async for item in async_session.stream("Hi"):
        if item.type == "message.delta":
            break
    await async_client.close()
    gc.collect()
    assert endless.gone.wait(5)


def test_stream_in_a_thousand_pieces(server: StubServer, session: Session) -> None:
    text = "wörd 👋 " * 20_000
    big = durable_frame(make_event(3, "message.added", data={"message": {"role": "user", "content": text}}))
    pieces = [big[i : i + 1_000] for i in range(0, len(big), 1_000)]
    server.script(make_chunked_sse_reply(START, *pieces, DONE, complete=True))
    items = list(session.stream("Hi"))
    assert isinstance(items[1], Event)
    assert items[1].data["message"]["content"] == text


def test_resumed_run_streamed_after_last_event(server: StubServer, session: Session) -> None:
    resumed, ended = durable_frame(make_event(8, "run.resumed")), durable_frame(make_event(9, "run.completed"))
    server.script(DROPPED, make_sse_reply(started_frame()), make_sse_reply(resumed), make_sse_reply(ended, DONE))
    approval: Approval = {"tool_call_id": "c1", "decision": "approve", "arguments_digest": "ab" * 32}
    stream = session.resume_stream("r1", approvals=[approval])
    assert list_types(stream) == ["message.started", "run.resumed", "run.completed", "done"]
    resume = "POST /v1/sessions/s1/runs/r1/resume"
    assert server.lines == [resume, resume, resume, "GET /v1/sessions/s1/runs/r1/stream"]
    assert len({request.key for request in server.received[:3]}) == 1
    assert server.received[0].json == {"approvals": [approval], "stream": True}
    assert server.last.last_event_id == 8


def test_run_joined_from_start_or_event(server: StubServer, session: Session) -> None:
    server.script(make_sse_reply(*RECORDED), make_sse_reply(END), make_sse_reply(END, DONE))
    assert list_types(session.join("r1")) == TYPES
    assert server.last.last_event_id is None
    assert list_types(session.join("r1", after=4)) == ["run.completed", "done"]
    assert [request.last_event_id for request in server.received] == [None, 4, 5]


def make_frames_after(received: ReceivedRequest) -> Reply:
    """A log that grows by one event whenever somebody connects, and breaks off after each."""
    seq = int(received.query["after"])
    assert received.last_event_id == seq
    known = [durable_frame(make_event(number, "message.added")) for number in range(max(1, seq), seq + 2)]
    return make_sse_reply(PING, started_frame(), *known)


def test_session_is_followed_over_broken_connections(server: StubServer, session: Session) -> None:
    server.answer = make_frames_after
    follow = session.follow(after=3, type="message.added")
    assert [next(follow).seq for _ in range(5)] == [4, 5, 6, 7, 8]
    follow.close()
    assert server.received[0].query == {"after": "3", "type": "message.added"}
    assert server.received[0].headers["accept"] == "text/event-stream"


async def test_session_changes_followed_over_broken_connections(
    server: StubServer, client: Client, async_client: AsyncClient
) -> None:
    begin = passing_frame("sessions.changed", {"sessions": [], "deleted": [], "more": True})
    changed = {"id": "s1", "status": "idle", "last_run_status": "failed", "added_later": 1}
    told = passing_frame("sessions.changed", {"sessions": [changed], "deleted": ["s2"], "more": False})
    expected = [
        SessionChanges(more=True),
        SessionChanges(sessions=(ChangedSession(id="s1", status="idle", last_run_status="failed"),), deleted=("s2",)),
        SessionChanges(more=True),
    ]
    server.script(make_sse_reply(begin, told), make_sse_reply(begin), make_problem_reply(401, "unauthenticated"))
    follow = client.sessions.follow()
    assert [next(follow) for _ in range(3)] == expected
    with pytest.raises(Unauthenticated):
        next(follow)
    assert {(one.path, one.headers["accept"]) for one in server.received} == {("/v1/sessions", "text/event-stream")}
    server.script(make_sse_reply(begin, told), make_sse_reply(begin))
    async with aclosing(async_client.sessions.follow()) as items:
        assert [await anext(items) for _ in range(3)] == expected


def make_feed_after(received: ReceivedRequest) -> Reply:
    """A feed that grows by one event whenever somebody connects, and breaks off after each."""
    if received.query.get("after") == "end":
        return make_json_reply({"data": [], "next_cursor": "7-0"})
    seen = received.headers.get("last-event-id")
    place = int((seen or received.query["after"]).partition("-")[0]) + (seen is not None)
    event = {"session_id": "s1", "seq": 1, "type": "a", "data": None, "cursor": f"{place}-1"}
    return make_sse_reply(PING, f"id: {event['cursor']}\nevent: a\ndata: {json.dumps(event)}\n\n".encode())


async def test_feed_is_followed_over_broken_connections(
    server: StubServer, client: Client, async_client: AsyncClient
) -> None:
    server.answer = make_feed_after
    follow = client.feed.follow(after="end", type="a", agent=["x", "y"], metadata={"k": "v"})
    assert [next(follow).cursor for _ in range(4)] == ["7-1", "8-1", "9-1", "10-1"]
    follow.close()
    first, second, third = server.lines[:3]
    assert first == "GET /v1/events?after=end&metadata.k=v&type=a&agent=x&agent=y"
    assert second == third == "GET /v1/events?after=7-0&metadata.k=v&type=a&agent=x&agent=y"
    async with aclosing(async_client.feed.follow(after="3-0")) as events:
        assert [(await anext(events)).cursor for _ in range(3)] == ["3-1", "4-1", "5-1"]
    server.answer = None
    server.script(make_sse_reply(), make_problem_reply(400, "invalid_request"))
    with pytest.raises(InvalidRequest):
        next(client.feed.follow(after="9-0"))


def test_recreated_session_streams_from_beginning(server: StubServer, session: Session) -> None:
    old = [durable_frame(make_event(seq, "context.updated", hash=f"old {seq}")) for seq in (4, 5)]
    new = [durable_frame(make_event(seq, "context.updated", hash=f"new {seq}")) for seq in (1, 2, 3, 4, 5, 6)]
    server.script(make_sse_reply(*old), make_sse_reply(*new), make_sse_reply(new[-1], new[0]))
    follow = session.follow(after=3)
    assert [next(follow).seq for _ in range(9)] == [4, 5, 1, 2, 3, 4, 5, 6, 1]
    follow.close()
    assert [request.query["after"] for request in server.received[-3:]] == ["3", "5", "6"]


def test_following_ends_with_the_session(server: StubServer, session: Session) -> None:
    server.script(
        make_sse_reply(durable_frame(make_event(1, "session.created"))), make_problem_reply(404, "session_not_found")
    )
    follow = session.follow()
    assert next(follow).seq == 1
    with pytest.raises(SessionNotFound):
        next(follow)


def test_quiet_connections_keep_the_retries() -> None:
    now = 0.0
    tail = EventStream("s1", Retries(1), after=0, type=None, clock=lambda: now)
    for _ in range(5):
        assert tail.accept(200, "text/event-stream")
        now += GOOD_AFTER_SECONDS
        tail.handle_interruption(LostAnswer("cut"))
    tail.accept(200, "text/event-stream")
    assert pause_until_given_up(tail)


LEASE_SECONDS, TAKE_OVER_SECONDS = 15.0, 2.0


def pause_until_given_up(stream: EventStream) -> list[float]:
    """The pauses of a stream whose server is gone and stays away."""
    pauses: list[float] = []
    while len(pauses) < 100:
        try:
            pauses.append(stream.handle_interruption(LostAnswer("refused")))
        except ConnectionFailed:
            break
    return pauses


@pytest.mark.parametrize(("limit", "chance"), [(1, 0.0), (3, 0.0), (3, 1.0), (8, 0.0)])
def test_established_stream_outlives_take_over(limit: int, chance: float) -> None:
    stream = EventStream("s1", Retries(limit, chance=lambda: chance), after=0, type=None, clock=lambda: 0.0)
    stream.accept(200, "text/event-stream")
    first = pause_until_given_up(stream)
    assert sum(first) >= LEASE_SECONDS + TAKE_OVER_SECONDS
    assert max(first) <= LONGEST_PAUSE_SECONDS
    assert len(first) <= max(limit, 10)
    stream.accept(200, "text/event-stream")
    assert list(
        stream.read_frame(ServerSentEvent("session.created", json.dumps(make_event(1, "session.created")), "1"))
    )
    assert pause_until_given_up(stream) == first


def test_unestablished_stream_fails_like_any_request() -> None:
    never = EventStream("s1", Retries(3, chance=lambda: 1.0), after=0, type=None, clock=lambda: 0.0)
    assert pause_until_given_up(never) == [0.5, 1.0, 2.0]
    once = EventStream("s1", Retries(0), after=0, type=None, clock=lambda: 0.0)
    once.accept(200, "text/event-stream")
    assert pause_until_given_up(once) == []


def test_events_carry_text_and_numbers_exactly(server: StubServer, session: Session) -> None:
    data = {"text": "a\0b\ud800\u2028", "number": 2**80, "small": -0.0}
    text = json.dumps(make_event(2, "x", data=data)).encode()
    server.script(make_sse_reply(b"id: 2\nevent: x\ndata: " + text + b"\n\n", DONE))
    items: Iterator[StreamItem] = session.stream("Hi")
    first = next(items)
    assert isinstance(first, Event)
    assert json.dumps(first.data) == json.dumps(data)
    assert list_types(items) == ["done"]
