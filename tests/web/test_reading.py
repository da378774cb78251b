"""To read, find, filter and print: answers with tables, code and formulas, on any window, by any hand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Error, Request, Route, expect

from swarmkeep.events.facts import EventDraft
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.store.sessions import begin_session, draft_user_messages
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.window import PHONE, WIDE, Api, Window

pytestmark = pytest.mark.long


WORD = "Donaudampfschifffahrtsgesellschaft"
TABLE = f"|Item|Price|Note|\n|:-|-:|:-:|\n|{WORD}|1,299.00|ok|\n|Lamp|9.50|{'wide ' * 4}|"


TABLE_FITS = """(isWider) => {
  const [log, frame, cell] = [".log", ".prose [role=group]", ".prose td"].map((name) => document.querySelector(name));
  const isLine = cell.getBoundingClientRect().height < 45;
  return isLine && log.scrollWidth <= log.clientWidth && (frame.scrollWidth > frame.clientWidth) === isWider;
}"""
# The head shows all that is in it, and ends above the scrubber.
FITS_ACROSS = """(selector) => {
  const node = document.querySelector(selector);
  return node.scrollWidth <= node.clientWidth;
}"""
HEAD_FITS = """() => {
  const [head, scrubber] = [".view-head", ".scrubber"].map((name) => document.querySelector(name));
  const isAbove = head.getBoundingClientRect().bottom <= scrubber.getBoundingClientRect().top + 1;
  return isAbove && head.scrollHeight <= head.clientHeight;
}"""


def tell(window: Window, model: ScriptedModel, text: str) -> None:
    model.say(text)
    window.open()
    window.say("tell me")
    expect(window.answers).to_have_count(1)


@pytest.mark.parametrize("size", ["wide", "phone"])
def test_table_aligns_scrolls_and_breaks_no_word(window: Window, model: ScriptedModel, size: str) -> None:
    if size == "phone":
        window.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    tell(window, model, f"{TABLE}\n")
    cells = window.answers.locator("td")
    expect(cells.nth(1)).to_have_css("text-align", "right")
    expect(cells.nth(2)).to_have_css("text-align", "center")
    # On one line, and reached by scrolling the table, not the page.
    window.page.wait_for_function(TABLE_FITS, arg=size == "phone")


def test_task_list_boxes_are_shown(window: Window, model: ScriptedModel) -> None:
    tell(window, model, "- [x] packed\n- [ ] sent\n- plain\n")
    expect(window.answers.locator("li")).to_have_text(["☑ packed", "☐ sent", "plain"])
    expect(window.answers.locator("li").first).to_have_css("list-style-type", "none")
    expect(window.answers.locator("li").last).not_to_have_css("list-style-type", "none")
    expect(window.answers.locator("input")).to_have_count(0)


def test_code_is_copied(window: Window, model: ScriptedModel) -> None:
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tell(window, model, "Do this:\n\n```python\nfor x in y:\n    print(x)\n```\n")
    copy = window.answers.get_by_role("button", name="Copy")
    copy.focus()
    expect(copy).to_have_css("opacity", "1")
    copy.press("Enter")
    expect(window.answers.get_by_role("button", name="Copied")).to_be_visible()
    assert window.read_clipboard() == "for x in y:\n    print(x)\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_search_can_be_left_before_its_answer(window: Window, api: Api, elsewhere: bool) -> None:
    title = f"Parasols {elsewhere}"
    api.wait_until_found(title, api.session(metadata={"title": title}))
    window.open()
    expect(window.page.get_by_role("link", name=re.compile(f"^{title}"))).to_be_visible()
    held: list[Route] = []
    window.page.route("**/v1/sessions?*q=*", lambda route: held.append(route))
    keyboard = window.page.keyboard
    keyboard.press("Control+k")
    # Nothing here is called so, until the server says what it found.
    keyboard.type(f"{elsewhere} parasols")
    keyboard.press("Enter")
    expect(window.page.locator(".session")).to_have_count(0)
    if elsewhere:
        window.composer.focus()
    window.page.unroute("**/v1/sessions?*q=*")
    for route in held:
        with suppress(Error):
            route.continue_()
    if elsewhere:
        # Whoever has gone on to something else meanwhile is left there.
        expect(window.page.locator(".session-name")).to_have_text(title)
        place = window.evaluate("() => new Promise((resolve) => setTimeout(() => resolve(location.hash)))")
        assert place.startswith("#/chat?q=")
    else:
        expect(window.page.get_by_role("heading", level=1)).to_have_text(title)


def test_open_session_is_always_in_list(window: Window, api: Api) -> None:
    old = api.session(id="out-of-sight")
    for _ in range(51):
        api.session()
    window.open_chat(old)
    here = window.page.get_by_role("navigation", name="Sessions").locator("[aria-current=page]")
    expect(here).to_contain_text("out-of-sight")


def test_a_conversation_is_printed_whole(window: Window, api: Api) -> None:
    roles = ("user", "assistant")
    history = [{"role": roles[n % 2], "content": f"Message {n}. {'words ' * 40}"} for n in range(200)]
    window.open_chat(api.session(messages=history))
    expect(window.answers.last).to_contain_text("Message 199.")
    pages = window.page.pdf().count(b"/Type /Page\n") or window.page.pdf().count(b"/Type /Page ")
    assert pages > 5
    # Whoever prints gets all of it, and not what happened to be loaded.
    expect(window.questions.first).to_contain_text("Message 0.")


@pytest.fixture
def mixed(model: ScriptedModel, api: Api) -> str:
    """A session with calls, one of them failed, and a run that failed."""
    session = api.session()
    model.calls([("get_weather", {"city": "Rome"}, "c1"), ("get_weather", {"town": "Oslo"}, "c2")])
    model.say("Well.")
    api.run(session, "hello")
    model.fail(401)
    api.run(session, "again")
    return session


def test_tools_filter_with_calls_and_coloured_failures(window: Window, mixed: str) -> None:
    window.open_timeline(mixed)
    expect(window.rows.first).to_be_visible()
    kind = window.page.get_by_label("Kind of event")
    kind.select_option("Tools")
    titles = window.rows.locator(".row-title")
    expect(titles).to_have_text(["Tool call", "Tool started", "Tool result", "Tool started", "Tool result"])
    kind.select_option("Failures")
    expect(titles).to_have_text(["Tool result", "Run failed"])
    for title in titles.all():
        expect(title).to_have_css("color", "rgb(168, 39, 31)")


def test_next_event_skips_hidden_ones(window: Window, mixed: str, api: Api) -> None:
    seqs = [event["seq"] for event in api.events(mixed) if event["type"] == "message.added"]
    window.open_timeline(mixed, at=1)
    expect(window.rows.first).to_be_visible()
    window.page.get_by_label("Kind of event").select_option("Failures")
    expect(window.rows).to_have_count(2)
    ahead = window.page.get_by_role("button", name="Next event")
    ahead.click()
    expect(window.page).to_have_url(re.compile(rf"at={seqs[3]}$"))
    ahead.click()
    expect(window.page).to_have_url(re.compile(rf"at={len(api.events(mixed))}$"))
    window.page.get_by_role("button", name="Previous event").click()
    expect(window.page).to_have_url(re.compile(rf"at={seqs[3]}$"))


def test_no_two_agents_are_alike(window: Window) -> None:
    window.open()
    told = window.evaluate(
        """async () => {
          const { h, lane } = await import("/page/dom.js");
          const { lanesOf } = await import("/page/rows.js");
          const colours = [...Array(15).keys()].map((index) => {
            const dot = lane(h("span", { class: "dot" }), index);
            document.body.append(dot);
            const { backgroundColor } = getComputedStyle(dot);
            dot.remove();
            return backgroundColor;
          });
          const agents = [...Array(15).keys()].map((index) => `Agent ${index}`);
          const many = [lanesOf("Agent 14", agents)].flat().map((node) => node.textContent).join();
          const few = lanesOf("Agent 5", agents.slice(0, 6))[0].childElementCount;
          return [new Set(colours).size, many, few];
        }"""
    )
    assert told == [15, "Agent 14", 6]


@pytest.mark.parametrize("width", [320, 390, 768, 860, 1000])
def test_nothing_is_cut_at_any_width(window: Window, mixed: str, width: int) -> None:
    window.page.set_viewport_size({"width": width, "height": 640})
    window.open_chat(mixed)
    export = window.page.get_by_role("button", name="Export")
    expect(export).to_be_in_viewport(ratio=1)
    window.wait_until_it_fits()
    window.open_timeline(mixed)
    expect(export).to_be_in_viewport(ratio=1)
    window.wait_until_it_fits()
    # More than a row or two of what happened.
    window.page.wait_for_function("() => document.querySelector('.rows')?.clientHeight >= 4 * 40")


def test_low_window_still_shows_event(window: Window, mixed: str, api: Api) -> None:
    for size in ({"width": 667, "height": 320}, {"width": 320, "height": 256}):
        window.page.set_viewport_size(size)  # type: ignore[arg-type]
        window.open_timeline(mixed, at=3)
        fact = window.detail.locator(".facts dd").first
        fact.scroll_into_view_if_needed()
        expect(fact).to_be_in_viewport(ratio=1)
        window.page.wait_for_function(HEAD_FITS)
        window.wait_until_it_fits()
        window.open_chat(mixed)
        expect(window.composer).to_be_in_viewport()
        window.page.wait_for_function("() => document.querySelector('.log').clientHeight > 60")
        # What stands above a conversation is there to be used, and nothing of it beside the window.
        window.wait_until_it_fits()
        for part in (window.page.get_by_role("heading", level=1), window.page.get_by_role("button", name="Export")):
            part.scroll_into_view_if_needed()
            expect(part).to_be_in_viewport(ratio=1)
            assert part.bounding_box()["width"] > 30  # type: ignore[index]
    window.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    title = window.page.get_by_role("heading", level=1)
    api.client.patch(f"sessions/{mixed}", json={"metadata": {"title": "An order that came late"}}).raise_for_status()
    expect(title).to_have_text("An order that came late")
    window.page.wait_for_function(FITS_ACROSS, arg=".view-title")
    window.open("#/inbox")
    head = window.page.locator(".view-head")
    expect(head).to_be_visible()
    window.page.set_viewport_size({"width": 320, "height": 256})
    window.page.wait_for_function(
        "() => document.querySelector('.view-head').scrollHeight <= document.querySelector('.view-head').clientHeight"
    )
    window.page.get_by_role("button", name="Sessions").click()
    link = window.page.get_by_role("navigation", name="Sessions").get_by_role("link").first
    expect(link).to_contain_text("An order that came late")
    link.scroll_into_view_if_needed()
    expect(link).to_be_in_viewport(ratio=0.9)
    window.open_timeline(mixed)
    window.page.get_by_role("button", name="Check", exact=True).click()
    window.page.get_by_text("Check against an earlier head").click()
    panel = window.page.get_by_role("region", name="Check against earlier heads")
    expect(panel).to_be_visible()
    window.page.wait_for_function(FITS_ACROSS, arg=".panel:not([hidden])")


# Code in answers: it gets its colours, stays the text that it is, and holds nothing up.


PYTHON = '''# How much is left
class Shelf(Base):
    """Lamps & <b>lanterns</b>"""

    def count(self, size: int = 3) -> str:
        return f"{size * 2:.2f}" if size else None

@cached
async def main(): print(len("a\\n"), True, 0x1F)
'''
HTML = '\n\n<p class="a" hidden>5 &lt; 6</p><script>alert(`${1}`)</script>\n'
BLOCKS = {
    "python": PYTHON,
    "HTML": HTML,
    "sql": "SELECT name, count(*) FROM lamps WHERE size > 1.5 AND kind = 'x' -- all\n",
    "diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n",
    "css": "#a > .b:hover { color: red !important; --x: 1px }\n",
    "yaml": "a: &x\n  - 'b'\n  - true\n",
    "bash": 'for f in *; do echo "$f ${HOME}" | sort; done # all\n',
    "ts": "export const f = <T extends A>(x: T): number => /a+/g.test(x) ? 1 : null;\n",
}
PLAIN = "```\nfor x in y\n```\n\n```nonsense\nfor x in y\n```\n\n"


LINE = "f(1,'x');" * 1_000
# The longest piece of markup that the page gets at once, and whether all of them say what the code says.
PIECES = """async (code) => {
  const worker = new Worker("/page/highlighter.js", { type: "module" });
  const pieces = await new Promise((resolve) => worker.addEventListener("message", ({ data }) => {
    if (Array.isArray(data)) resolve(data);
    else worker.postMessage({ code, language: "js" });
  }));
  worker.terminate();
  const parsed = new DOMParser().parseFromString(pieces.join(""), "text/html");
  return [Math.max(...pieces.map((piece) => piece.length)) < 9_000, parsed.body.textContent === code];
}"""


def fence(blocks: dict[str, str]) -> str:
    return "".join(f"```{language}\n{code}```\n\n" for language, code in blocks.items())


def test_code_colours_change_no_letter(
    cleared_windows: Callable[..., Window], server: ServerProcess, model: ScriptedModel, api: Api
) -> None:
    window = cleared_windows(server.url, bypass_csp=True)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    session = api.session()
    model.say(PLAIN)
    api.run(session, "plain")
    window.open_chat(session)
    expect(window.answers.locator("pre")).to_have_count(2)
    # Nothing is loaded for code that nobody can colour.
    assert [name for name in asked if name.startswith("highlight")] == []
    model.say(fence(BLOCKS))
    window.say("code")
    coloured = window.answers.locator("pre:has(span)")
    expect(coloured).to_have_count(len(BLOCKS))
    assert asked.count("highlighter.js") == 1
    assert coloured.all_text_contents() == list(BLOCKS.values())
    assert window.answers.locator("script, b, [hidden]").count() == 0
    for theme in ("light", "dark"):
        window.page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        check_accessibility(window)
    assert window.answers.locator(".hljs-keyword").first.evaluate("(node) => getComputedStyle(node).color") != (
        coloured.first.evaluate("(node) => getComputedStyle(node).color")
    )
    # A line that is a program by itself comes in pieces.
    assert window.evaluate(PIECES, LINE) == [True, True]
    # The names that the page knows are those that the library knows, but for plain text.
    assert (
        window.evaluate("""async () => {
      const { default: library } = await import("/page/highlight.min.js");
      const source = await (await fetch("page/highlighting.js")).text();
      const lines = [...source.matchAll(/"([a-z][^"]* [^"]*)"/g)];
      const known = new Set(lines.flatMap(([, names]) => names.trim().split(" ")));
      const names = library.listLanguages().flatMap((name) => [name, ...(library.getLanguage(name).aliases ?? [])]);
      const plain = new Set(["plaintext", "text", "txt"]);
      return [...known].filter((name) => !library.getLanguage(name))
        .concat(names.map((name) => name.toLowerCase()).filter((name) => !known.has(name) && !plain.has(name)));
    }""")
        == []
    )


def test_overlong_code_stays_plain(window: Window, model: ScriptedModel, api: Api) -> None:
    session = api.session()
    model.say(fence({"python": "x = 1\n" * 9_000, "ts": f"{LINE}{LINE}\n", "js": "let y = 2;\n"}))
    api.run(session, "long")
    window.open_chat(session)
    expect(window.answers.locator("pre:has(span)")).to_have_text("let y = 2;\n")
    expect(window.answers.locator("pre")).to_have_count(3)
    assert window.context.pages == [window.page]


# Formulas in answers: drawn by the browser, with a library that comes with the first one.


FORMULAS = r"""The root $x = \frac{-b}{2a}$, and \(y_1 \in Y\):

