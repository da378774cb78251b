"""Conversations that are trees, as ChatGPT, Open WebUI and LibreChat export them: other branches become forks."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from swarmkeep.events.codec import Json, MalformedJson, decode
from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.foreign.conversation import (
    CITATIONS,
    EMPTY,
    FILES,
    HIDDEN,
    MORE_BRANCHES,
    REASONING,
    STRAY_NODES,
    Branch,
    ForeignConversation,
    add_parts,
    answer,
    as_dict,
    as_list,
    as_text,
    ask,
    choose_id,
    convert_parts,
    format_time,
    keep,
    make_call,
    mark,
    name_file,
    name_files,
)
from swarmkeep.history.foreign.documents import Document
from swarmkeep.history.foreign.items import convert_items

MAX_BRANCHES = 100
"""Forks of one conversation."""
MAX_BRANCH_MESSAGES = 100_000
"""Of all forks of one conversation together: each has what it shares, too."""


class Tree(msgspec.Struct, frozen=True):
    """The nodes of a conversation: the id of each one's parent, and its messages, which may be none."""

    parents: dict[str, str | None]
    messages: dict[str, list[Json]]
    current: str | None

    def split(self, left_out: Counter[str]) -> tuple[list[Json], list[Branch]]:
        """The messages up to the node that was looked at last, and what branches off there."""
        children: dict[str, list[str]] = {}
        roots = []
        for name, parent in self.parents.items():
            if parent is None or parent not in self.parents:
                roots.append(name)
            else:
                children.setdefault(parent, []).append(name)
        reached = _walk(roots, children)
        left_out[STRAY_NODES] += sum(len(self.messages[name]) for name in self.parents if name not in reached)
        leaves = [name for name in reached if name not in children]
        end = self._find_end(reached, children)
        if end is None:
            return [], []
        trunk = self._climb(end, set())
        ends = {}
        count = 0
        for name in trunk:
            count += len(self.messages[name])
            ends[name] = count
        messages = [message for name in trunk for message in self.messages[name]]
        return messages, list(self._list_branches([leaf for leaf in leaves if leaf != end], ends, left_out))

    def _find_end(self, reached: Mapping[str, None], children: Mapping[str, list[str]]) -> str | None:
        """The current node, and from there on what was said last; without one, the last node."""
        if not reached:
            return None
        end = self.current if self.current is not None and self.current in reached else next(reversed(list(reached)))
        while end in children:
            end = children[end][-1]
        return end

    def _climb(self, leaf: str, known: Iterable[str]) -> list[str]:
        """The nodes that lead to this one, without those that are known."""
        path: list[str] = []
        name: str | None = leaf
        while name is not None and name in self.parents and name not in known:
            path.append(name)
            name = self.parents[name]
        return path[::-1]

    def _list_branches(self, leaves: list[str], ends: Mapping[str, int], left_out: Counter[str]) -> Iterator[Branch]:
        """The other ways through the tree, as far as they say something that the trunk does not."""
        count = size = 0
        for leaf in leaves:
            if count == MAX_BRANCHES or size > MAX_BRANCH_MESSAGES:
                left_out[MORE_BRANCHES] += 1
                continue
            path = self._climb(leaf, ends)
            messages = [message for name in path for message in self.messages[name]]
            parent = self.parents[path[0]]
            shared = ends.get(parent, 0) if parent is not None else 0
            size += len(path) + shared
            if messages:
                count += 1
                yield Branch(name=leaf, shared=shared, messages=messages)


def _walk(roots: Iterable[str], children: Mapping[str, list[str]]) -> dict[str, None]:
    """All nodes below these, each after its parent. What is in a circle has no root."""
    reached: dict[str, None] = {}
    left = list(roots)[::-1]
    while left:
        name = left.pop()
        reached[name] = None
        left += reversed(children.get(name, ()))
    return reached


