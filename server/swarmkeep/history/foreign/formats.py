"""The formats of conversations that were kept elsewhere: one table, by which a file is recognised and read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, cast, get_args

import msgspec

from swarmkeep.events.errors import InvalidImport
from swarmkeep.history.export import is_export
from swarmkeep.history.foreign.assistants import holds_api_objects, read_threads
from swarmkeep.history.foreign.chats import (
    holds_messages,
    is_chat,
    is_sharegpt,
    read_chats,
    read_sharegpt,
)
from swarmkeep.history.foreign.conversation import ForeignConversation
from swarmkeep.history.foreign.databases import (
    has_adk,
    has_agents_sdk,
    has_langgraph,
    read_adk,
    read_agents_sdk,
    read_langgraph,
)
from swarmkeep.history.foreign.documents import (
    MAX_FILE_VALUES,
    Sample,
    open_database,
    read_documents,
    take_sample,
)
from swarmkeep.history.foreign.items import holds_items, is_item, read_item_lists
from swarmkeep.history.foreign.trees import (
    is_chatgpt,
    is_librechat,
    is_open_webui,
    read_chatgpt,
    read_librechat,
    read_open_webui,
)
from swarmkeep.history.import_export import EXPORT, MAX_LINE_VALUES

ForeignFormat = Literal[
    "chat", "swarm", "assistants", "conversations", "chatgpt", "open-webui", "librechat", "sharegpt",
    "agents-sdk", "adk", "langgraph",
]  # fmt: skip
EXPORT_TITLE = "Swarmkeep's export"
_MAX_NAMES_SHOWN = 8


class Format(msgspec.Struct, frozen=True):
    """A format. `fits` looks at the first value of a file, or at the tables of a database; `splits` tells if a list
    that begins with this value is one of conversations, which are read one after the other. `indexes` are those that a
    database is read by."""

    name: ForeignFormat
    title: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Iterator[ForeignConversation]]
    splits: Callable[[Any], bool] = lambda _: True
    is_database: bool = False
    indexes: Sequence[str] = ()


# In the order in which a file is compared with them: what fits several is of the first.
FORMATS: tuple[Format, ...] = (
    Format("chatgpt", "ChatGPT's conversations.json", is_chatgpt, read_chatgpt),
    Format("open-webui", "an export of Open WebUI", is_open_webui, read_open_webui),
    Format("librechat", "an export of LibreChat", is_librechat, read_librechat),
    Format("assistants", "threads of OpenAI's Assistants API", holds_api_objects, read_threads, lambda _: False),
    Format(
        "conversations",
        "items of OpenAI's Conversations API",
        lambda value: is_item(value) or holds_items(value),
        read_item_lists,
        holds_items,
    ),
    Format("sharegpt", "ShareGPT's conversations", is_sharegpt, read_sharegpt),
    Format("chat", "messages of Chat Completions, or lines for fine-tuning", is_chat, read_chats, holds_messages),
    Format("swarm", "what programs on Swarm wrote", is_chat, read_chats, holds_messages),
    Format(
        "agents-sdk",
        "a SQLiteSession of OpenAI's Agents SDK",
        has_agents_sdk,
        read_agents_sdk,
        is_database=True,
        indexes=[
            "agent_sessions (session_id)",
            "agent_messages (session_id, id)",
            "message_structure (session_id, sequence_number)",
        ],
    ),
    Format(
        "adk",
        "a session database of ADK",
        has_adk,
        read_adk,
        is_database=True,
        indexes=[
            "sessions (app_name, user_id, id)",
            "events (app_name, user_id, session_id, timestamp)",
            "app_states (app_name)",
            "user_states (app_name, user_id)",
        ],
    ),
    Format(
        "langgraph",
        "checkpoints of LangGraph's SqliteSaver",
        has_langgraph,
        read_langgraph,
        is_database=True,
        indexes=["checkpoints (checkpoint_ns, thread_id, checkpoint_id)"],
    ),
)
_BY_NAME = {form.name: form for form in FORMATS}
assert set(_BY_NAME) == set(get_args(ForeignFormat))


def find_title(name: str) -> str:
    """The words for a format, as they are shown to people."""
    return EXPORT_TITLE if name == EXPORT else _BY_NAME[cast(ForeignFormat, name)].title


def recognise(file: BinaryIO) -> Literal["export"] | ForeignFormat:
    """Tell the format of a file by its beginning. Raises InvalidImport, which says what it is instead."""
    if is_export(file):
        return "export"
    sample = take_sample(file)
    form = _find_format(sample)
    if form is None:
        known = "; ".join(f"{form.title} ({form.name})" for form in FORMATS)
        raise InvalidImport(
            f"this file has no known format: it is {_describe(sample)}. Known are: {EXPORT_TITLE} (export); {known}"
        )
    return form.name


def _find_format(sample: Sample) -> Format | None:
    fitting = (form for form in FORMATS if form.is_database == sample.is_database and form.fits(sample.value))
    return next(fitting, None)


def _describe(sample: Sample) -> str:
    if sample.is_database:
        return f"a SQLite database with {_list_names('the tables', sample.value)}"
    if isinstance(sample.value, dict):
        return f"JSON that begins with an object with {_list_names('the keys', sample.value)}"
    return "JSON without an object at its beginning"


def _list_names(what: str, names: Mapping[str, Any]) -> str:
    shown = [repr(name)[:60] for name in list(names)[:_MAX_NAMES_SHOWN]]
    return f"{what} {', '.join(shown)}{' …' if len(names) > len(shown) else ''}" if shown else f"none of {what}"


def read_conversations(
    file: BinaryIO, name: ForeignFormat, *, max_line_values: int = MAX_LINE_VALUES
) -> Generator[ForeignConversation]:
    """The conversations in a file of this format, one at a time. Raises InvalidImport, which names what it is not."""
    form, sample = _BY_NAME[name], take_sample(file)
    if sample.is_database != form.is_database or not form.fits(sample.value):
        seen = _find_format(sample)
        instead = _describe(sample) if seen is None else f"{seen.title} (--from {seen.name})"
        if seen is not None or form.is_database or sample.is_database:
            raise InvalidImport(f"this is not {form.title}, but {instead}")
    if form.is_database:
        with open_database(file, form.indexes) as database:
            yield from form.read(database)
    else:
        splits = form.splits(sample.value)
        yield from form.read(
            read_documents(file, splits=splits, max_line_values=max_line_values, max_values=MAX_FILE_VALUES)
        )
