"""Conversations of other programs: each format is recognised, and its calls, files, times and branches are kept."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.cli.sources import FileForm
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import DomainError, InvalidImport
from swarmkeep.events.facts import SessionForked
from swarmkeep.history.conversations import import_conversations
from swarmkeep.history.foreign.documents import read_documents
from swarmkeep.history.foreign.formats import FORMATS, find_title, read_conversations, recognise
from swarmkeep.history.foreign.trees import MAX_BRANCHES
from swarmkeep.history.import_export import ImportReport
from swarmkeep.history.verify import verify
from swarmkeep.http.routes.transfer import ImportFormat
from swarmkeep.request.request import assemble_request
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from swarmkeep_client._calls import FileFormat
from tests.support.rules import find_faults

pytestmark = pytest.mark.one_database

TENANT = "default"


def as_file(value: Any) -> io.BytesIO:
    return io.BytesIO(value if isinstance(value, bytes) else json.dumps(value).encode())


async def import_recognised(store: SqlStore, value: Any, **options: Any) -> ImportReport:
    file = as_file(value)
    form = recognise(file)
    assert form != "export"
    return await import_conversations(store, TENANT, file, form, **{"agent": "Ann", **options})


async def read_messages(store: SqlStore, session_id: str) -> list[Json]:
    """The messages, which a strict server accepts as they are sent."""
    state = await store.state(SessionKey(TENANT, session_id))
    sent = assemble_request(state.messages, "Be kind.", None, {"model": "m"}).messages
    assert find_faults(sent) == []
    found = await verify(store, SessionKey(TENANT, session_id))
    assert found.problems == []
    return [entry.message for entry in state.messages]


def summarise(messages: list[Json]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in messages]


# ChatGPT.


def chatgpt_node(node: str, parent: str | None, role: str, *parts: Any, **more: Any) -> Json:
    about = {"metadata": {}, "recipient": "all", "status": "finished_successfully", "weight": 1.0, **more}
    content = about.pop("content", {"content_type": "text", "parts": list(parts)})
    author = {"role": role, "name": about.pop("name", None), "metadata": {}}
    message = {"id": node, "author": author, "create_time": 1756000001.5, "content": content, **about}
    return {"id": node, "message": message, "parent": parent, "children": []}


def make_chatgpt(*nodes: Json, current: str | None = None, **more: Any) -> Json:
    root = {"id": "root", "message": None, "parent": None, "children": []}
    about = {"title": "Roll back", "create_time": 1756000000.1, "update_time": 1756000400.6}
    mapping = {node["id"]: node for node in (root, *nodes)}
    return {**about, "mapping": mapping, "current_node": current or nodes[-1]["id"], "conversation_id": "c-1", **more}


HIDDEN = chatgpt_node(
    "ctx", "root", "user", weight=0,
    content={"content_type": "user_editable_context", "user_profile": "An SRE."},
    metadata={"is_visually_hidden_from_conversation": True},
)  # fmt: skip
EMPTY = chatgpt_node("sys", "ctx", "system", "", weight=0)
SPOKEN = chatgpt_node(
    "v1", "root", "user",
    content={"content_type": "multimodal_text", "parts": [
        {"content_type": "audio_transcription", "text": "Hi"},
        {"content_type": "real_time_user_audio_video_asset_pointer",
         "audio_asset_pointer": {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://file_1"}},
    ]},
)  # fmt: skip
PICTURE = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-9", "width": 1, "height": 1}
ASKED = chatgpt_node(
    "u1", "sys", "user", content={"content_type": "multimodal_text", "parts": [PICTURE, "What is it?"]},
    metadata={"attachments": [{"id": "file-9", "name": "plan.pdf", "mimeType": "application/pdf"}]},
)  # fmt: skip
THOUGHT = chatgpt_node("th", "u1", "assistant", content={"content_type": "thoughts", "thoughts": []})
CALLED = chatgpt_node(
    "a1", "th", "assistant", recipient="python", content={"content_type": "code", "language": "python", "text": "1 + 1"}
)
RESULT = chatgpt_node("t1", "a1", "tool", name="python", content={"content_type": "execution_output", "text": "2"})
MORE = chatgpt_node("t2", "t1", "tool", "a page", name="browser")
SAID = chatgpt_node("a2", "t2", "assistant", "It is 2.", metadata={"model_slug": "o4-mini"})
AGAIN = chatgpt_node("a3", "t2", "assistant", "It is two.")
LATER = chatgpt_node("u2", "a2", "user", "Thanks")
CHATGPT = make_chatgpt(HIDDEN, EMPTY, ASKED, THOUGHT, CALLED, RESULT, MORE, SAID, AGAIN, LATER)


async def test_chatgpt_branches_become_forks(store: SqlStore) -> None:
    report = await import_recognised(
        store, [CHATGPT, {"conversation_id": "c-2", "create_time": 1.0, "title": "Broken"}]
    )
    assert (report.format, report.imported, report.forks) == ("chatgpt", 2, 1)
    assert [session.id for session in report.sessions] == ["c-1", "c-1:a3"]
    assert report.left_out == {
        "conversations without messages": 1,
        "files that the export only names": 2,
        "hidden messages": 1,
        "reasoning": 1,
    }
    trunk = await read_messages(store, "c-1")
    assert summarise(trunk) == [
        ("user", "[image: file-service://file-9]\nWhat is it?\n[file: plan.pdf]"),
        ("assistant", None), ("tool", "2"), ("assistant", None), ("tool", "a page"),
        ("assistant", "It is 2."), ("user", "Thanks"),
    ]  # fmt: skip
    assert trunk[1]["tool_calls"][0]["function"] == {"name": "python", "arguments": '{"input":"1 + 1"}'}
    assert trunk[5]["imported"] == {"id": "a2", "created_at": "2025-08-24T01:46:41.500000Z", "model": "o4-mini"}
    assert trunk[0]["imported"]["attachments"][0]["name"] == "plan.pdf"
    fork = await read_messages(store, "c-1:a3")
    assert summarise(fork) == [*summarise(trunk[:5]), ("assistant", "It is two.")]
    state = await store.state(SessionKey(TENANT, "c-1:a3"))
    assert state.metadata["title"] == "Roll back"
    assert state.metadata["imported"]["created_at"] == "2025-08-24T01:46:40.100000Z"
    page = await store.list_forks(SessionKey(TENANT, "c-1"), limit=10)
    assert [one.id for one in page.sessions] == ["c-1:a3"]


async def test_spoken_words_of_chatgpt_name_their_sound(store: SqlStore) -> None:
    await import_recognised(store, [make_chatgpt(SPOKEN)])
    assert summarise(await read_messages(store, "c-1")) == [("user", "Hi\n[audio: sediment://file_1]")]


async def test_missing_forks_begin_with_the_trunk_that_is_here(store: SqlStore) -> None:
    await import_recognised(store, [CHATGPT])
    await store.delete(SessionKey(TENANT, "c-1:a3"))
    assert (await import_recognised(store, [CHATGPT], dry_run=True)).forks == 1
    again = await import_recognised(store, [CHATGPT])
    assert (again.imported, again.present, again.forks) == (1, 1, 1)
    trunk = await store.read(SessionKey(TENANT, "c-1"))
    fork = await store.read(SessionKey(TENANT, "c-1:a3"))
    [(place, forked)] = [(n, event) for n, event in enumerate(fork) if isinstance(event.fact, SessionForked)]
    assert [event.hash for event in fork[:place]] == [event.hash for event in trunk[:place]]
    assert isinstance(forked.fact, SessionForked)
    assert (forked.fact.from_session_id, forked.fact.from_hash) == ("c-1", trunk[place - 1].hash)
    await read_messages(store, "c-1:a3")
    third = await import_recognised(store, [CHATGPT, CHATGPT])
    assert (third.imported, third.present) == (0, 4)


async def test_conversation_that_stands_again_with_more_forks(store: SqlStore) -> None:
    third = chatgpt_node("a4", "t2", "assistant", "2")
    more = make_chatgpt(HIDDEN, EMPTY, ASKED, THOUGHT, CALLED, RESULT, MORE, SAID, AGAIN, third, LATER)
    report = await import_recognised(store, [CHATGPT, more, CHATGPT])
    assert (report.imported, report.present, report.forks) == (3, 4, 2)
    trunk = await store.read(SessionKey(TENANT, "c-1"))
    for name in ("c-1:a3", "c-1:a4"):
        fork = await store.read(SessionKey(TENANT, name))
        place = next(number for number, event in enumerate(fork) if isinstance(event.fact, SessionForked))
        assert [event.hash for event in fork[:place]] == [event.hash for event in trunk[:place]]


async def test_one_conversation_of_chatgpt_gets_a_new_id(store: SqlStore) -> None:
    report = await import_recognised(store, CHATGPT, as_id="mine")
    assert [session.id for session in report.sessions] == ["mine", "mine:a3"]


def test_branches_are_bounded() -> None:
    leaves = [chatgpt_node(f"l{number}", "u1", "assistant", f"{number}") for number in range(MAX_BRANCHES + 11)]
    circle = [chatgpt_node("x", "y", "user", "1"), chatgpt_node("y", "x", "user", "2")]
    value = make_chatgpt(chatgpt_node("u1", "root", "user", "Hi"), *circle, *leaves)
    [found] = read_conversations(io.BytesIO(json.dumps(value).encode()), "chatgpt")
    assert len(found.branches) == MAX_BRANCHES
    assert found.left_out == {"further branches": 10, "messages outside of the tree": 2}
    long = [chatgpt_node(f"m{number}", f"m{number - 1}" if number else "root", "user", "x") for number in range(3000)]
    ends = [chatgpt_node(f"l{number}", "m2998", "user", "y") for number in range(100)]
    value = make_chatgpt(*long, *ends, current="m2999")
    [found] = read_conversations(io.BytesIO(json.dumps(value).encode()), "chatgpt")
    assert len(found.branches) == 34
    assert found.branches[0].shared == 2999


# Open WebUI.


def webui_node(name: str, parent: str | None, role: str, content: str, **more: Any) -> Json:
    return {"id": name, "parentId": parent, "childrenIds": [], "role": role, "content": content,
            "timestamp": 1700000000, **more}  # fmt: skip


def make_webui(*nodes: Json, **more: Any) -> Json:
    history = {"messages": {node["id"]: node for node in nodes}, "currentId": nodes[-1]["id"]}
    chat = {"title": "Weather", "models": ["gpt-4o"], "history": history, "params": {"system": "Be brief."}}
    return {"id": "w-1", "user_id": "u", "title": "Weather", "chat": chat, "created_at": 1700000000, **more}


BLOCKS = (
    '<details type="reasoning" done="true"><summary>Thought</summary>&gt; Hm</details>\nLet me see.'
    '<details type="tool_calls" done="true" id="call_9" name="get_weather" '
    'arguments="&quot;{\\&quot;city\\&quot;: \\&quot;Paris\\&quot;}&quot;" result="&quot;18C&quot;" files="">\n'
    "<summary>Tool Executed</summary>\n</details>\n18 degrees."
)
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
OUTPUT = [
    {"type": "reasoning", "id": "r", "content": [{"type": "output_text", "text": "Hm"}]},
    {"type": "function_call", "id": "f", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "18C"}]},
    {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "18 degrees."}]},
]


async def test_open_webui_chats_keep_calls_and_pictures(store: SqlStore) -> None:
    files = [{"type": "image", "url": PIXEL}, {"type": "file", "name": "map.pdf"}]
    asked = webui_node("u1", None, "user", "Weather in Paris?", files=files)
    blocks = webui_node("a1", "u1", "assistant", BLOCKS, model="gpt-4o", sources=[{"document": ["…"]}])
    output = webui_node("a2", "u1", "assistant", "<details>…</details>18 degrees.", output=OUTPUT)
    report = await import_recognised(store, [make_webui(asked, blocks, output)])
    assert [session.id for session in report.sessions] == ["w-1", "w-1:a1"]
    assert report.left_out == {
        "files that the export only names": 1, "reasoning": 2, "sources of answers": 1,
    }  # fmt: skip
    told = [("assistant", None), ("tool", "18C"), ("assistant", "18 degrees.")]
    trunk = await read_messages(store, "w-1")
    assert summarise(trunk)[1:] == told
    assert [part["type"] for part in trunk[0]["content"]] == ["text", "image_url", "text"]
    assert trunk[0]["content"][2]["text"] == "[file: map.pdf]"
    fork = await read_messages(store, "w-1:a1")
    assert summarise(fork)[1:] == [("assistant", "Let me see."), *told[1:]]
    assert json.loads(fork[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert fork[3]["imported"]["created_at"] == "2023-11-14T22:13:20Z"
    assert (await store.state(SessionKey(TENANT, "w-1"))).metadata["imported"]["system"] == "Be brief."


async def test_open_webui_lists_and_loose_blocks_are_text(store: SqlStore) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": '<details type="x">a</details>b'}]
    await import_recognised(store, {"id": "w-2", "chat": {"messages": messages}})
    assert summarise(await read_messages(store, "w-2")) == [("user", "Hi"), ("assistant", messages[1]["content"])]


async def test_open_webui_chats_of_first_releases_stand_alone(store: SqlStore) -> None:
    nodes = webui_node("u1", None, "user", "Hi"), webui_node("a1", "u1", "assistant", "Hello")
    # Their list of messages was kept beside the tree, and may be empty.
    report = await import_recognised(store, {**make_webui(*nodes)["chat"], "id": "w-3", "messages": []})
    assert (report.format, report.imported) == ("open-webui", 1)
    assert summarise(await read_messages(store, "w-3")) == [("user", "Hi"), ("assistant", "Hello")]


# LibreChat.


def libre(name: str, parent: str | None, *, user: bool = False, **more: Any) -> Json:
    nobody = "00000000-0000-0000-0000-000000000000"
    return {
        "messageId": name, "parentMessageId": parent or nobody, "conversationId": "l-1", "isCreatedByUser": user,
        "sender": "User" if user else "GPT-4", "model": None if user else "gpt-4o",
        "createdAt": f"2024-05-28T18:08:{50 + int(name[1:])}.014Z", **more,
    }  # fmt: skip


LIBRE_CALL = {"id": "call_5", "name": "look_up", "args": '{"id":1}', "output": "found", "type": "tool_call"}
LIBRE_ANSWER: list[Json] = [
    {"type": "think", "think": "Hm"},
    {"type": "text", "text": "Looking."},
    {"type": "tool_call", "tool_call": LIBRE_CALL},
    {"type": "text", "text": "It is found."},
]


@pytest.mark.parametrize("recursive", [True, False])
async def test_librechat_exports_are_lists_or_trees(store: SqlStore, recursive: bool) -> None:
    asked = libre("m1", None, user=True, text="Where?", files=[{"filename": "a.png", "type": "image/png"}])
    first = libre("m2", "m1", text="Nowhere.")
    second = libre("m3", "m1", content=LIBRE_ANSWER, text="")
    other = libre("m0", None, user=True, text="Something else")
    messages = [{**asked, "children": [first, second]}, other] if recursive else [other, asked, first, second]
    value = {"conversationId": "l-1", "title": "Where", "exportAt": "08:12:16 GMT", "endpoint": "openAI",
             "options": {"model": "gpt-4o"}, "recursive": recursive, "messages": messages}  # fmt: skip
    report = await import_recognised(store, value)
    assert (report.format, {session.id for session in report.sessions}) == ("librechat", {"l-1", "l-1:m2", "l-1:m0"})
    assert summarise(await read_messages(store, "l-1")) == [
        ("user", "Where?\n[image: a.png]"), ("assistant", "Looking."), ("tool", "found"), ("assistant", "It is found."),
    ]  # fmt: skip
    assert summarise(await read_messages(store, "l-1:m2"))[1:] == [("assistant", "Nowhere.")]
    assert summarise(await read_messages(store, "l-1:m0")) == [("user", "Something else")]
    [entry, *_] = (await store.state(SessionKey(TENANT, "l-1"))).messages
    assert entry.message["imported"]["created_at"] == "2024-05-28T18:08:51.014000Z"


# OpenAI's Conversations API, and data sets.

ITEMS: list[Json] = [
    {"type": "message", "id": "msg_1", "role": "user", "content": [
        {"type": "input_text", "text": "Hi"}, {"type": "input_image", "image_url": "https://example.com/a.png"},
        {"type": "input_file", "file_id": "file-3", "filename": "a.docx"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": "two"},
    {"type": "mcp_call", "id": "mcp_1", "name": "h", "arguments": "{}", "output": "three", "server_label": "s"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
    {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []},
    {"type": "message", "id": "msg_2", "role": "assistant", "content": [{"type": "output_text", "text": "Bye"}]},
]  # fmt: skip
CONVERSATION = {"id": "conv_1", "object": "conversation", "created_at": 1700000000, "metadata": {"topic": "demo"}}


@pytest.mark.parametrize(
    ("call", "name", "arguments", "output"),
    [
        ({"type": "function", "function": {"name": "f", "arguments": '{"a":1}', "output": "2"}}, "f", {"a": 1}, "2"),
        (
            {"type": "code_interpreter", "code_interpreter": {"input": "1+1", "outputs": [{"logs": "2"}]}},
            "code_interpreter", {"input": "1+1"}, '[{"logs":"2"}]',
        ),
    ],
)  # fmt: skip
async def test_librechat_has_calls_as_assistants_make_them(
    store: SqlStore, call: Json, name: str, arguments: Json, output: str
) -> None:
    content = [{"type": "tool_call", "tool_call": {"id": "call_6", **call}}, {"type": "text", "text": "Done."}]
    value = {
        "conversationId": "l-2",
        "messages": [libre("m1", None, user=True, text="Do"), libre("m2", "m1", content=content)],
    }
    await import_recognised(store, value)
    messages = await read_messages(store, "l-2")
    function = messages[1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)
    assert summarise(messages)[2:] == [("tool", output), ("assistant", "Done.")]


@pytest.mark.parametrize(
    "value",
    [
        ITEMS,
        {"object": "list", "data": ITEMS[::-1], "has_more": False},
        {**CONVERSATION, "items": {"object": "list", "data": ITEMS}},
        [{"conversation": CONVERSATION, "items": ITEMS}],
        json.dumps({**CONVERSATION, "items": ITEMS}).encode() + b"\n" + json.dumps(CONVERSATION).encode() + b"\n",
    ],
)
async def test_items_of_conversations_are_messages(store: SqlStore, value: Any) -> None:
    report = await import_recognised(store, value)
    assert (report.format, report.imported) == ("conversations", 1)
    assert report.left_out["reasoning"] == report.left_out["items of other types"] == 1
    [session] = report.sessions
    messages = await read_messages(store, session.id)
    assert [message["role"] for message in messages] == [
        "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [part["type"] for part in messages[0]["content"]] == ["text", "image_url", "text"]
    assert [call["id"] for call in messages[3]["tool_calls"]] == ["c1", "c2"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["", "one", "two", "three", "1"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"action":{"type":"search","query":"x"}}'


SHAREGPT = {
    "id": "s-1", "system": "Be kind.", "tools": "[]", "conversations": [
        {"from": "human", "value": "Hi"}, {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "2"}, {"from": "gpt", "value": "It is 2."},
    ],
}  # fmt: skip


async def test_data_sets_are_conversations(store: SqlStore) -> None:
    lines = [SHAREGPT, SHAREGPT, {"conversations": [{"role": "user", "content": "Hello"}]}]
    report = await import_recognised(store, b"\n".join(json.dumps(line).encode() for line in lines))
    assert (report.format, report.imported, report.present) == ("sharegpt", 2, 1)
    messages = await read_messages(store, "s-1")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a":1}'}
    old = await import_recognised(store, b'{"prompt": "Hi", "completion": "Hello"}\n{"prompt": "A", "completion": "B"}')
    assert (old.format, old.imported) == ("chat", 2)
    assert summarise(await read_messages(store, old.sessions[0].id)) == [("user", "Hi"), ("assistant", "Hello")]


async def test_data_sets_name_speakers_in_other_ways(store: SqlStore) -> None:
    turns = ("Human", "hi"), ("function-call", '{"name": "f"}'), ("tool_response", "2"), ("GPT", "It is 2.")
    line = {"id": "s/2", "conversations": [{"from": name, "value": text} for name, text in turns]}
    [session] = (await import_recognised(store, [line])).sessions
    messages = await read_messages(store, session.id)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    state = await store.state(SessionKey(TENANT, session.id))
    assert state.metadata["imported"] == {"from": "sharegpt", "id": "s/2"}


async def test_answer_that_was_rejected_is_a_fork(store: SqlStore) -> None:
    answers = {"chosen": {"from": "gpt", "value": "2"}, "rejected": {"from": "gpt", "value": "3"}}
    line = {"id": "s-3", "conversations": [{"from": "human", "value": "1 + 1?"}], **answers}
    report = await import_recognised(store, [line])
    assert (report.imported, report.forks) == (2, 1)
    assert [summarise(await read_messages(store, session.id))[1:] for session in report.sessions] == [
        [("assistant", "2")], [("assistant", "3")],
    ]  # fmt: skip
    broken = {**line, "rejected": {"from": "robot"}}
    with pytest.raises(InvalidImport, match="/0/rejected/0: turn 1 does not say who speaks"):
        await import_recognised(store, [broken])


# What is no such file, or a broken one.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the file is empty"),
        (b"hello", "this is not JSON"),
        (b"PK\x03\x04...", "a ZIP archive; unpack it first"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16 or UTF-32; save it as UTF-8 first"),
        ('[{"a": 1}]'.encode("utf-16-le"), "UTF-16 or UTF-32; save it as UTF-8 first"),
        (b"[]", "JSON without an object at its beginning"),
        (
            b'{"recipes": [], "version": 2}',
            "an object with the keys 'recipes', 'version'. Known are: Swarmkeep's export",
        ),
        (b"SQLite format 3\x00 and then nothing", "the SQLite database cannot be read"),
        (b"[1, 2]", "value 1 is no object"),
        (b'[{"a": [}]', "line 1: this is not JSON"),
        (b'[{"a": "]}', "the file ends in the middle of conversation 1"),
    ],
)
def test_unknown_file_says_what_it_is(text: bytes, why: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        recognise(io.BytesIO(text))
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([CHATGPT, {"title": "no"}], "/1: this is no conversation of ChatGPT"),
        ([SHAREGPT, {"conversations": [{"from": "robot"}]}], "/1/conversations/0: turn 1 does not say who speaks"),
        (
            [{"messages": [{"role": "user", "content": "x"}, {"text": "y"}]}],
            "/0/messages/1/role: message 2 has no role",
        ),
        ([{"messages": []}, {"mapping": 1}], "/1: this is neither a list of messages"),
        (b'[{"mapping": {}},\n{"mapping": {}}\n{"mapping": {}}]', "line 3: this is not JSON: a comma is missing"),
        (b'[{"mapping": {}},\n{"mapping":\n {"a" 1}}]', "line 3: this is not JSON"),
        (b'[{"mapping": {}},\n{"mapping": {}', "line 2: the file ends in the middle of conversation 2"),
        (b'[{"mapping": {}}', "the file ends after conversation 1"),
        (b'[{"mapping": {}}] {}', "something follows the end of the list"),
    ],
)
async def test_broken_conversation_is_named(store: SqlStore, value: Any, why: str) -> None:
    with pytest.raises(InvalidImport) as refused:
        await import_recognised(store, value)
    assert why in str(refused.value)
    assert "Object missing required field" not in str(refused.value)
    assert f"read as {find_title(recognise(as_file(value)))}" in str(refused.value)
    assert (await store.list_sessions(SessionFilter(TENANT))).sessions == []


def test_other_format_is_named() -> None:
    with pytest.raises(InvalidImport, match=r"not threads of .*, but ChatGPT's conversations.json \(--from chatgpt\)"):
        list(read_conversations(io.BytesIO(json.dumps([CHATGPT]).encode()), "assistants"))
    with pytest.raises(InvalidImport, match="not a session database of ADK, but messages of Chat Completions"):
        list(read_conversations(io.BytesIO(b'[{"role": "user"}]'), "adk"))


class SlowFile(io.BytesIO):
    """Gives a few bytes at a time, so that every value is cut somewhere."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size if size is None or size < 0 else min(size, 7))