def _read_parent(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _read_all(
    found: Iterable[Document], is_one: Callable[[Any], bool], read: Callable[[Json], ForeignConversation], what: str
) -> Iterator[ForeignConversation]:
    for document in found:
        value = document.value
        several = isinstance(value, list)
        for number, one in enumerate(value if several else [value]):
            place = f"{document.place}/{number}" if several else document.place
            if not is_one(one):
                where = f"{place}: " if place else ""
                raise InvalidImport(f"{where}this is no conversation of {what}", line=document.line)
            yield msgspec.structs.replace(read(one), place=place, line=document.line)


def _make_conversation(tree: Tree, left_out: Counter[str], *, id: Any, title: Any, origin: Json) -> ForeignConversation:
    messages, branches = tree.split(left_out)
    if not messages and not branches:
        left_out[EMPTY] += 1
    return ForeignConversation(
        messages=messages,
        id=choose_id(id),
        metadata=keep(title=title if isinstance(title, str) else None),
        origin=origin,
        branches=branches,
        left_out=+left_out,
        empty=not messages and not branches,
    )


# ChatGPT: conversations.json of an account's data.


def is_chatgpt(value: Any) -> bool:
    return isinstance(value, dict) and (
        isinstance(value.get("mapping"), dict) or ("conversation_id" in value and "create_time" in value)
    )


def read_chatgpt(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """Conversations of ChatGPT. Raises InvalidImport."""
    return _read_all(found, is_chatgpt, _read_chatgpt, "ChatGPT")


def _read_chatgpt(value: Json) -> ForeignConversation:
    left_out: Counter[str] = Counter()
    nodes = {name: as_dict(node) for name, node in as_dict(value.get("mapping")).items()}
    parents = {name: _read_parent(node.get("parent")) for name, node in nodes.items()}
    reader = _ChatGptNodes(nodes, parents, left_out)
    return _make_conversation(
        Tree(parents, {name: reader.convert(name) for name in nodes}, _read_parent(value.get("current_node"))),
        left_out,
        id=value.get("conversation_id") or value.get("id"),
        title=value.get("title"),
        origin=keep(
            created_at=format_time(value.get("create_time")),
            updated_at=format_time(value.get("update_time")),
            model=value.get("default_model_slug"),
            gizmo_id=value.get("gizmo_id"),
            is_archived=value.get("is_archived") or None,
        ),
    )


class _ChatGptNodes:
    """The nodes of one conversation. Calls have no ids: each gets that of its node, and a result is below its call."""

    def __init__(self, nodes: Mapping[str, Json], parents: Mapping[str, str | None], left_out: Counter[str]) -> None:
        self._nodes = nodes
        self._parents = parents
        self._left_out = left_out

    def convert(self, name: str) -> list[Json]:
        message = as_dict(self._nodes[name].get("message"))
        role, about = as_dict(message.get("author")).get("role"), as_dict(message.get("metadata"))
        content = as_dict(message.get("content"))
        if role not in ("user", "assistant", "tool", "system"):
            return []
        kind = content.get("content_type")
        if kind in ("thoughts", "reasoning_recap"):
            self._left_out[REASONING] += 1
            return []
        said = self._convert_content(content, role)
        if about.get("is_visually_hidden_from_conversation") or message.get("weight") == 0:
            # Each conversation begins with an empty one, of which there is nothing to say.
            self._left_out[HIDDEN] += bool(said) or kind not in ("text", None)
            return []
        attachments = [file for file in as_list(about.get("attachments")) if isinstance(file, dict)]
        kept = {
            "id": message.get("id"),
            "created_at": format_time(message.get("create_time")),
            "model": about.get("model_slug"),
            "attachments": attachments,
            "status": None if message.get("status") == "finished_successfully" else message.get("status"),
        }
        called = _read_recipient(message)
        if called is not None:
            call = make_call(f"call_{name}", called, _join_texts(said))
            return [mark(ask([call]), **kept)]
        said = add_parts(said, name_files(attachments, self._left_out))
        if role == "tool":
            return self._convert_result(name, message, _join_texts(said), kept)
        return [mark({"role": role, "content": said}, **kept)] if said else []

    def _convert_result(self, name: str, message: Json, content: str, kept: Json) -> list[Json]:
        """The result below its call; one of several, or without a call, gets a call of its own."""
        tool = as_dict(message.get("author")).get("name")
        parent = self._parents[name]
        if (
            parent is not None
            and parent in self._nodes
            and _read_recipient(as_dict(self._nodes[parent].get("message"))) is not None
        ):
            return [mark(answer(f"call_{parent}", tool, content), **kept)]
        asking = ask([make_call(f"call_{name}", tool, None)])
        return [asking, mark(answer(f"call_{name}", tool, content), **kept)]

    def _convert_content(self, content: Json, role: str) -> str | list[Json]:
        if isinstance(content.get("parts"), list):
            parts = [told for part in content["parts"] if (told := self._convert_part(part)) is not None]
            return convert_parts(parts, role, self._left_out) if parts else ""
        for key in ("text", "result", "summary", "content"):
            if isinstance(content.get(key), str) and content[key]:
                return str(content[key])
        return ""

    def _convert_part(self, part: Any) -> Json | None:
        if not isinstance(part, dict):
            return {"type": "text", "text": as_text(part)} if part not in (None, "") else None
        if isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        self._left_out[FILES] += 1
        kind = str(part.get("content_type") or "part")
        # What was said aloud is an object in it.
        asset = {**as_dict(part.get("audio_asset_pointer")), **part}.get("asset_pointer")
        return name_file("image" if "image" in kind else "audio" if "audio" in kind else "file", asset)


def _read_recipient(message: Json) -> str | None:
    """The tool that a message of the assistant is for."""
    recipient = message.get("recipient")
    is_call = as_dict(message.get("author")).get("role") == "assistant" and recipient not in (
        "all",
        "assistant",
        "user",
    )
    return recipient if is_call and isinstance(recipient, str) and recipient else None


def _join_texts(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "\n".join(as_text(part.get("text")) for part in content)


# Open WebUI: the chats of a user, or of all.


def is_open_webui(value: Any) -> bool:
    chat = value.get("chat") if isinstance(value, dict) else None
    return _is_bare_chat(value) or (
        isinstance(chat, dict) and (isinstance(chat.get("history"), dict) or isinstance(chat.get("messages"), list))
    )


def _is_bare_chat(value: Any) -> bool:
    """Tell if it is a chat of the first releases, without what is around it now."""
    history = value.get("history") if isinstance(value, dict) else None
    return isinstance(history, dict) and isinstance(history.get("messages"), dict)


def read_open_webui(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """Chats of Open WebUI. Raises InvalidImport."""
    return _read_all(found, is_open_webui, _read_open_webui, "Open WebUI")


def _read_open_webui(value: Json) -> ForeignConversation:
    left_out: Counter[str] = Counter()
    chat = value if _is_bare_chat(value) else value["chat"]
    history = as_dict(chat.get("history"))
    nodes = {name: as_dict(node) for name, node in as_dict(history.get("messages")).items()}
    current = _read_parent(history.get("currentId"))
    if nodes:
        parents = {name: _read_parent(node.get("parentId")) for name, node in nodes.items()}
    else:
        # Chats of the first releases are lists.
        nodes = {str(place): as_dict(node) for place, node in enumerate(as_list(chat.get("messages")))}
        parents = {name: str(int(name) - 1) if name != "0" else None for name in nodes}
    return _make_conversation(
        Tree(parents, {name: _convert_open_webui(name, node, left_out) for name, node in nodes.items()}, current),
        left_out,
        id=value.get("id") or chat.get("id"),
        title=value.get("title") or chat.get("title"),
        origin=keep(
            created_at=format_time(value.get("created_at") or chat.get("timestamp")),
            updated_at=format_time(value.get("updated_at")),
            models=chat.get("models"),
            system=as_dict(chat.get("params")).get("system") or chat.get("system"),
            tags=as_dict(value.get("meta")).get("tags") or chat.get("tags"),
            folder_id=value.get("folder_id"),
        ),
    )


def _convert_open_webui(name: str, node: Json, left_out: Counter[str]) -> list[Json]:
    role = node.get("role")
    if role not in ("user", "assistant", "system", "tool"):
        return []
    kept = {
        "id": node.get("id"),
        "created_at": format_time(node.get("timestamp")),
        "model": node.get("model"),
        "usage": node.get("usage") or node.get("info"),
        "error": node.get("error"),
    }
    left_out[CITATIONS] += len(as_list(node.get("sources") or node.get("citations")))
    if role == "assistant":
        output = node.get("output")
        told = (
            convert_items([(item, None) for item in output], left_out)
            if isinstance(output, list) and output
            else _convert_blocks(name, as_text(node.get("content")), left_out)
        )
        if told:
            told[-1] = {**told[-1], "imported": {**as_dict(told[-1].get("imported")), **keep(**kept)}}
        return told
    parts = [part for file in as_list(node.get("files")) for part in _convert_file(file, role, left_out)]
    content = add_parts(convert_parts(node.get("content"), role, left_out), parts)
    answered = {"tool_call_id": f"call_{name}"} if role == "tool" else {}
    return [mark({"role": role, "content": content, **answered}, **kept)]


def _convert_file(file: Any, role: str, left_out: Counter[str]) -> list[Json]:
    """A picture that is in the export stays; other files are named."""
    url = as_dict(file).get("url")
    if as_dict(file).get("type") != "image" or not isinstance(url, str):
        return name_files([file], left_out)
    part = convert_parts([{"type": "image_url", "image_url": {"url": url}}], role, left_out)
    return part if isinstance(part, list) else [{"type": "text", "text": part}]


_BLOCK, _BLOCK_END = "<details type=", "</details>"
_ATTRIBUTE = re.compile(r'([a-z_]{1,40})="([^"]*)"')


def _convert_blocks(name: str, content: str, left_out: Counter[str]) -> list[Json]:
    """An answer whose calls and reasoning stand in it as blocks of HTML."""
    first, *rest = content.split(_BLOCK)
    messages: list[Json] = []
    text = first
    for number, piece in enumerate(rest):
        head, closed, inner = piece.partition(">")
        body, ended, after = inner.partition(_BLOCK_END)
        kind = head.split('"')[1] if head.startswith('"') and head.count('"') > 1 else ""
        if not closed or not ended or kind not in ("reasoning", "tool_calls"):
            text += _BLOCK + piece
            continue
        if kind == "reasoning":
            left_out[REASONING] += 1
        else:
            found = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(f"type={head}")}
            call_id = found.get("id") or f"call_{name}_{number}"
            call = make_call(call_id, found.get("name"), _parse(found.get("arguments")))
            result = _parse(found["result"]) if "result" in found else re.sub(r"<summary>[^<]*</summary>", "", body)
            messages += [ask([call], text.strip()), answer(call_id, found.get("name"), as_text(result))]
            text = ""
        text += after.lstrip("\n") if not text.strip() else after
    if text.strip() or not messages:
        messages.append({"role": "assistant", "content": text.strip() if rest else text})
    return messages


def _parse(text: str | None) -> Any:
    try:
        return None if text is None else decode(text)
    except MalformedJson:
        return text


# LibreChat: one conversation in each file.

_NO_PARENT = "00000000-0000-0000-0000-000000000000"


def _list_librechat(value: Json) -> Any:
    return value.get("messages", value.get("messagesTree"))


def is_librechat(value: Any) -> bool:
    return isinstance(value, dict) and "conversationId" in value and isinstance(_list_librechat(value), list)


def read_librechat(found: Iterable[Document]) -> Iterator[ForeignConversation]:
    """Conversations of LibreChat. Raises InvalidImport."""
    return _read_all(found, is_librechat, _read_librechat, "LibreChat")


def _read_librechat(value: Json) -> ForeignConversation:
    left_out: Counter[str] = Counter()
    nodes: dict[str, Json] = {}
    parents: dict[str, str | None] = {}
    left: list[tuple[str | None, Any]] = []
    left += ((None, one) for one in reversed(_list_librechat(value)))
    while left:
        above, one = left.pop()
        if isinstance(one, dict):
            name = one["messageId"] if isinstance(one.get("messageId"), str) else f"message_{len(nodes)}"
            parent = _read_parent(one.get("parentMessageId")) or above
            nodes[name], parents[name] = one, None if parent == _NO_PARENT else parent
            left += [(name, child) for child in reversed(as_list(one.get("children")))]
    latest = max(nodes, key=lambda name: (format_time(nodes[name].get("createdAt")) or "", 0), default=None)
    return _make_conversation(
        Tree(parents, {name: _convert_librechat(name, node, left_out) for name, node in nodes.items()}, latest),
        left_out,
        id=value.get("conversationId"),
        title=value.get("title"),
        origin=keep(endpoint=value.get("endpoint"), options=value.get("options"), exported_at=value.get("exportAt")),
    )


def _convert_librechat(name: str, node: Json, left_out: Counter[str]) -> list[Json]:
    kept = {
        "id": node.get("messageId"),
        "created_at": format_time(node.get("createdAt")),
        "model": node.get("model"),
        "sender": node.get("sender"),
        "error": node.get("error") or None,
        "unfinished": node.get("unfinished") or None,
    }
    role = "user" if node.get("isCreatedByUser") or node.get("sender") == "User" else "assistant"
    parts = [part for part in as_list(node.get("content")) if isinstance(part, dict)]
    messages: list[Json] = []
    texts: list[Json] = []
    for number, part in enumerate(parts):
        call = part.get("tool_call")
        if part.get("type") != "tool_call" or not isinstance(call, dict):
            texts.append(_unpack_librechat(part))
            continue
        call_id = call["id"] if isinstance(call.get("id"), str) and call["id"] else f"call_{name}_{number}"
        before = convert_parts(texts, "assistant", left_out)
        tool, arguments, output = _read_librechat_call(call)
        messages.append(
            mark(ask([make_call(call_id, tool, arguments)], before if isinstance(before, str) else None), **kept)
        )
        if output is not None:
            messages.append(answer(call_id, tool, as_text(output)))
        texts = []
    said = convert_parts(texts, role, left_out) if parts else as_text(node.get("text"))
    files = name_files([*as_list(node.get("files")), *as_list(node.get("attachments"))], left_out)
    said = add_parts(said, files)
    if said or not messages:
        messages.append(mark({"role": role, "content": said}, **kept))
    return messages


def _read_librechat_call(call: Json) -> tuple[Any, Any, Any]:
    """The tool, its arguments and what came of it: of LibreChat's own agents, or as OpenAI's Assistants have them."""
    kind = as_text(call.get("type"))
    details = as_dict(call.get(kind)) or call
    arguments = details.get("args", details.get("arguments", details.get("input")))
    output = details.get("output", details.get("outputs", call.get("output")))
    return details.get("name") or call.get("name") or kind, arguments, output


def _unpack_librechat(part: Json) -> Json:
    """The part with an error as text."""
    return {"type": "text", "text": part.get("error")} if part.get("type") == "error" else part
