"""Files and pictures on the page: shown from this server alone, and named."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.pictures import hash_content, make_inline_file, make_inline_picture, make_message
from tests.support.scripted import ScriptedModel
from tests.web.window import Api, Window

pytestmark = pytest.mark.long


def make_square(red: int = 200) -> bytes:
    """A whole picture, which a browser can show: 40 × 40 of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((red, 90, 90)) * 40) * 40
    size = struct.pack(">IIBBBBB", 40, 40, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


PICTURE = make_square()


def test_pictures_are_shown_and_files_named(window: Window, api: Api) -> None:
    said = make_message(make_inline_picture(PICTURE), make_inline_file(b"%PDF-1.7", "report.pdf"), text="Look")
    api.post("sessions", {"id": "with-files", "messages": [said]})
    window.open_chat("with-files")
    expect(window.questions).to_have_text(["Look"])
    picture = window.log.get_by_role("img", name=re.compile("^picture"))
    expect(picture).to_have_count(1)
    assert picture.evaluate("async (node) => { await node.decode(); return node.naturalWidth; }") == 40
    expect(window.log.get_by_text("file, report.pdf, application/pdf, 8 B")).to_be_visible()
    window.open_timeline("with-files", 2)
    expect(window.page.get_by_role("img", name=re.compile("^picture"))).to_have_count(1)


def test_file_is_saved_with_its_name(window: Window, api: Api, tmp_path: Path) -> None:
    api.post("sessions", {"id": "to-save", "messages": [make_message(make_inline_file(b"%PDF-1.7", "report.pdf"))]})
    window.open_chat("to-save")
    with window.page.expect_download() as waiting:
        window.log.get_by_role("button", name="Save this file").click()
    assert waiting.value.suggested_filename == "report.pdf"
    waiting.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == b"%PDF-1.7"


def test_false_picture_is_not_shown(window: Window, api: Api) -> None:
    said = make_message(make_inline_picture(b"no picture at all"))
    api.post("sessions", {"id": "no-picture", "messages": [said]})
    window.open_chat("no-picture")
    with window.page.expect_response(re.compile("/blobs/" + hash_content(b"no picture at all"))):
        window.page.reload()
    expect(window.log.get_by_text("picture, image/png, 17 B")).to_be_visible()
    expect(window.log.get_by_role("img")).to_have_count(0)


def test_function_file_is_shown_with_result(window: Window, api: Api, model: ScriptedModel) -> None:
    session = api.session(agent="Painter")
    model.call("paint", id="c1")
    model.say("Painted.")
    window.open_chat(session)
    window.say("Paint one.")
    picture = window.log.get_by_role("img", name=re.compile("^picture"))
    expect(picture).to_have_count(1)
    assert picture.evaluate("async (node) => { await node.decode(); return node.naturalWidth; }") == 1
    expect(window.log.get_by_text("file, a.csv, text/csv, 3 B")).to_be_visible()
    left = "(node) => node.getBoundingClientRect().x"
    card, shown = window.calls.first.evaluate(left), picture.evaluate(left)
    assert shown == window.log.locator("figcaption").first.evaluate(left) > card + 10
    (result,) = [event["seq"] for event in api.events(session) if event["data"].get("tool")]
    window.open_timeline(session, result)
    expect(window.page.get_by_role("img", name=re.compile("^picture"))).to_have_count(1)
