"""Formulas in answers: drawn by the browser, with a library that comes with the first one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Request, Route, expect

from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel
from tests.web.test_accessibility import check_accessibility
from tests.web.window import Api, Window

pytestmark = pytest.mark.long

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


def test_formulas_stay_as_written_while_their_library_is_away(window: Window, api: Api) -> None:
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
