"""Frames come out alike however the network cuts the bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmkeep_client._sse import Frame, FrameParser

RECORDED = (
    ": ping\n\n"
    "id: 1\nevent: run.started\ndata: {}\n\n"
    'event: message.delta\ndata: {"content": "Grüße 👋\u2028"}\n\n'
    ":\n"
    "data: two\ndata:  lines\n\n"
    "event: nothing-to-tell\n\n"
    "id\ndata\n\n"
    "retry: 10\nid: 7\nfuture: x\ndata:{}\n\n"
).encode()

FRAMES = [
    Frame("run.started", b"{}", "1"),
    Frame("message.delta", '{"content": "Grüße 👋\u2028"}'.encode()),
    Frame("message", b"two\n lines"),
    Frame("message", b"", ""),
    Frame("message", b"{}", "7"),
]


def parse(*chunks: bytes) -> list[Frame]:
    parser = FrameParser()
    return [frame for chunk in chunks for frame in parser.feed(chunk)]


def test_frames_independent_of_line_endings() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        recorded = RECORDED.replace(b"\n", end)
        assert parse(recorded) == FRAMES
        assert parse(*(bytes([byte]) for byte in recorded)) == FRAMES
        for cut in range(len(recorded)):
            assert parse(recorded[:cut], b"", recorded[cut:]) == FRAMES


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(RECORDED)), max_size=9), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_frames_independent_of_chunks(cuts: list[int], end: bytes) -> None:
    recorded = RECORDED.replace(b"\n", end)
    edges = [0, *sorted(cuts), len(recorded)]
    assert parse(*(recorded[a:b] for a, b in pairwise(edges))) == FRAMES


def test_unterminated_frame_is_not_given() -> None:
    assert parse(b"data: {}\n") == []
    assert parse(b"data: {}\n\ndata: {}") == [Frame("message", b"{}")]


def test_byte_order_mark_is_ignored() -> None:
    assert parse(b"\xef", b"\xbb\xbfdata: {}\n\n") == [Frame("message", b"{}")]


def test_id_belongs_only_to_its_frame() -> None:
    assert parse(b"id: 1\ndata: a\n\ndata: b\n\n") == [Frame("message", b"a", "1"), Frame("message", b"b")]


def test_id_with_a_nul_is_ignored() -> None:
    assert parse(b"id: 1\0\ndata: a\n\n") == [Frame("message", b"a")]
