"""Text that wants to be more than text: it is shown, and does nothing."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from tests.support.hypothesis_profiles import examples
from tests.support.scripted import ScriptedModel
from tests.web.team import HOSTILE_NAME
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

CORPUS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '<img src="https://evil.example/leak.png">',
    "![leak](https://evil.example/leak.png)",
    '![x](x"onerror="alert(1))',
    "<svg onload=alert(1)><script>alert(2)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><style><img src=x onerror=alert(1)></style></svg>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=alert(1)&gt;">',
    "<iframe src=javascript:alert(1)></iframe>",
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "<object data=javascript:alert(1)></object><embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>click</a>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](java&#115;cript:alert(1))",
    "[click](&#x1;javascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "[click](vbscript:msgbox(1))",
    "<a href='https://evil.example' target=_self onclick=alert(1)>click</a>",
    "<details open ontoggle=alert(1)>x</details>",
    "<video><source onerror=alert(1)></video><audio src=x onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)><select autofocus onfocus=alert(1)>",
    "<form action=https://evil.example><button>Approve</button></form>",
    "<button formaction=javascript:alert(1)>go</button>",
    "<style>@import 'https://evil.example/x.css'; body{display:none}</style>",
    "<p style='position:fixed;inset:0;background:url(https://evil.example/x)'>over everything</p>",
    "<link rel=stylesheet href=https://evil.example/x.css><meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "<body onload=alert(1)><marquee onstart=alert(1)>",
    '<template><script>alert(1)</script></template><noscript><p title="</noscript><img src=x onerror=alert(1)>">',
    "<div id=composer name=composer class=toasts>mine</div><form id=app><input name=attributes></form>",
    "<x onclick=alert(1) data-index=0 role=button tabindex=0>custom</x>",
    "```html\n<script>alert(1)</script>\n```",
    '```"><img/onerror=alert(1)/src=x>\ncode\n```',
    "`<img src=x onerror=alert(1)>`",
    "<<script>alert(1)//<</script>",
    "</div></main></body><script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= alert(1) %>",
    "\u202e<script>alert(1)</script>\u202c\x00<b>nul</b>",
    "[a]: javascript:alert(1)\n\n[a]",
    '<https://evil.example/?q="onmouseover=alert(1)>',
    "|a|b|\n|-|-|\n|<img src=x onerror=alert(1)>|<script>alert(1)</script>|",
]
FIND_HARMFUL_SCRIPT = """() => {
  const tags = /^(a|blockquote|br|code|del|em|h[456]|hr|li|ol|p|pre|s|strong|table|tbody|td|th|thead|tr|ul)$/i;
  // What the page itself puts around tables and code, and the classes that it gives.
  const own = ["DIV.wide", "DIV.copied", "BUTTON.button small", "SPAN."];
  const ownAttributes = new Set(
    "class=plain,class=task,class=wide,class=copied,class=button small,role=group,aria-label=Table,type=button"
      .split(",")
  );
  const attributes = new Set(["href", "title", "align", "start", "dir", "rel", "target", "tabindex"]);
  const found = [];
  for (const node of document.querySelectorAll(".prose *")) {
    const isPlaced = !/BUTTON|SPAN/.test(node.tagName) || node.closest(".copied");
    if (node.matches("pre > code span:is([class^=hljs], [class^=language])") && node.attributes.length === 1) continue;
    const isOwn = isPlaced && own.includes(`${node.tagName}.${node.className}`);
    if (!tags.test(node.tagName) && !isOwn) found.push(node.outerHTML);
    for (const { name, value } of node.attributes) {
      if (!attributes.has(name) && !ownAttributes.has(`${name}=${value}`)) found.push(`${name}: ${node.outerHTML}`);
    }
    if (node.href && !/^(https?|mailto):/.test(node.href)) found.push(node.href);
    const opens = node.tagName === "A" && (node.target !== "_blank" || !node.rel.includes("noopener"));
    if (opens) found.push(node.outerHTML);
  }
  return found;
}"""
ELSEWHERE = "main :is(img, iframe, script, style, object, embed, video, audio, base, meta, link)"


def check_harmless(window: Window) -> None:
    assert window.evaluate(FIND_HARMFUL_SCRIPT) == []
    assert (
        window.page.locator("main img, main iframe, main script, main style, main object, main form form").count() == 0
    )
    assert window.page.url.startswith(window.url)


def test_hostile_messages_do_nothing(window: Window, api: Api) -> None:
    history = []
    for text in CORPUS:
        history += [{"role": "user", "content": text}, {"role": "assistant", "content": text, "sender": text[:60]}]
    session = api.session(messages=history, metadata={"title": CORPUS[1], CORPUS[1]: CORPUS[2]})
    window.open_chat(session)
    # All of it is on the page: nothing is left out because it looks bad.
    earlier = window.page.get_by_role("button", name="Show earlier")
    expect(window.questions.last).to_be_visible()
    while earlier.is_visible():
        earlier.click()
    expect(window.questions).to_have_count(len(CORPUS))
    assert window.questions.all_text_contents() == CORPUS
    # Models' Markdown, too: HTML in it is shown as it was written.
    answers = "\n".join(window.answers.all_text_contents())
    for tag in ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<style>@import", "custom</x>"):
        assert tag in answers
    check_harmless(window)


# What a parser of Markdown has no end of, or needs minutes for.
DEEP_OR_SLOW = {
    "quotes": ">" * 20_000,
    "spaced quotes": "> " * 10_000,
    "quotes below a text": "Well:\n\n" + ">" * 20_000,
    "numbers": "1. " * 10_000,
    "lists": "- " * 20_000,
    "underscores": "_a" * 40_000,
    "stars": "*a " * 30_000,
    "brackets": "[" * 50_000,
    "back ticks": "`a " * 30_000,
    "cells": "|a" * 5_000 + "\n" + "|-" * 5_000 + "\n" + "|a" * 20_000,
}


def test_deep_and_slow_markdown_stays_plain(window: Window, api: Api) -> None:
    history = []
    for text in DEEP_OR_SLOW.values():
        history += [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}]
    history += [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "**Done.**"}]
    window.open_chat(api.session(messages=history))
    expect(window.answers.last).to_have_text("Done.")
    expect(window.answers.last.locator("strong")).to_have_text("Done.")
    expect(window.answers).to_have_count(len(DEEP_OR_SLOW) + 1)
    for place, name in enumerate(DEEP_OR_SLOW):
        if name not in ("brackets", "back ticks", "cells"):
            expect(window.answers.nth(place).locator("p.plain")).to_have_count(1)
    check_harmless(window)


MARKS = [*"*_`[]()<>!#|~-+1.& \n\ta", "> ", "- ", "1. ", "```", "![", "](", "<!--", "\n[a]: a\n"]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(MARKS)))
@example(pieces=["> [a] and so on\n\nMore\n\n> [a]: https://example.com/a\n"])
@example(pieces=["[a] and so on\n\n1. one\n   - two\n\n     [a]: https://example.com/a\n"])
def test_markdown_failure_still_shows_message(window: Window, api: Api, pieces: list[str]) -> None:
    text = "".join(pieces)
    if window.page.url == "about:blank":
        window.open_chat(api.session())
    shown = window.evaluate(
        """async (text) => {
          const { Prose, loadMarkdown } = await import("/page/prose.js");
          await loadMarkdown();
          const [written, whole] = [new Prose(), new Prose()];
          document.body.append(written.node, whole.node);
          for (let end = 1; end < text.length; end += 3) written.show(text.slice(0, end));
          written.finish(text);
          whole.finish(text);
          const form = ({ node }) => node.innerHTML.replaceAll(/\\s+/g, " ").replaceAll(/ ?(<[^>]*>) ?/g, "$1");
          return [form(written), form(whole)];
        }""",
        text,
    )
    # It comes to the same, whether somebody has seen it being written or not.
    assert shown[0] == shown[1]
    check_harmless(window)


def test_hostile_answers_do_nothing_while_written(window: Window, model: ScriptedModel, api: Api) -> None:
    text = "\n\n".join(CORPUS)
    model.hang(text, then="\n\nthe end")
    session = api.session()
    window.open_chat(session)
    window.say("Be bad.")
    expect(window.draft).to_contain_text("custom")
    check_harmless(window)
    model.release()
    expect(window.answers).to_contain_text(["the end"])
    check_harmless(window)


def test_hostile_tools_and_names_do_nothing(window: Window, model: ScriptedModel, api: Api) -> None:
    model.call("read_page", {"url": CORPUS[1]}, id="<img src=x onerror=alert(1)>")
    model.call("<img src=x onerror=alert(1)>", {"<svg onload=alert(1)>": CORPUS[0]}, id="c2")
    model.call("transfer_to_stranger", {}, id="c3")
    model.say("Boo.")
    session = api.session()
    window.open_chat(session)
    window.say("Read it.")
    expect(window.answers).to_have_text(["Boo."])
    expect(window.log.locator(".handoff")).to_have_text(f"Front Desk hands over to {HOSTILE_NAME}")
    for call in window.calls.all():
        call.locator("summary").click()
    expect(window.calls.first).to_contain_text("<script>alert(1)</script>")
    check_harmless(window)
    window.open_timeline(session)
    window.list.press("Home")
    for _ in api.events(session):
        window.list.press("ArrowDown")
        check_harmless(window)


@pytest.mark.parametrize("text", [CORPUS[1], "javascript:alert(1)", "../../../docs", "%00", "a?b#c"])
def test_hostile_addresses_do_nothing(window: Window, text: str) -> None:
    for view in ("chat", "timeline"):
        window.open(f"#/{view}/{quote(text, safe='')}")
        expect(window.page.locator(".problem")).to_contain_text("or begin a new chat")
        check_harmless(window)


def test_hostile_context_does_nothing(window: Window, api: Api) -> None:
    session = api.session(context_variables={text: text for text in CORPUS} | {"__proto__": {"polluted": 1}})
    change = {CORPUS[0]: None, "constructor": {"prototype": 1}, "__proto__": {"polluted": 2}}
    api.client.patch(f"sessions/{session}", json={"context_variables": change})
    window.open_timeline(session)
    expect(window.detail.locator(".changes")).to_contain_text("constructor")
    assert window.evaluate("() => ({}).polluted") is None
    check_harmless(window)
