"""Lists in OpenAI's shape: `limit`, `order` and `after`, the id of an item."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from litestar.params import QueryParameter

from swarmkeep.api.openai.errors import make_not_found
from swarmkeep.api.openai.items.files import measure_item
from swarmkeep.api.openai.items.session_items import ItemOrder, SessionItems
from swarmkeep.domain.codec import Json

ItemLimit = Annotated[int, QueryParameter(ge=1, le=100, description="How many items a page holds.")]
Order = Annotated[ItemOrder, QueryParameter(description="The order of the items, by when they were added.")]
After = Annotated[str | None, QueryParameter(description="The id of the item that the page comes after.")]
Include = Annotated[list[str] | None, QueryParameter(name="include", description="Has no effect.")]
IncludeList = Annotated[list[str] | None, QueryParameter(name="include[]", description="Has no effect.")]


def list_page(items: Sequence[Json], *, limit: int, order: ItemOrder, after: str | None, max_bytes: int) -> Json:
    """A page of items that are given in order. Raises Refused."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise make_not_found("item", after, "after")
        ordered = ordered[ids.index(after) + 1 :]
    return make_page(ordered, limit=limit, max_bytes=max_bytes)


def list_session_page(items: SessionItems, *, limit: int, order: ItemOrder, after: str | None, max_bytes: int) -> Json:
    """A page of a session's items. Raises Refused."""
    # Whoever deletes what a page shows goes on after what is gone.
    before = None if after is None else items.find(after)
    if after is not None and before is None:
        raise make_not_found("item", after, "after")
    return make_page((listed.item for listed in items.walk(order, before)), limit=limit, max_bytes=max_bytes)


def make_page(items: Iterable[Json], *, limit: int, max_bytes: int) -> Json:
    """A page of the first items; shorter than its limit if it would be too large. One more than it has is asked for."""
    page: list[Json] = []
    size, has_more = 0, False
    for item in items:
        size += measure_item(item)
        has_more = len(page) == limit or (bool(page) and size > max_bytes)
        if has_more:
            break
        page.append(item)
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": has_more,
    }
