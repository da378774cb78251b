"""Long conversations in many scripts: whole, and no more on the page than somebody can look at."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.support.scripted import ScriptedModel
from tests.web.window import PHONE, Api, Window

pytestmark = pytest.mark.long

LINES = [
    "日本語の長い文章です。改行がなくても、はみ出してはいけません。" * 8,
    "中文：请把所有的消息都保存下来，一个字也不能少。" * 8,
    "مرحبا، أريد استرداد المبلغ للطلب رقم 17 من فضلك (A-17).",
    "👩‍👩‍👧‍👦🏳️‍🌈 emoji 🇯🇵 and é ́combined",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 30,
    "A **table**:\n\n|a|b|\n|-|-|\n|1|2|\n\n```python\nprint('x')\n```\n",
]
MOST_NODES = 4000
NODES = "() => document.querySelectorAll('*').length"
FITS = """() => {
  const log = document.querySelector(".log");
  const right = (node) => node.getBoundingClientRect().right;
  const inside = [...document.querySelectorAll(".prose")].every((node) => right(node) <= innerWidth + 1);
  return inside && log.scrollWidth <= log.clientWidth && document.documentElement.scrollWidth <= innerWidth;
}"""


def history(count: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": f"{number}: {LINES[number % len(LINES)]}"} for number in range(count)
    ]


def test_five_thousand_events_stay_whole(window: Window, api: Api) -> None:
    session = api.session(messages=history(5000))
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    window.open_timeline(session)
    expect(window.rows.first).to_have_attribute("aria-setsize", "5001")
    # The end before the rest is for the chat.
    assert [url for url in asked if "/events?after=" in url] == []
    assert window.evaluate(NODES) < MOST_NODES
    for key, position in (("Home", "1"), ("End", "5001"), ("ArrowUp", "5000"), ("PageUp", None)):
        window.list.press(key)
        if position:
            expect(window.list.locator("[aria-selected=true]")).to_have_attribute("aria-posinset", position)
    window.page.get_by_role("searchbox", name="Search events").fill("4321:")
    expect(window.rows).to_have_count(1)
    window.rows.click()
    expect(window.detail).to_contain_text("4321:")
    assert window.evaluate(NODES) < MOST_NODES

    window.open_chat(session)
    expect(window.answers.last).to_contain_text("4999:")
    assert window.evaluate(NODES) < MOST_NODES
    # Up to the very first: pages are fetched from memory as somebody scrolls; the button does the same.
    window.page.evaluate(
        """async () => {
          const button = document.querySelector(".earlier");
          while (!button.hidden) {
            button.click();
            await new Promise(requestAnimationFrame);
          }
        }"""
    )
    expect(window.questions).to_have_count(2500)
    expect(window.answers).to_have_count(2500)
    expect(window.questions.first).to_contain_text("0: 日本語")


# Whether the end that was read of a session is let go, once it is no part of what is shown any more.
ENDS_LEFT = """async ([id, isHeld]) => {
  const { Session } = await import("/page/session.js");
  const session = new Session(id);
  let renewed = 0;
  await new Promise((resolve) => session.show({
    showsEnd: true,
    changed: () => (session.complete || (isHeld && session.latest?.state)) && resolve(),
    renewed: () => (renewed += 1),
  }));
  if (isHeld) session.happened({ seq: 1_402, type: "session.redacted", data: { seqs: [1_401], reason: null } });
  session.close();
  return [session.latest, renewed];
}"""


def test_long_session_end_loads_first(window: Window, api: Api) -> None:
    messages = history(1_400)
    # So much that a page of events ends before the end of the session.
    for message in messages[1_210:1_250]:
        message["content"] = "words " * 18_000
    session = api.session(messages=messages, metadata={"title": "A long talk"})
    held: list[Route] = []
    window.page.route(f"**/{session}/events", lambda route: held.append(route))
    window.open_chat(session)
    expect(window.answers.last).to_contain_text("1399:")
    expect(window.page.get_by_role("heading", name="A long talk")).to_be_visible()
    earlier = window.page.get_by_role("button", name="Show earlier")
    expect(earlier).to_be_hidden()
    # Whoever looks at it, or has gone up meanwhile, goes on with it.
    window.log.evaluate("(log) => { log.scrollTop = log.scrollHeight / 2; }")
    expect(window.page.get_by_role("button", name="Latest")).to_be_hidden()
    window.answers.last.evaluate("(node) => { node.dataset.seen = 'yes'; }")
    count = window.answers.count()
    assert window.evaluate(ENDS_LEFT, [session, True]) == [None, 1]
    held[0].continue_()
    window.page.unroute_all()
    expect(earlier).to_contain_text("more")
    expect(window.answers.last).to_have_attribute("data-seen", "yes")
    assert count <= window.answers.count() < count + 300
    earlier.click()
    expect(window.answers.nth(count)).to_be_attached()
    assert window.evaluate(ENDS_LEFT, [session, False]) == [None, 0]


# How many items of a list each step of drawing it adds.
STEPS = """async (text) => {
  const { draw } = await import("/page/markdown.js");
  const into = document.createElement("div");
  const counts = [];
  for (const _ of draw(text, { into })) counts.push(into.querySelectorAll("li").length);
  return counts.map((count, index) => count - (counts[index - 1] ?? 0));
}"""
# A text that has come to be too long to be drawn before what was there of it was.
LEAVE = """async (text) => {
  const { Prose, loadMarkdown } = await import("/page/prose.js");
  await loadMarkdown();
  const prose = new Prose();
  prose.show(text);
  const isDrawing = prose.steps !== null;
  prose.finish(text + text);
  globalThis.left = new WeakRef(prose);
  // What it was to go on with looks whether it is to go on.
  await new Promise((resolve) => setTimeout(resolve));
  return isDrawing;
}"""
LINKED = "- A [shelf][1] of **lamps** that nobody counts\n" * 400


def test_long_answer_is_drawn_in_slices(window: Window, model: ScriptedModel, api: Api) -> None:
    items = "".join(f"- Item **{number}** of a long list\n" for number in range(400))
    steps = window.open().evaluate(STEPS, items)
    assert (sum(steps), max(steps) < 100) == (400, True)
    assert window.evaluate(LEAVE, "- An item of a long list\n" * 3_000) is True
    window.page.request_gc()
    assert window.evaluate("() => globalThis.left.deref() === undefined") is True
    window.page.goto("about:blank")
    model.hang(f"Well:\n\n{items}\nSo **far", then="**.")
    session = api.session()
    window.open_chat(session)
    window.say("all of it")
    expect(window.draft.locator("li")).to_have_count(400)
    window.draft.locator("li").first.evaluate("(node) => { node.dataset.seen = 'yes'; }")
    model.release()
    expect(window.answers.locator("p strong")).to_have_text("far")
    expect(window.answers.locator("li")).to_have_count(400)
    expect(window.answers.locator("li").first).to_have_attribute("data-seen", "yes")
    # A name for an address may come last: then all is drawn once more.
    model.hang(LINKED, then="\n[1]: https://example.com/shelf\n")
    window.say("links")
    expect(window.draft.locator("li").first).to_contain_text("[shelf][1]")
    model.release()
    expect(window.answers.last.get_by_role("link", name="shelf")).to_have_count(400)


def test_scripts_keep_direction_within_page(window: Window, api: Api) -> None:
    session = api.session(messages=history(24))
    for size in (None, PHONE):
        if size:
            window.page.set_viewport_size(size)  # type: ignore[arg-type]
        window.open_chat(session)
        expect(window.questions).to_have_count(12)
        expect(window.answers.last).to_be_in_viewport()
        # A page that was made smaller is laid out a moment later.
        window.page.wait_for_function(FITS)
        directions = window.evaluate(
            "() => [...document.querySelectorAll('.user .prose')].map((node) => getComputedStyle(node).direction)"
        )
        assert directions == ["ltr", "rtl", "ltr"] * 4
    arabic = api.session(messages=[{"role": "user", "content": LINES[2]}, {"role": "assistant", "content": LINES[2]}])
    window.open_chat(arabic)
    expect(window.questions).to_have_css("direction", "rtl")
    expect(window.answers.locator("p")).to_have_css("direction", "rtl")


def test_lists_and_tables_follow_text_direction(window: Window, api: Api) -> None:
    answer = "1. مرحبا `refund()`\n2. hello\n\n| عمود | b |\n|---|---|\n| 1 | 2 |\n\n- one\n\n```\nx()\n```"
    window.open_chat(api.session(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]))
    expect(window.answers.locator("ol")).to_have_css("direction", "rtl")
    expect(window.answers.locator("ul")).to_have_css("direction", "ltr")
    expect(window.answers.locator("table")).to_have_css("direction", "rtl")
    for code in window.answers.locator("code").all():
        expect(code).to_have_css("direction", "ltr")
    # Where the numbers stand: what stands outside of the list is not drawn.
    room = "(item) => item.parentElement.getBoundingClientRect().right - item.getBoundingClientRect().right"
    assert all(item.evaluate(room) >= 16 for item in window.answers.locator("ol > li").all())
