"""Changes of JSON values, a line for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from swarmkeep.cli.terminal import is_terminal, put
from swarmkeep.domain.wording import escape_controls

if TYPE_CHECKING:
    from swarmkeep_client import Change


# From this width on there is room for what was beside what is.
SIDE_BY_SIDE_COLUMNS = 100


def has_room_beside() -> bool:
    """Whether the output is a terminal that is wide enough for two sides."""
    return is_terminal(sys.stdout) and get_terminal_size().columns >= SIDE_BY_SIDE_COLUMNS


def put_changes(changes: Sequence[Change]) -> None:
    """A line for each; at a terminal that is wide enough, what was and what is side by side, in colour."""
    if changes and has_room_beside():
        _put_side_by_side(changes)
        return
    for change in changes:
        put(format_change(change.path, change.before, change.after))


def _put_side_by_side(changes: Sequence[Change]) -> None:
    from rich.table import Table
    from rich.text import Text

    from swarmkeep.cli.render.console import make_console

    table = Table.grid(padding=(0, 2), expand=True)
    # As wide as the names, as long as they leave most of the room to what changed.
    table.add_column(max_width=get_terminal_size().columns // 3, overflow="fold")
    for _ in ("before", "after"):
        table.add_column(ratio=1, overflow="fold")
    for change in changes:
        before = Text(
            "" if change.before is UNSET else escape_controls(f"- {_format_json(change.before)}"), style="red"
        )
        after = Text("" if change.after is UNSET else escape_controls(f"+ {_format_json(change.after)}"), style="green")
        table.add_row(Text(escape_controls(_name_place(change.path)), style="bold"), before, after)
    make_console().print(table)


def format_change(path: str, before: Any, after: Any) -> str:
    """A change of a place: what stood there, and what stands there; UNSET is nothing."""
    place = _name_place(path)
    if before is UNSET:
        return f"+ {place}: {_format_json(after)}"
    if after is UNSET:
        return f"- {place}: {_format_json(before)}"
    return f"~ {place}: {_format_json(before)} → {_format_json(after)}"


def _name_place(path: str) -> str:
    return path.removeprefix("/context_variables/").lstrip("/") or "all of it"


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
