"""Code in answers: it gets its colours, stays the text that it is, and holds nothing up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

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
