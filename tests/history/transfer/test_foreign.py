"""Conversations from elsewhere become sessions that can go on."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import DomainError, InvalidImport, SessionExists
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.sizes import SizeLimits
from swarmkeep.events.state import State
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.foreign.assistants import read_threads
from swarmkeep.history.foreign.chats import read_chats
from swarmkeep.history.foreign.conversation import ForeignConversation
from swarmkeep.history.foreign.documents import MAX_FILE_VALUES, read_documents
from swarmkeep.history.foreign.formats import ForeignFormat
from swarmkeep.history.import_export import ImportReport
from swarmkeep.request.request import assemble_request
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.support.rules import find_faults

pytestmark = pytest.mark.one_database

TENANT = "default"
USER, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"id": 1}'}}


def encode_value(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


async def import_value(store: SqlStore, value: Any, form: ForeignFormat = "chat", **options: Any) -> ImportReport:
    given = {"agent": "Ann", **options}
    return await import_conversations(store, TENANT, io.BytesIO(encode_value(value)), form, **given)


async def read_state(store: SqlStore, session_id: str) -> State:
    return await store.state(SessionKey(TENANT, session_id))


def build_sent_messages(state: State) -> list[Json]:
    """What a model would be sent, which strict servers accept."""
    messages = assemble_request(state.messages, "Be kind.", None, {"model": "m"}).messages
    assert find_faults(messages) == []
    return messages


async def test_message_list_is_a_session(store: SqlStore) -> None:
    report = await import_value(store, [USER, HELLO])
    (session,) = report.sessions
    assert session.id.startswith("import_")
    state = await read_state(store, session.id)
    assert (state.agent, state.status, state.hash) == ("Ann", "idle", session.hash)
    assert [(entry.message["sender"], entry.message["content"]) for entry in state.messages] == [
        ("user", "Hi"),
        ("Ann", "Hello."),
    ]
    assert state.metadata == {"imported": {"from": "chat"}}
    again = await import_value(store, [USER, HELLO])
    assert (again.imported, again.present, again.sessions[0].id) == (0, 1, session.id)
    fact = MessageAdded(message=USER)
    await store.append(SessionKey(TENANT, session.id), state, draft_events("Ann", [fact], "run_1"))
    assert (await import_value(store, [USER, HELLO])).present == 1


async def test_ids_that_no_session_can_have_are_derived(store: SqlStore) -> None:
    chat = {"id": "order 17/b", "messages": [USER, HELLO]}
    (session,) = (await import_value(store, chat)).sessions
    assert session.id.startswith("import_")
    assert (await read_state(store, session.id)).metadata["imported"] == {"from": "chat", "id": "order 17/b"}
    # By their names: what has grown is found again.
    again = await import_value(store, {**chat, "messages": [USER, HELLO, USER]})
    assert (again.extended, again.sessions[0].id) == (1, session.id)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [USER, HELLO]},
        {"object": "list", "data": [USER, HELLO]},
        [{"messages": [USER, HELLO]}],
        b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}\r\n\n',
        b'\xef\xbb\xbf[{"role": "user", "content": "Hi"},\n {"role": "assistant", "content": "Hello."}]',
    ],
)
async def test_accepted_chat_forms(store: SqlStore, value: Any) -> None:
    report = await import_value(store, value)
    assert len((await read_state(store, report.sessions[0].id)).messages) == 2


async def test_responses_form_texts_can_be_sent(store: SqlStore) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, picture]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "A bear.", "annotations": []}]}
    report = await import_value(store, [asked, said])
    sent = build_sent_messages(await read_state(store, report.sessions[0].id))
    assert [message["content"] for message in sent[1:]] == [
        [{"type": "text", "text": "What is it?"}, picture],
        [{"type": "text", "text": "A bear."}],
    ]


async def test_user_part_results_become_tool_messages(store: SqlStore) -> None:
    asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look_up", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}]}
    answered = {"role": "user", "content": [result, {"type": "text", "text": "go on"}]}
    report = await import_value(store, [USER, asked, answered, {"role": "user", "content": [{**result}]}])
    sent = build_sent_messages(await read_state(store, report.sessions[0].id))
    assert [(message["role"], message["content"]) for message in sent[2:]] == [
        ("assistant", None), ("tool", "found"), ("user", [{"type": "text", "text": "go on"}]),
    ]  # fmt: skip


async def test_fine_tuning_lines_become_sessions(store: SqlStore) -> None:
    lines = [{"messages": [{**USER, "content": str(number)}, HELLO], "tools": []} for number in range(3)]
    text = b"\n".join(encode_value(line) for line in lines)
    assert (await import_value(store, text)).imported == 3
    twice = await import_value(store, text + b"\n" + text)
    assert (twice.imported, twice.present) == (0, 6)
    other = [{"id": "one", "messages": [USER]}, {"id": "one", "messages": [USER, HELLO]}]
    with pytest.raises(InvalidImport, match="twice, with other content"):
        await import_value(store, b"\n".join(map(encode_value, other)))


async def test_preferences_become_forks(store: SqlStore) -> None:
    def write(worse: str) -> Any:
        call = {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}}
        asked = {"messages": [USER, call, {"role": "function", "name": "look", "content": "found"}], "tools": []}
        answers = {"preferred_output": [HELLO], "non_preferred_output": [{**HELLO, "content": worse}]}
        return {"input": asked, **answers}

    report = await import_value(store, b"\n".join(map(encode_value, [write("bad"), write("worse"), write("bad")])))
    assert (report.imported, report.forks, report.present) == (3, 2, 3)
    contents = set()
    for session in report.sessions:
        state = await store.state(SessionKey(TENANT, session.id))
        assert [entry.role for entry in state.messages] == ["user", "assistant", "tool", "assistant"]
        contents.add(state.messages[-1].message["content"])
    assert contents == {HELLO["content"], "bad", "worse"}


async def test_swarm_files_read_as_meant(store: SqlStore) -> None:
    log = [{"task_id": "b7df", **USER}, {"task_id": "b7df", **HELLO}]
    (session,) = (await import_value(store, log, "swarm")).sessions
    assert (await read_state(store, session.id)).messages[0].message["task_id"] == "b7df"
    response = {
        "messages": [
            {**USER},
            {"role": "assistant", "content": None, "sender": "Triage", "tool_calls": [CALL], "function_call": None},
            {"role": "tool", "tool_call_id": "c1", "tool_name": "look_up", "content": "found"},
            {**HELLO, "sender": "Sales"},
        ],
        "agent": {"name": "Sales", "model": "gpt-4o"},
        "context_variables": {"name": "Ana"},
    }
    (session,) = (await import_value(store, response, "swarm", agent=None, as_id="talk")).sessions
    state = await read_state(store, "talk")
    assert (state.agent, state.context_variables) == ("Sales", {"name": "Ana"})
    assert [message["role"] for message in build_sent_messages(state)] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    del response["agent"]
    await import_value(store, response, "swarm", agent=None, as_id="other")
    assert (await read_state(store, "other")).agent == "Sales"


async def test_legacy_function_calls_become_tool_calls(store: SqlStore) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": "{}"}},
        {"role": "function", "name": "look_up", "content": "found"},
        HELLO,
    ]
    (session,) = (await import_value(store, messages)).sessions
    assert [message["role"] for message in build_sent_messages(await read_state(store, session.id))][2:] == [
        "assistant", "tool", "assistant",
    ]  # fmt: skip


async def test_call_without_result_allows_conversation(store: SqlStore) -> None:
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {**USER, "content": "Still there?"}]
    (session,) = (await import_value(store, messages)).sessions
    assert "outcome" in build_sent_messages(await read_state(store, session.id))[3]["content"]


THREAD = {"id": "thread_1", "object": "thread", "created_at": 1700000000, "metadata": {"customer": "17"}}


def make_message(name: str, role: str, at: int, *content: Json, **more: Any) -> Json:
    words = {"id": name, "object": "thread.message", "created_at": at, "thread_id": "thread_1", "role": role}
    return {**words, "content": list(content), **more}


def make_text(text: str, *annotations: Json) -> Json:
    return {"type": "text", "text": {"value": text, "annotations": list(annotations)}}


def make_step(name: str, at: int, *calls: Json) -> Json:
    details = {"type": "tool_calls", "tool_calls": list(calls)}
    place = {"thread_id": "thread_1", "run_id": "run_1", "assistant_id": "asst_1"}
    return {"id": name, "object": "thread.run.step", "created_at": at, **place, "step_details": details}


def make_call(name: str, output: str | None) -> Json:
    return {"id": name, "type": "function", "function": {"name": "look_up", "arguments": "{}", "output": output}}


RUN = {
    "id": "run_1", "object": "thread.run", "created_at": 1700000002, "thread_id": "thread_1", "assistant_id": "asst_1",
    "status": "completed", "model": "gpt-4o", "usage": {"total_tokens": 12},
}  # fmt: skip
CITED = {"type": "file_citation", "text": "【1】", "file_citation": {"file_id": "file-1"}}
CODE = {
    "id": "call_2", "type": "code_interpreter",
    "code_interpreter": {
        "input": "print(1)",
        "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "image": {"file_id": "file-2"}}],
    },
}  # fmt: skip
SEARCH = {"id": "call_3", "type": "file_search", "file_search": {"results": [{"file_id": "file-1", "score": 0.9}]}}
MESSAGES = [
    make_message(
        "msg_3", "assistant", 1700000009, make_text("It is 1【1】.", CITED), assistant_id="asst_1", run_id="run_1"
    ),
    make_message("msg_2", "user", 1700000001, {"type": "image_file", "image_file": {"file_id": "file-9"}}),
    make_message(
        "msg_1", "user", 1700000000, make_text("What is it?"), attachments=[{"file_id": "file-1", "tools": []}]
    ),
]
STEPS = [
    {**make_step("step_9", 1700000009), "step_details": {"type": "message_creation", "message_creation": {}}},
    make_step("step_1", 1700000003, make_call("call_1", "found"), CODE, SEARCH),
]


def make_list(items: list[Json]) -> Json:
    return {"object": "list", "data": items, "has_more": False}


async def test_objects_within_a_thread_are_found(store: SqlStore) -> None:
    run = {**RUN, "steps": make_list(STEPS)}
    nested = await import_value(store, {**THREAD, "messages": make_list(MESSAGES), "runs": [run]}, "assistants")
    flat = [THREAD, *MESSAGES, RUN, *STEPS]
    assert (nested.imported, nested.events > len(MESSAGES)) == (1, True)
    assert (await import_value(store, flat, "assistants")).present == 1


async def test_assistants_thread_is_a_session(store: SqlStore) -> None:
    kept = {
        "thread": THREAD,
        "messages": make_list(MESSAGES),
        "runs": make_list([RUN]),
        "steps": {"run_1": make_list(STEPS)},
    }
    report = await import_value(store, kept, "assistants")
    assert [session.id for session in report.sessions] == ["thread_1"]
    state = await read_state(store, "thread_1")
    assert state.metadata["customer"] == "17"
    origin = state.metadata["imported"]
    assert (origin["thread_id"], origin["created_at"]) == ("thread_1", "2023-11-14T22:13:20Z")
    assert origin["runs"][0]["usage"] == {"total_tokens": 12}
    messages = build_sent_messages(state)[1:]
    assert [message["role"] for message in messages] == [
        "user", "user", "assistant", "tool", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert [message["content"] for message in messages] == [
        "What is it?", "[image: file-9]", None, "found", "1\n[image: file-2]",
        '[{"file_id":"file-1","score":0.9}]', "It is 1【1】.",
    ]  # fmt: skip
    names = [call["function"]["name"] for call in messages[2]["tool_calls"]]
    assert names == ["look_up", "code_interpreter", "file_search"]
    assert json.loads(messages[2]["tool_calls"][1]["function"]["arguments"]) == {"code": "print(1)"}
    stored = [entry.message["imported"] for entry in state.messages if "imported" in entry.message]
    assert stored[0]["attachments"][0]["file_id"] == "file-1"
    assert stored[-1]["annotations"] == [CITED]
    # Put together in another way it is the same.
    lines = b"\n".join(encode_value(item) for item in (*reversed(MESSAGES), RUN, *STEPS, THREAD))
    assert (await import_value(store, lines, "assistants")).present == 1


async def test_thread_runs_stay_at_first_message(store: SqlStore) -> None:
    runs = [{**RUN, "id": f"run_{at}", "created_at": at, "instructions": "Be kind. " * 100} for at in range(1, 101)]
    answers = [
        make_message(f"msg_{at}", "assistant", at, make_text("Yes."), run_id=f"run_{at}") for at in range(1, 100)
    ]
    again = make_message("msg_100", "assistant", 100, make_text("Yes, really."), run_id="run_99")
    await import_value(store, [*runs, *answers, again], "assistants", sizes=SizeLimits())
    state = await read_state(store, "thread_1")
    found = [entry.message["imported"].get("run", {}).get("id") for entry in state.messages]
    assert found == [*(f"run_{at}" for at in range(1, 100)), None]
    assert state.messages[0].message["imported"]["run"]["instructions"] == runs[0]["instructions"]
    # It said nothing.
    assert [run["id"] for run in state.metadata["imported"]["runs"]] == ["run_100"]


async def test_messages_without_ids_all_count(store: SqlStore) -> None:
    nameless = [make_message("", "user", at, make_text(said)) | {"id": None} for at, said in ((1, "One"), (2, "Two"))]
    twice = [make_message("msg_1", "user", at, make_text(said)) for at, said in ((3, "Thre"), (3, "Three"))]
    report = await import_value(store, [*nameless, *twice], "assistants")
    state = await read_state(store, report.sessions[0].id)
    assert [entry.message["content"] for entry in state.messages] == ["One", "Two", "Three"]


async def test_waiting_run_and_several_threads_import(store: SqlStore) -> None:
    action = {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": [make_call("call_1", None)]}}
    waiting = {**RUN, "status": "requires_action", "required_action": action}
    other = {**MESSAGES[2], "thread_id": "thread_2"}
    report = await import_value(store, [make_list(MESSAGES[1:]), waiting, other], "assistants")
    assert {session.id for session in report.sessions} == {"thread_1", "thread_2"}
    assert [message["role"] for message in build_sent_messages(await read_state(store, "thread_1"))][1:] == [
        "user", "user", "assistant", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "form", "line", "why"),
    [
        (b"", "chat", 1, "empty"),
        (b"hello", "chat", 1, "not JSON"),
        (b'{"messages": [\n{"role": "user"\n "content": 1}]}', "chat", 3, "not JSON"),
        (b'{"messages": []}\n{"messages": ', "chat", 2, "not JSON"),
        (b"17", "chat", None, "neither"),
        (b'{"messages": []}\n17', "chat", 2, "neither"),
        ({"messages": [USER, {"role": "robot", "content": ""}]}, "chat", None, "/messages/1/role"),
        ([USER, {"role": "user", "content": None}], "chat", None, "/1/content"),
        ([USER, 17], "chat", None, "/1"),
        (
            [{"messages": [USER]}, {"messages": [{"role": "tool", "content": "x"}]}],
            "chat",
            None,
            "/1/messages/0/tool_call_id",
        ),
        ([USER, {"type": "function_call", "call_id": "c"}], "chat", None, "(`--from`) to conversations"),
        ({"nothing": "here"}, "assistants", None, "no threads"),
        ({"object": "thread.message", "role": "user"}, "assistants", None, "does not name its thread"),
        (make_message("m", "robot", 1, make_text("x")), "assistants", None, "thread thread_1/0/role"),
    ],
)
async def test_unreadable_document_refused_by_place(
    store: SqlStore, value: Any, form: ForeignFormat, line: int | None, why: str
) -> None:
    with pytest.raises(InvalidImport) as refused:
        await import_value(store, value, form)
    assert why in str(refused.value)
    assert refused.value.line == line
    assert (await store.list_sessions(SessionFilter(TENANT))).sessions == []


async def test_one_refusal_records_nothing(store: SqlStore) -> None:
    await import_value(store, {"id": "b", "messages": [HELLO]})
    file = [{"id": "a", "messages": [USER]}, {"id": "b", "messages": [USER]}]
    with pytest.raises(SessionExists):
        await import_value(store, file)
    with pytest.raises(InvalidImport):
        await import_value(store, [USER], agent=None)
    with pytest.raises(InvalidImport, match="has 2"):
        await import_value(store, file, as_id="c")
    tried = await import_value(store, {"id": "d", "messages": [USER]}, dry_run=True)
    assert (tried.imported, tried.sessions[0].seq) == (1, 3)
    assert [session.id for session in (await store.list_sessions(SessionFilter(TENANT))).sessions] == ["b"]


async def test_hostile_text_comes_through(store: SqlStore) -> None:
    text, name = "\x00 \ud800 \u202e " + "x" * 5_000_000, "\x00 \ud800"
    (session,) = (await import_value(store, [{"role": "user", "content": text}, {**HELLO, "sender": name}])).sessions
    state = await read_state(store, session.id)
    assert state.messages[0].message["content"] == text
    assert state.messages[1].message["sender"] == name
    (named,) = (await import_value(store, [USER], agent=name)).sessions
    assert (await read_state(store, named.id)).agent == name


PIECES = st.sampled_from([*MESSAGES, *STEPS, RUN, THREAD, USER, HELLO, CALL, make_list(STEPS)])
NAMES = st.sampled_from([
    "object", "id", "role", "content", "type", "text", "tool_calls", "function", "messages", "data", "thread_id",
    "created_at", "step_details", "required_action", "submit_tool_outputs", "annotations", "value", "function_call",
])  # fmt: skip
WORDS = st.sampled_from(["thread", "thread.message", "user", "assistant"])
VALUES = st.none() | st.integers() | st.just(10**400) | st.text(max_size=3) | WORDS | PIECES
ANY = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)


@given(ANY, st.sampled_from([read_chats, read_threads]))
def test_any_json_is_read_or_refused(value: Any, read: Any) -> None:
    try:
        for conversation in read(read_documents(io.BytesIO(encode_value(value)))):
            assert isinstance(conversation.messages, list)
    except DomainError:
        pass


@given(ANY, st.sampled_from(["role", "content", "step_details", "tool_calls", "text", "created_at", "metadata"]))
def test_damaged_thread_is_read_or_refused(value: Any, name: str) -> None:
    for whole in (*MESSAGES, *STEPS, RUN, THREAD):
        list(read_threads(read_documents(io.BytesIO(encode_value({**whole, name: value, "thread_id": "t"})))))


def test_document_with_too_many_values_refused() -> None:
    chats = [[{"role": "user", "content": "[,] " * 50}]] * 30
    whole, lines = encode_value(chats), b"".join(encode_value(chat) + b"\n" for chat in chats)
    assert len(list(read_documents(io.BytesIO(whole), max_values=200))) == 1
    with pytest.raises(InvalidImport, match="the file holds more than 50 JSON values"):
        list(read_documents(io.BytesIO(whole), max_values=50))
    # Each line is a document by itself, however many there are.
    assert len(list(read_documents(io.BytesIO(lines), max_values=50, max_line_values=5))) == 30
    with pytest.raises(InvalidImport, match="the line holds more than 5 JSON values") as refused:
        list(read_documents(io.BytesIO(lines + b"[[],[],[],[]]\n"), max_line_values=5))
    assert refused.value.line == 31


def test_line_threads_have_document_limits() -> None:
    line = encode_value({"object": "thread", "id": "t", "x": [[]] * (MAX_FILE_VALUES // 8)}) + b"\n"

    def read(count: int) -> list[ForeignConversation]:
        return list(read_threads(read_documents(io.BytesIO(line * count), max_line_values=MAX_FILE_VALUES)))

    assert len(read(3)) == 1
    with pytest.raises(InvalidImport, match=f"more than {MAX_FILE_VALUES} JSON values up to here") as refused:
        read(4)
    assert refused.value.line == 4


def test_a_compressed_file_is_named() -> None:
    with pytest.raises(InvalidImport, match="unpack it first"):
        list(read_documents(io.BytesIO(gzip.compress(encode_value([])))))
