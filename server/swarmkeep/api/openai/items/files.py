"""Files and pictures in items: their content is put back where an answer shows what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from swarmkeep.api.openai.items.content import show_part
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.files.places import MAX_SENT_BYTES
from swarmkeep.domain.files.references import FileReference, make_stand_in, read_reference, restore_part
from swarmkeep.engine.session_log import read_sound_files
from swarmkeep.store.ports import EventStore, SessionKey


async def put_back_files(
    store: EventStore,
    key: SessionKey,
    items: Sequence[Json],
    *,
    max_bytes: int = MAX_SENT_BYTES,
    times: Mapping[str, int] = MappingProxyType({}),
    for_model: bool = False,
) -> list[Json]:
    """The items with the content of the session's files that they show: up to a limit, and then words.

    `times`: how often each item is shown, by its id, where that is not once. `for_model`: raises HistoryDamaged if one
    of the files is not what was recorded.
    """
    sizes = _add_sizes(items, times)
    if not sizes:
        return list(items)
    wanted: list[str] = []
    for name, size in sizes.items():
        if size <= max_bytes:
            wanted.append(name)
            max_bytes -= size
    files = await (read_sound_files(store, key, wanted) if for_model else store.read_files(key, wanted))
    return await asyncio.to_thread(lambda: [_put_back(item, files) for item in items])


def measure_item(item: Json) -> int:
    """The bytes of an item once its files are put back."""
    return len(encode(item)) + measure_files([item])


def measure_files(items: Iterable[Json], times: Mapping[str, int] = MappingProxyType({})) -> int:
    """The bytes that the files of items take once they are put back."""
    return sum(size * 4 // 3 for size in _add_sizes(items, times).values())


def _add_sizes(items: Iterable[Json], times: Mapping[str, int]) -> dict[str, int]:
    """The files of items by their hashes, with the bytes of all places where each is shown."""
    sizes: dict[str, int] = {}
    for item in items:
        for reference in _list_references([item]):
            size = reference.size * times.get(str(item.get("id")), 1)
            sizes[reference.sha256] = sizes.get(reference.sha256, 0) + size
    return sizes


def _list_references(items: Iterable[Json]) -> Iterator[FileReference]:
    for item in items:
        for part in _list_parts(item):
            if (reference := read_reference(part.get("blob_part"))) is not None:
                yield reference


def _list_parts(item: Json) -> list[Any]:
    content = item.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _put_back(item: Json, files: Mapping[str, bytes]) -> Json:
    if not any("blob_part" in part for part in _list_parts(item)):
        return item
    return {**item, "content": [_put_back_part(part, files) for part in item["content"]]}


def _put_back_part(shown: Json, files: Mapping[str, bytes]) -> Json:
    part = shown.get("blob_part")
    reference = read_reference(part)
    if part is None or reference is None:
        return shown
    content = files.get(reference.sha256)
    whole = make_stand_in(part, reference, "left out") if content is None else restore_part(part, reference, content)
    return show_part(whole) or shown
