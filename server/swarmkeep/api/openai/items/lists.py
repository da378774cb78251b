"""Lists in OpenAI's shape: `limit`, `order` and `after`, the id of an item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from litestar.params import QueryParameter

from swarmkeep.api.openai.errors import not_found
from swarmkeep.api.openai.items.files import measure_item
from swarmkeep.domain.codec import Json

ItemLimit = Annotated[int, QueryParameter(ge=1, le=100, description="How many items a page holds.")]
Order = Annotated[Literal["asc", "desc"], QueryParameter(description="By the order in which they came.")]
After = Annotated[str | None, QueryParameter(description="The id of the item that the page comes after.")]
Include = Annotated[list[str] | None, QueryParameter(name="include", description="Changes nothing here.")]
IncludeList = Annotated[list[str] | None, QueryParameter(name="include[]", description="Changes nothing here.")]


def list_page(
    items: Sequence[Json],
    *,
    limit: int,
    order: str,
    after: str | None,
    max_bytes: int,
    ids: Sequence[str] | None = None,
) -> Json:
    """A page of items that are given in order; shorter than its limit if it would be too large. Raises Refused.

    `ids` are those of all items that there have been, in the same order: a page may come after one that is gone.
    """
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        known = [item["id"] for item in items] if ids is None else ids
        if after not in known:
            raise not_found("item", after, "after")
        place = known.index(after)
        later = set(known[place + 1 :] if order == "asc" else known[:place])
        ordered = [item for item in ordered if item["id"] in later]
    page: list[Json] = []
    size = 0
    for item in ordered[:limit]:
        size += measure_item(item)
        if page and size > max_bytes:
            break
        page.append(item)
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(page) < len(ordered),
    }
