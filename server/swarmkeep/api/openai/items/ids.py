"""Ids of responses and items: each says where in which session it stands, so that any server finds it without an index.

    resp_RUN[-PART].SESSION         a response: a run, or the part of it after its n-th wait
    msg_RUN-TURN.SESSION            a message of a model: the reply to the n-th model call of a run
    msg_sSEQ.SESSION                any other message, by its event
    fc_RUN-TURN-INDEX.SESSION       a call of one; `mcp_`, `mcpr_`, `mcpa_` and `fco_` alike

RUN is a run's id without its `run_`. A fork has its parent's runs, and ids of its own for them.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

ItemKind = Literal["msg", "fc", "fco", "mcp", "mcpr", "mcpa"]

# Not what would look like an event.
_PLAIN_RUN = re.compile(r"run_((?!s[0-9]+\Z)[0-9A-Za-z]{1,64})", re.ASCII)
_RESPONSE = re.compile(r"resp_(~?[0-9A-Za-z]{1,300})(?:-([1-9][0-9]{0,8}))?\.(.{1,128})", re.ASCII | re.DOTALL)
_ITEM = re.compile(
    r"(msg|fc|fco|mcp|mcpr|mcpa)_(?:s([1-9][0-9]{0,15})|(~[0-9a-f]*|[0-9A-Za-z]{1,64})-([0-9]{1,9}))(?:-([0-9]{1,9}))?\.(.{1,128})",
    re.ASCII | re.DOTALL,
)


class ResponseId(msgspec.Struct, frozen=True):
    """`part` counts the waits of the run before it."""

    session_id: str
    run_id: str
    part: int = 0

    def __str__(self) -> str:
        part = f"-{self.part}" if self.part else ""
        return f"resp_{_shorten_run(self.run_id)}{part}.{self.session_id}"


class ItemPlace(msgspec.Struct, frozen=True):
    """Where an item comes from: an event by its `seq`, or the `turn` of a run, and of its calls the `index`."""

    session_id: str
    seq: int | None = None
    run_id: str | None = None
    turn: int = 0
    index: int | None = None

    def make_id(self, kind: ItemKind) -> str:
        place = f"s{self.seq}" if self.run_id is None else f"{_shorten_run(self.run_id)}-{self.turn}"
        index = "" if self.index is None else f"-{self.index}"
        return f"{kind}_{place}{index}.{self.session_id}"

    def at_call(self, index: int) -> ItemPlace:
        return msgspec.structs.replace(self, index=index)


def parse_response_id(text: str) -> ResponseId | None:
    """None for what no response here is called."""
    found = _RESPONSE.fullmatch(text)
    run_id = None if found is None else _lengthen_run(found[1])
    return None if found is None or run_id is None else ResponseId(found[3], run_id, int(found[2] or 0))


def parse_item_id(text: str) -> tuple[ItemKind, ItemPlace] | None:
    """None for what no item here is called."""
    found = _ITEM.fullmatch(text)
    if found is None:
        return None
    kind, seq, run, turn, index, session_id = found.groups()
    run_id = None if run is None else _lengthen_run(run)
    if seq is None and run_id is None:
        return None
    place = ItemPlace(
        session_id,
        seq=None if seq is None else int(seq),
        run_id=run_id,
        turn=int(turn or 0),
        index=None if index is None else int(index),
    )
    return cast("ItemKind", kind), place


def _shorten_run(run_id: str) -> str:
    plain = _PLAIN_RUN.fullmatch(run_id)
    # A run that came out of a file may be called anything.
    return plain[1] if plain is not None else f"~{run_id.encode('utf-8', 'surrogatepass').hex()}"


def _lengthen_run(text: str) -> str | None:
    if not text.startswith("~"):
        return f"run_{text}"
    try:
        return bytes.fromhex(text[1:]).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
