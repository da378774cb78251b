"""Files and pictures: shown from this server alone, and sent with a message, or refused before anything is sent."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, JSHandle, Locator, Request, expect

from tests.support.pictures import hash_content, make_data_url, make_inline_file, make_inline_picture, make_message
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.window import PHONE, Api, Window

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


# Files that are sent with a message: chosen, pasted or dropped.


WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20)
PDF = b"%PDF-1.7\n%%EOF"
CARRIED = """({ name, type, content }) => {
  const carried = new DataTransfer();
  carried.items.add(new File([Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0))], name, { type }));
  return carried;
}"""


def attach(window: Window, *files: FilePayload) -> None:
    """Choose files by the button, with the keyboard."""
    with window.page.expect_file_chooser() as chooser:
        window.page.get_by_role("button", name="Attach files").press("Enter")
    assert chooser.value.is_multiple()
    chooser.value.set_files(list(files))


def carry(window: Window, name: str, media_type: str, content: bytes) -> JSHandle:
    given = {"name": name, "type": media_type, "content": base64.b64encode(content).decode()}
    return window.page.evaluate_handle(CARRIED, given)


def attached(window: Window) -> Locator:
    return window.page.get_by_role("list", name="Attached files").get_by_role("listitem")


def refusals(window: Window) -> Locator:
    return window.page.locator(".composer [role=status] p")


def last_parts(model: ScriptedModel) -> list[Any]:
    content = model.requests[-1]["messages"][-1]["content"]
    assert isinstance(content, list)
    return content


def test_chosen_files_are_sent_as_parts(window: Window, model: ScriptedModel) -> None:
    model.say("A red square, a sound and a report.")
    window.open()
    expect(window.composer).to_be_focused()
    attach(
        window,
        {"name": "square.png", "mimeType": "image/png", "buffer": PICTURE},
        {"name": "sound.wav", "mimeType": "audio/x-wav", "buffer": WAV},
        {"name": "report.pdf", "mimeType": "application/pdf", "buffer": PDF},
    )
    expect(attached(window)).to_contain_text(["square.png", "sound.wav", "report.pdf"])
    expect(attached(window).first.locator("img")).to_be_visible()
    # What was said and chosen is one message, of a session that begins with it.
    window.say("What are these?")
    expect(window.answers).to_have_text(["A red square, a sound and a report."])
    assert last_parts(model) == [
        {"type": "text", "text": "What are these?"},
        {"type": "image_url", "image_url": {"url": make_data_url(PICTURE)}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
        {"type": "file", "file": {"filename": "report.pdf", "file_data": make_data_url(PDF, "application/pdf")}},
    ]
    expect(window.log.get_by_role("img", name=re.compile("^picture"))).to_be_visible()
    expect(window.log.get_by_text("report.pdf")).to_be_visible()
    expect(attached(window)).to_have_count(0)


def test_pasted_and_dropped_files_are_attached(window: Window, model: ScriptedModel, api: Api) -> None:
    model.say("One of them.")
    window.open_chat(api.session(agent="Front Desk"))
    expect(window.composer).to_be_focused()
    pasted = carry(window, "image.png", "image/png", PICTURE)
    window.composer.evaluate(
        "(node, clipboardData) => node.dispatchEvent(new ClipboardEvent('paste', { clipboardData, cancelable: true }))",
        pasted,
    )
    expect(attached(window)).to_have_count(1)
    # Anywhere on the conversation.
    dropped = carry(window, "other.png", "image/png", make_square(90))
    window.log.dispatch_event("dragover", {"dataTransfer": dropped})
    expect(window.page.locator(".composer.dropping")).to_be_visible()
    window.log.dispatch_event("drop", {"dataTransfer": dropped})
    expect(attached(window)).to_contain_text(["image.png", "other.png"])
    expect(window.page.locator(".composer.dropping")).to_have_count(0)
    window.page.get_by_role("button", name="Remove image.png").press("Enter")
    expect(attached(window)).to_have_count(1)
    expect(window.composer).to_be_focused()
    # Without any words.
    window.composer.press("Enter")
    expect(window.answers).to_have_text(["One of them."])
    assert [part["image_url"]["url"] for part in last_parts(model)] == [make_data_url(make_square(90))]


def test_answers_of_people_are_without_files(window: Window, api: Api) -> None:
    """What a model would be sent as its own words can have none."""
    session = api.session(agent="Front Desk")
    api.post(f"sessions/{session}/takeover")
    window.open_chat(session)
    expect(window.page.get_by_role("textbox", name="Answer")).to_be_visible()
    expect(window.page.get_by_role("button", name="Attach files")).to_be_hidden()
    window.log.dispatch_event("drop", {"dataTransfer": carry(window, "image.png", "image/png", PICTURE)})
    expect(window.page.get_by_role("status").filter(has_text="an answer or a note is text")).to_be_visible()
    expect(attached(window)).to_have_count(0)


def test_pasted_words_stay_words(window: Window) -> None:
    window.open()
    expect(window.composer).to_be_focused()
    window.composer.evaluate(
        """(node, clipboardData) => {
          clipboardData.setData('text/plain', 'a table');
          node.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));
        }""",
        carry(window, "table.png", "image/png", PICTURE),
    )
    attach(window, {"name": "then.png", "mimeType": "image/png", "buffer": PICTURE})
    expect(attached(window)).to_contain_text(["then.png"])


def test_other_kinds_and_sizes_are_refused_at_once(
    windows: Callable[..., Window], tmp_path: Path, model: ScriptedModel
) -> None:
    env = {
        "SWARMKEEP_MAX_BLOB_BYTES": "2000",
        "SWARMKEEP_MAX_MESSAGE_BLOB_BYTES": "3000",
        "SWARMKEEP_BLOB_TYPES": "image/*,audio/*",
    }
    with ServerProcess(tmp_path, agents=["swarmkeep_agents.acme"], env=env) as server:
        window = windows(server.url)
        sent: list[Request] = []
        window.page.on("request", lambda asked: sent.append(asked) if asked.method == "POST" else None)
        window.open()
        expect(window.composer).to_be_focused()
        large = WAV + bytes(1500)
        attach(
            window,
            {"name": "page.png", "mimeType": "image/png", "buffer": b"<html>"},
            {"name": "film.mp4", "mimeType": "video/mp4", "buffer": b"\0\0\0\x18ftypmp42"},
            {"name": "none.png", "mimeType": "image/png", "buffer": b""},
            {"name": "long.wav", "mimeType": "audio/wav", "buffer": WAV + bytes(3000)},
            {"name": "report.pdf", "mimeType": "application/pdf", "buffer": PDF},
            {"name": "one.wav", "mimeType": "audio/wav", "buffer": large},
            {"name": "two.wav", "mimeType": "audio/wav", "buffer": large},
        )
        expect(attached(window)).to_contain_text(["one.wav"])
        expect(refusals(window)).to_have_text(
            [
                "page.png is not attached: attach pictures (PNG, JPEG, GIF, WebP), audio (MP3, WAV) or PDF.",
                "film.mp4 is not attached: attach pictures (PNG, JPEG, GIF, WebP), audio (MP3, WAV) or PDF.",
                "none.png is not attached: it is empty.",
                "long.wav is not attached: it has more than 2 kB.",
                "report.pdf is not attached: this server takes no application/pdf.",
                "two.wav is not attached: together they would have more than 3 kB. "
                "Send some of them in another message.",
            ]
        )
        assert sent == []
        # On a phone, too, with nothing cut.
        window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        window.wait_until_it_fits()


def test_files_of_an_unsent_message_come_back(window: Window, api: Api, model: ScriptedModel) -> None:
    session = api.session(agent="Front Desk")
    window.open_chat(session)
    attach(window, {"name": "square.png", "mimeType": "image/png", "buffer": PICTURE})
    expect(attached(window)).to_have_count(1)
    # In another conversation there are none; here they are still.
    window.open_chat(api.session(agent="Sales"))
    expect(window.composer).to_be_focused()
    expect(attached(window)).to_have_count(0)
    window.open_chat(session)
    expect(attached(window)).to_have_count(1)
    window.page.route(
        "**/runs", lambda route: route.fulfill(status=422, json={"code": "invalid_request", "detail": "No."})
    )
    window.say("Look")
    expect(window.page.get_by_role("alert").filter(has_text="No.")).to_be_visible()
    expect(attached(window)).to_have_count(1)
    expect(window.composer).to_have_value("Look")
    window.page.unroute("**/runs")
    model.say("Seen.")
    window.composer.press("Enter")
    expect(window.answers).to_have_text(["Seen."])