PIECES = st.text(alphabet='"\\[]{},: \n\u00e9a', max_size=12)
JSON = st.recursive(
    PIECES | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES, inner, max_size=3)
)


@given(st.lists(st.dictionaries(PIECES, JSON, max_size=3) | st.lists(JSON, max_size=2), max_size=5), st.booleans())
def test_lists_are_split_where_their_values_end(values: list[Any], indented: bool) -> None:
    text = json.dumps(values, ensure_ascii=False, indent=1 if indented else None).encode()
    found = list(read_documents(SlowFile(b"\n " + text + b"\n"), splits=True))
    assert [document.value for document in found] == values


KEYS = st.sampled_from([
    "mapping", "message", "author", "role", "content", "parts", "parent", "chat", "history", "messages", "parentId",
    "output", "files", "conversationId", "children", "conversations", "from", "value", "items", "type", "call_id",
])  # fmt: skip
WORDS = st.sampled_from(["user", "assistant", "tool", "function_call", "message", "image_url", "conversation"])
ODD = st.recursive(
    st.none() | st.integers() | st.just(10**400) | WORDS | st.sampled_from([CHATGPT, SHAREGPT, *ITEMS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(ODD, st.sampled_from([form.name for form in FORMATS if not form.is_database]))
def test_any_json_is_read_or_refused(value: Any, name: Any) -> None:
    try:
        for conversation in read_conversations(io.BytesIO(json.dumps(value).encode()), name):
            assert all(isinstance(message, dict) for message in conversation.messages) or name in ("chat", "swarm")
    except DomainError:
        pass


def replace_each(value: Any) -> Iterator[Any]:
    """The value with each part of it replaced by something odd, one after the other."""
    yield from (None, 17, "x", [], {}, [17], {"x": 17})
    if isinstance(value, dict):
        for name, item in value.items():
            for other in replace_each(item):
                yield {**value, name: other}
    elif isinstance(value, list):
        for place, item in enumerate(value):
            for other in replace_each(item):
                yield [*value[:place], other, *value[place + 1 :]]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (make_chatgpt(ASKED, CALLED, RESULT), "chatgpt"),
        (make_webui(webui_node("u", None, "user", "x", files=[{"type": "image", "url": PIXEL}]),
                    webui_node("a", "u", "assistant", BLOCKS, output=OUTPUT[:3])), "open-webui"),
        ({"conversationId": "l", "messages": [libre("m1", None, content=LIBRE_ANSWER, files=[{"filename": "x"}])]},
         "librechat"),
        ({**CONVERSATION, "items": ITEMS}, "conversations"),
        (SHAREGPT, "sharegpt"),
    ],
)  # fmt: skip
def test_each_part_may_be_anything(value: Any, name: Any) -> None:
    for odd in replace_each(value):
        with contextlib.suppress(InvalidImport):
            list(read_conversations(io.BytesIO(json.dumps(odd).encode()), name))


def test_every_side_knows_the_same_formats() -> None:
    known = {form.name for form in FORMATS}
    assert set(get_args(FileForm)) == {"export", *known}
    assert set(get_args(ImportFormat)) == set(get_args(FileFormat)) == {"auto", "export", *known}
