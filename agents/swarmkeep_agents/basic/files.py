"""A function that gives a picture: it is kept beside the log, shown to people, and to models that can see."""

import struct
import zlib

from swarmkeep import Agent, File, Result

WIDTH, HEIGHT = 200, 20
FULL, EMPTY = b"\x00", b"\xff"


def paint_bar(percent: int) -> bytes:
    """A PNG of a bar, in shades of grey."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    filled = WIDTH * percent // 100
    row = b"\x00" + FULL * filled + EMPTY * (WIDTH - filled)
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row * HEIGHT))
        + chunk(b"IEND", b"")
    )


def draw_bar(percent: int) -> Result:
    """Draw a bar that shows a share in percent.

    Args:
        percent: How much of it is filled, from 0 to 100.
    """
    shown = max(0, min(percent, 100))
    return Result(f"A bar of {shown} percent.", files=[File(paint_bar(shown), "image/png", "bar.png")])


chart_agent = Agent(name="Chart Agent", instructions="You draw bars for shares.", functions=[draw_bar])
