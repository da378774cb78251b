"""Input of callers: refused where it is wrong or too large, and by name; and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import settings
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent.values import MAX_DEPTH
from swarmkeep.decide.checks import check_id, check_messages, check_new_id
from swarmkeep.decide.commands import StartRun, start_queued, start_run
from swarmkeep.decide.drafts import apply_drafts, draft_events, preview_event
from swarmkeep.decide.settle import finish_import
from swarmkeep.decide.turns import Trip, end_run, find_new_input, refuse_input
from swarmkeep.events.chain import Chain
from swarmkeep.events.codec import Json, decode, encode_text
from swarmkeep.events.errors import InvalidRequest, TooLarge
from swarmkeep.events.facts import (
    ContextUpdated,
    MessageAdded,
    MessageRemoved,
    RecordedEvent,
    RunCompleted,
    RunStarted,
    SessionCreated,
    SessionUpdated,
    decode_fact,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.records import CallerFunction, CallerTool, ToolRecord
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.sizes import SizeLimits, is_heavy
from swarmkeep.events.state import State
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    THIRD,
    active_run,
    answer_message,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_answer,
    model_reply,
    run_queued,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs


def make_deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user"}, "/content"),
        ({"role": "system", "content": None}, "/content"),
        ({"role": "developer"}, "/content"),
        ({"role": "tool", "tool_call_id": "c1"}, "/content"),
        ({"role": "tool", "content": "42"}, "/tool_call_id"),
        ({"role": "tool", "content": "42", "tool_call_id": ""}, "/tool_call_id"),
        ({"role": "narrator", "content": "x"}, "/role"),
        ({"role": "user", "content": "x", "extra": make_deep(MAX_DEPTH)}, ""),
        ({"role": "user", "content": "x", "extra": float("nan")}, ""),
        ({"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f"}}]},
         "/tool_calls/0/function/arguments"),
    ],
)  # fmt: skip
def test_invalid_message_refused_by_place(message: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_messages([{"role": "user", "content": "hello"}, message], "/input")
    (error,) = refused.value.errors
    assert error["pointer"] == f"/input/1{place}"


def test_messages_are_kept_as_they_came() -> None:
    sent: list[Any] = [
        {"role": "assistant", "content": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42", "seq": 7},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    assert check_messages(sent, "/input", 3) == tuple(sent)
    assert check_messages("hello", "/input", 1) == ({"role": "user", "content": "hello"},)
    with pytest.raises(TooLarge, match="/input has more than 2 messages"):
        check_messages(sent, "/input", 2)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 129, "a\n"])
def test_what_is_no_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="an id must have 1 to 128"):
        check_id(name)


def test_asked_session_ids_are_reserved() -> None:
    assert [check_new_id(name) for name in ("...", "x" * 128, "subsess")] == ["...", "x" * 128, "subsess"]
    with pytest.raises(InvalidRequest, match="reserved"):
        check_new_id("subsess_1")
    assert check_id("subsess_1") == "subsess_1"


# What may become of a session's context, metadata and messages is bounded; what is too large already may shrink.

# {"a":"…"} has eight bytes and the text's.
LIMITS = SizeLimits(max_context_bytes=20, max_metadata_bytes=20, max_message_bytes=60)


def put(name: str, size: int) -> dict[str, Any]:
    return {name: "x" * (size - 8)}


def queue(run_id: str, context: dict[str, Any]) -> Any:
    return run_queued(run_id, context_variables=context)


def test_exact_size_limit_is_accepted() -> None:
    before = given()
    LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 20)), SessionUpdated(metadata=put("a", 20))))
    for fact, name in (
        (ContextUpdated(patch=put("a", 21)), "CONTEXT"),
        (SessionUpdated(metadata=put("a", 21)), "META"),
    ):
        with pytest.raises(TooLarge, match=f"SWARMKEEP_MAX_{name}"):
            LIMITS.check_change(before, when(before, fact))


def test_oversized_context_may_only_shrink() -> None:
    before = given(ContextUpdated(patch=put("a", 30)))
    LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 29))))
    LIMITS.check_change(before, when(before, SessionUpdated(metadata=put("a", 20))))
    with pytest.raises(TooLarge, match="31 bytes"):
        LIMITS.check_change(before, when(before, ContextUpdated(patch=put("a", 31))))


def test_queued_runs_add_to_context_size() -> None:
    state = given(ContextUpdated(patch=put("a", 10)))
    patch = {"b": "x" * 2}
    LIMITS.check_run_context(state, patch)
    LIMITS.check_run_context(when(state, queue(OTHER, {"a": None})), patch)
    filled = when(state, queue(OTHER, {"c": 1}), queue(THIRD, {"d": 1}))
    LIMITS.check_run_context(filled, {})
    with pytest.raises(TooLarge, match="SWARMKEEP_MAX_CONTEXT_BYTES"):
        LIMITS.check_run_context(filled, patch)


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ({"role": "user", "content": "x" * 32, "sender": "y" * 100}, True),
        ({"role": "user", "content": "x" * 33, "sender": "y"}, False),
        ({"role": "tool", "tool_call_id": "c" * 100, "content": "x" * 58}, True),
        ({"role": "tool", "tool_call_id": "c", "content": "x" * 59}, False),
        ({"role": "tool", "tool_call_id": "c", "content": None}, True),
        ({"role": "assistant", "content": "x" * 100}, True),
    ],
)
def test_imported_context_is_measured_as_sent(message: dict[str, Any], fits: bool) -> None:
    state: State = given(MessageAdded(message=message))
    if fits:
        LIMITS.check_session(state)
    else:
        with pytest.raises(TooLarge, match=r"at seq 2 .*SWARMKEEP_MAX_MESSAGE_BYTES"):
            LIMITS.check_session(state)


# What is heavy is known without all of it being looked at.


@pytest.mark.parametrize(
    "value",
    [None, 1, "x" * 1000, [1] * 1000, {"a": {"b": ["c"]}}, MessageAdded(message={"role": "user", "content": "x"})],
)
def test_what_is_small_is_light(value: Any) -> None:
    assert not is_heavy(value)


@pytest.mark.parametrize("size", [1_000_000])
def test_long_text_or_many_values_are_heavy(size: int) -> None:
    wide = {str(number): None for number in range(3_000)}
    for value in ("x" * size, [None] * size, wide, {"a": [wide]}, [["x" * 1000]] * 1000):
        assert is_heavy(value)
        assert is_heavy(1, [value])
        assert is_heavy(MessageAdded(message={"role": "user", "content": value}))


def test_many_small_values_are_heavy_together() -> None:
    assert is_heavy(*[[1, 2, 3]] * 1000)


@pytest.mark.long
def test_heavy_values_are_not_read_on() -> None:
    seen = []

    class Noting(list[Any]):
        def __iter__(self) -> Any:
            seen.append(len(self))
            return super().__iter__()

    assert is_heavy([Noting([1]) for _ in range(1_000_000)])
    assert seen == []


# Where a run's request stands in its trace is kept with the run, and only where there is a trace.

FIRST = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECOND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def make_command(run_id: str, **given: Any) -> StartRun:
    return StartRun(run_id=run_id, messages=({"role": "user", "content": "hi"},), **given)


def start(command: StartRun, state: State | None = None) -> State:
    if state is None:
        state = apply_drafts(State(), draft_events("A", [SessionCreated(agent="A")], None))
    return apply_drafts(state, start_run(state, command))


def test_run_knows_its_request_trace() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    assert state.run.traceparent == FIRST


def test_queued_run_keeps_its_request_trace() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    state = start(make_command("r2", traceparent=SECOND, on_busy="queue"), state)
    assert state.run is not None
    state = apply_drafts(state, draft_events("A", end_run(state, state.run, RunCompleted, "end_turn"), "r1"))
    state = apply_drafts(state, start_queued(state))
    assert (state.run.id, state.run.traceparent) == ("r2", SECOND)


def test_untraced_events_keep_their_old_form() -> None:
    (started, _) = start_run(State(agent="A"), make_command("r1"))
    text = encode_text(started.fact)
    assert list(decode(text)) == ["options", "idempotency_key"]
    fact = decode_fact(RunStarted.type, text)
    assert isinstance(fact, RunStarted)
    assert fact.traceparent is UNSET


def test_a_redacted_run_leaves_its_trace() -> None:
    (started, _) = start_run(State(agent="A"), make_command("r1", traceparent=FIRST))
    event = preview_event(1, started, "2026-01-01T00:00:00.000Z")
    assert FIRST not in redact_payload(event)


def test_imported_traces_are_not_trusted() -> None:
    state = start(make_command("r1", traceparent=FIRST))
    state = start(make_command("r2", traceparent=SECOND, on_busy="queue"), state)
    state = apply_drafts(state, finish_import(state, source="export", digest="d", by=None))
    runs = [*state.finished, *([] if state.run is None else [state.run])]
    assert [run.traceparent for run in runs] == [UNSET] * 2
    assert list(state.queue) == []


# Which messages the guardrails of an agent's input are asked about.


def test_human_answer_vouches_for_nothing_earlier() -> None:
    state = given(
        make_run_started(),
        user_said("what no guardrail has seen"),
        MessageAdded(message=answer_message("One moment."), person="Ann"),
        COMPLETED,
        MessageAdded(message={"role": "user", "content": "be kind", "sender": "user"}, person="Ann"),
    )
    state = when(state, in_run(OTHER, make_run_started()), user_said("go on"))
    found = find_new_input(state, active_run(state), "triage")
    assert [entry.message["content"] for entry in found.entries] == ["what no guardrail has seen", "go on"]


def test_human_and_caller_input_is_checked() -> None:
    def said(role: str, content: str) -> MessageAdded:
        return MessageAdded(message={"role": role, "content": content, "sender": role})

    state = given(user_said("answered"), said("assistant", "an answer"), said("system", "rules"), user_said("gone"))
    state = when(state, MessageRemoved(message_seq=state.seq, seqs=(state.seq,)), said("tool", "a result"))
    state = when(state, user_said("before"), make_run_started(), said("developer", "more rules"), user_said("gone"))
    state = when(state, MessageRemoved(message_seq=state.seq, seqs=(state.seq,)), said("tool", "a result"))
    state = when(state, in_run(RUN, said("assistant", "put in its mouth")), in_run(RUN, user_said("asked")))
    found = find_new_input(state, active_run(state), "triage")
    assert [entry.message["content"] for entry in found.entries] == [
        "rules", "a result", "before", "more rules", "a result", "put in its mouth", "asked",
    ]  # fmt: skip
    assert [entry.message["content"] for entry in found.history] == ["answered", "an answer"]
    state = when(state, model_answer(), user_said("more"))
    assert [entry.message["content"] for entry in find_new_input(state, active_run(state), "triage").entries] == [
        "more"
    ]
    # Another agent has seen none of it.
    assert len(find_new_input(state, active_run(state), "refunds").entries) == 8


@pytest.mark.parametrize(
    "options", [{"execute_tools": False}, {"tools": (CallerTool(function=CallerFunction(name="look_up")),)}]
)
def test_error_is_checked_if_the_caller_delivers_it(options: dict[str, Any]) -> None:
    def add_failure(options: dict[str, Any]) -> State:
        asked = calling_message(tool_call("c1"))
        failed = replace(tool_result("c1", "what it said"), tool=ToolRecord(name="look_up", status="error"))
        return running(model_reply(asked), failed, **options)

    state, own = add_failure(options), add_failure({})
    assert [entry.message["content"] for entry in find_new_input(state, active_run(state), "triage").entries] == [
        "what it said"
    ]
    assert find_new_input(own, active_run(own), "triage").entries == ()


def test_refused_input_sequence_checked_once() -> None:
    state, counts = given(), []
    for number in range(40):
        run_id = f"run-{number}"
        state = when(state, in_run(run_id, make_run_started()), in_run(run_id, user_said("give me everything")))
        with count_calls() as counted:
            entries = find_new_input(state, active_run(state), "triage").entries
        counts.append(sum(count for code, count in counted.items() if code.co_name == "is_unsent"))
        assert [entry.message["content"] for entry in entries] == ["give me everything"]
        facts = refuse_input("triage", Trip(name="polite", message="No."), entries)
        ended = RunCompleted(stop_reason="guardrail")
        state = when(state, *(in_run(run_id, fact) for fact in (*facts, ended)))
    assert counts[2:] == counts[2:3] * 38


@given_any(any_logs())
@settings(max_examples=examples(200))
def test_new_input_independent_of_kept_history(log: list[RecordedEvent]) -> None:
    state = State()
    for event in log:
        state = fold([event], state)
        if state.run is not None:
            anew = replace(state, messages=Chain(state.messages))
            for agent in ("triage", state.agent):
                assert find_new_input(state, state.run, agent) == find_new_input(anew, state.run, agent)


# Parts that Chat Completions does not have become parts that it has, or are refused with their place.


TEXT = {"type": "text", "text": "x"}
PNG = "iVBORw0KGgo="
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
ADDRESS = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}


def convert(role: str, *parts: Json, **rest: Any) -> Json:
    (message,) = check_messages([{"role": role, "content": list(parts), **rest}], "/input")
    return message


@pytest.mark.parametrize(
    ("part", "converted"),
    [
        ({"type": "input_text", "text": "x"}, TEXT),
        ({"type": "output_text", "text": "x", "annotations": [], "logprobs": []}, TEXT),
        ({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, TEXT),
        ({"type": "text", "text": "x", "later": None}, TEXT),
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, ADDRESS),
        ({"type": "input_image", "image_url": "https://example.com/a.png"}, ADDRESS),
        ({"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
         {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, PICTURE),
        ({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}, ADDRESS),
        ({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
         {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
         {"type": "file", "file": {"filename": "document", "file_data": "data:application/pdf;base64,JVBERi0="}}),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav", "id": "a"}},
         {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    ],
)  # fmt: skip
def test_equivalent_parts_are_converted(part: Json, converted: Json) -> None:
    assert convert("user", TEXT, part)["content"] == [TEXT, converted]


@pytest.mark.parametrize(
    ("role", "part", "place"),
    [
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": "x"}, "/type"),
        ("user", TOOL_USE, "/type"),
        ("user", THOUGHT, "/type"),
        ("user", {"type": "refusal", "refusal": "no"}, "/type"),
        ("user", {"type": "video_url", "video_url": {"url": "data:,"}}, "/type"),
        ("user", {"type": ["text"]}, "/type"),
        ("user", {}, "/type"),
        ("user", {"type": "text"}, "/text"),
        ("user", {"type": "text", "text": None}, "/text"),
        ("user", {"type": "text", "text": "x", "colour": 1}, "/colour"),
        ("user", {"type": "image_url"}, "/image_url"),
        ("user", {"type": "image_url", "image_url": {}}, "/image_url/url"),
        ("user", {"type": "image_url", "image_url": {"url": 1}}, "/image_url/url"),
        ("user", {"type": "image_url", "image_url": {"url": "a", "detail": "most"}}, "/image_url/detail"),
        ("user", {"type": "image_url", "image_url": {"url": "a", "size": 1}}, "/image_url/size"),
        ("user", {"type": "input_audio", "input_audio": {"data": "AAAA"}}, "/input_audio/format"),
        ("user", {"type": "file", "file": {"filename": "a"}}, "/file/file_data"),
        ("user", {"type": "input_image", "file_id": "f"}, "/file_id"),
        ("user", {"type": "image", "source": {"type": "base64", "data": PNG}}, "/source"),
        ("user", {"type": "document", "source": {"type": "text", "data": "x"}}, "/source"),
        ("system", ADDRESS, "/type"),
        ("developer", {"type": "image", "source": {"type": "url", "url": "a"}}, "/type"),
        ("assistant", ADDRESS, "/type"),
        ("assistant", {"type": "refusal"}, "/refusal"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "x"}, "/input"),
        ("assistant", {"type": "tool_use", "id": "", "name": "f", "input": {}}, "/id"),
    ],
)  # fmt: skip
def test_foreign_parts_are_refused_with_place(role: str, part: Json, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        convert(role, {**TEXT}, part)
    assert refused.value.errors[0]["pointer"] == f"/input/0/content/1{place}"


def test_inline_calls_become_tool_calls() -> None:
    message = convert("assistant", THOUGHT, {"type": "text", "text": "l"}, TOOL_USE)
    assert message == {"role": "assistant", "content": [{"type": "text", "text": "l"}], "tool_calls": [CALL]}
    assert convert("assistant", TOOL_USE) == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert convert("assistant", TOOL_USE, tool_calls=[CALL])["tool_calls"] == [CALL]
    assert convert("assistant", THOUGHT)["content"] == ""


def test_pictures_beside_the_text_become_parts() -> None:
    (message,) = check_messages([{"role": "user", "content": "see", "images": [PNG]}], "/input")
    assert message == {"role": "user", "content": [{"type": "text", "text": "see"}, PICTURE]}
    assert check_messages([{"role": "user", "content": "see", "images": []}], "/input")[0] == {
        "role": "user", "content": "see",
    }  # fmt: skip
    for role, images in (("user", PNG), ("user", [1]), ("assistant", [PNG])):
        with pytest.raises(InvalidRequest) as refused:
            check_messages([{"role": role, "content": "see", "images": images}], "/input")
        assert refused.value.errors[0]["pointer"] == "/input/0/images"


def test_chat_completion_parts_stay() -> None:
    parts: list[Json] = [
        {"text": "x", "type": "text"},
        {"image_url": {"detail": "high", "url": "https://example.com"}, "type": "image_url"},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    message = {"role": "user", "content": parts}
    assert check_messages([message], "/input")[0]["content"] == parts
    assert [list(part) for part in convert("user", *parts)["content"]] == [list(part) for part in parts]
