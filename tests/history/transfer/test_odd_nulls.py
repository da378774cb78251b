"""A file that sets more values to null than a context can hold, or deeper ones, is refused."""

from __future__ import annotations

import io

import pytest

from swarmkeep.events.facts import ContextUpdated
from swarmkeep.history.export import MAX_NULLS
from swarmkeep.history.import_export import verify_export
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from tests.history.transfer.test_odd_times import read_refusal, write_session


def set_nulls(*pointers: str) -> bytes:
    return write_session(ContextUpdated(patch={}, nulls=pointers))


def test_maximum_nulls_accepted() -> None:
    text = set_nulls(*(f"/{number}" for number in range(MAX_NULLS)))
    assert [place.begin.seq for place in verify_export(io.BytesIO(text))] == [2]
    assert list(verify_export(io.BytesIO(set_nulls("/" * MAX_PAYLOAD_DEPTH))))


@pytest.mark.parametrize(
    ("pointers", "why"),
    [
        (["/a"] * (MAX_NULLS + 1), f"more than {MAX_NULLS} values"),
        (["/a", "/" * (MAX_PAYLOAD_DEPTH + 1)], f"deeper than {MAX_PAYLOAD_DEPTH} levels"),
        (["/" * 400_000], f"deeper than {MAX_PAYLOAD_DEPTH} levels"),
    ],
    ids=["too many", "too deep", "far too deep"],
)
def test_excess_or_deeper_nulls_refused_by_line(pointers: list[str], why: str) -> None:
    error = read_refusal(set_nulls(*pointers))
    assert (error.line, why in str(error)) == (2, True)