$$
\sum_{i=0}^{n} i
= \frac{n(n+1)}{2}
$$

- In a list: $e^{i\pi}$

\[ \begin{pmatrix} a & b \\ c & d \end{pmatrix} \]
"""
NONE = r"""From $5 to $10, US$5 or 6$, $HOME/$PATH, `$x^2$`, \$x^2\$, $ x^2 $, $5 and you have 7$.

```
$$x^2$$
```"""
# Each is shown as it was written: it leads elsewhere, is no formula, or has no end.
LEFT = (r"$\frac{a$", r"$\href{javascript:alert(1)}{x}$", "$$ a", r"$\text{<img src=x onerror=alert(1)>}$")


def answer(api: Api, words: str) -> str:
    return api.session(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": words}])


def test_formulas_are_drawn_once_met(window: Window, api: Api) -> None:
    asked: list[Request] = []
    window.page.on("request", lambda request: asked.append(request))
    window.open_chat(answer(api, NONE))
    expect(window.answers).to_contain_text("From $5 to $10, US$5 or 6$, $HOME/$PATH")
    assert window.answers.locator("math").count() == 0
    assert not any("mathml.js" in request.url for request in asked)
    window.open_chat(answer(api, FORMULAS))
    math = window.answers.locator("math")
    expect(math).to_have_count(5)
    assert len([request for request in asked if "mathml.js" in request.url]) == 1
    assert math.nth(2).get_attribute("display") == "block"
    expect(window.answers.locator("li math msup")).to_have_count(1)
    # The browser has drawn them: a fraction is higher than its line.
    assert math.locator("mfrac").first.evaluate("(node) => node.getBoundingClientRect().height") > 15
    expect(window.answers).not_to_contain_text("frac")
    # It can be read, and one that is wider than the window is reached by the keyboard.
    expect(window.answers.get_by_role("group", name="Formula")).to_have_count(2)


@pytest.mark.parametrize("written", LEFT)
def test_what_is_no_formula_harms_nothing(window: Window, api: Api, written: str) -> None:
    window.open_chat(answer(api, f"{written}\n\nAnd $x^2$."))
    expect(window.answers.locator("math msup")).to_have_count(1)
    assert window.answers.locator("a, img").count() == 0
    if "text" not in written and "href" not in written:
        expect(window.answers).to_contain_text(written)


def test_formula_grows_with_the_answer(window: Window, model: ScriptedModel, api: Api) -> None:
    model.hang("First\n\n$$\nx\n- y\n", then="done")
    session = api.session(agent="Front Desk")
    window.open_chat(session)
    window.say("?")
    # Until it ends it is what was written: no list.
    expect(window.draft).to_contain_text("- y")
    assert window.draft.locator("li").count() == 0
    window.page.get_by_role("button", name="Cancel run").click()
    model.release()
    window.wait_until_idle()
    model.say(["Second\n\n$$\nx\n- y\n", "$$\n\nand $a", "^2$ too"])
    window.say("?")
    expect(window.answers.last.locator("math")).to_have_count(2)
    assert window.answers.last.locator("li").count() == 0


def test_formulas_stay_as_written_without_their_library(window: Window, api: Api) -> None:
    refused: list[Route] = []
    window.page.route("**/mathml.js", lambda route: (refused.append(route), route.abort()))
    window.open_chat(answer(api, "So $x^2$."))
    expect(window.answers.locator("code")).to_have_text("$x^2$")
    window.page.unroute("**/mathml.js")
    window.open_chat(answer(api, "And $y^2$."))
    expect(window.answers.locator("math msup")).to_have_count(1)
    assert refused


def test_many_formulas_hold_nothing_up(windows: Callable[..., Window], server: ServerProcess, api: Api) -> None:
    window = windows(server.url, bypass_csp=True)
    window.page.add_init_script(
        "globalThis.longest = 0; new PerformanceObserver((list) => list.getEntries().forEach((task) => "
        "(longest = Math.max(longest, task.duration)))).observe({ type: 'longtask', buffered: true });"
    )
    many = "".join(f"Line {number}: $x_{{{number}}} = \\frac{{a}}{{b}}$ and so on.\n\n" for number in range(300))
    window.open_chat(answer(api, many + "$" * 1_500 + " $x \\(" * 500))
    expect(window.answers.locator("math")).to_have_count(300)
    assert window.evaluate("() => longest") < 1_000
    check_accessibility(window)


# What stands at messages: days, times, and what can be done with them.


CLOCK = re.compile(r"^\d{2}:\d{2}$")


def record_at(server: ServerProcess, session_id: str, when: datetime, drafts: list[EventDraft]) -> None:
    """Record a session as if that had been its time."""

    async def record() -> None:
        store = open_store(server.database_url, clock=lambda: when)
        key = SessionKey("default", session_id)
        await store.append(key, await begin_session(store, key, agent="Front Desk"), drafts)
        await store.close()

    # The browser's library holds this thread's loop.
    with ThreadPoolExecutor() as pool:
        pool.submit(asyncio.run, record()).result()


def test_messages_have_times_and_days_are_apart(window: Window, server: ServerProcess, api: Api) -> None:
    then = datetime.now(UTC) - timedelta(days=40)
    record_at(server, "two-days", then, draft_user_messages("Are you there?", "Hello?"))
    answer: dict[str, Any] = {"role": "assistant", "content": "I am now."}
    api.post("sessions/two-days/messages", {"messages": [answer]})
    window.open_chat("two-days")
    days = window.log.locator(".day")
    expect(days).to_have_count(2)
    expect(days.first).to_contain_text(str(then.year))
    expect(days.last).to_have_text("Today")
    # The day stands above what was said on it.
    assert window.log.locator(".items > *").evaluate_all("(all) => all.map((one) => one.className.split(' ')[0])") == [
        "day", "message", "message", "day", "message",
    ]  # fmt: skip
    for message in window.log.locator(".items .message").all():
        expect(message.locator("time")).to_have_text(CLOCK)
    expect(window.log.locator(".items .message time").first).to_have_attribute("title", re.compile(str(then.year)))


def test_fork_has_the_days_of_its_messages_only(window: Window, api: Api) -> None:
    api.session(id="days-of-origin", messages=[{"role": "user", "content": "Hello"}])
    fork = api.post("sessions/days-of-origin/fork", {})["id"]
    window.open_chat(fork)
    expect(window.log).to_contain_text("Forked from days-of-origin after event 2")
    expect(window.log.locator(".day")).to_have_text(["Today"])


def test_answer_is_copied_as_it_was_written(window: Window, api: Api, model: ScriptedModel) -> None:
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    model.say("It is **done**.\n\n- one\n- two")
    session = api.session(agent="Front Desk")
    api.run(session, "Is it?")
    window.open_chat(session)
    copy = window.log.get_by_role("button", name="Copy this answer")
    # By the keyboard, too: it is there when it has the focus.
    copy.focus()
    expect(copy).to_have_css("opacity", "1")
    copy.press("Enter")
    expect(window.log.get_by_role("button", name="Copied")).to_be_visible()
    assert window.read_clipboard() == "It is **done**.\n\n- one\n- two"
    expect(copy).to_be_visible()
