"""Modules of JavaScript become few files. That these do what the modules do, is what all of `tests/web` shows."""

from __future__ import annotations

import re

import pytest

from swarmkeep.http.pages import PackingError, pack

MODULES = {
    "main.js": '// The page.\n\nimport { show, hide as away } from "./view.js";\nimport "./effect.js";\n\n'
    'const later = () => import("./rare.js");\nconst work = () => new Worker(new URL("./work.js", import.meta.url));\n'
    "show(away, later, work);\n",
    "view.js": 'import lib from "./lib.min.js";\n\nexport const show = lib.show;\nexport async function hide() {}\n',
    "lib.min.js": "/*! Licence */\nconst a={show(){}};export{a as default,a as other};\n",
    "effect.js": "globalThis.effect = `\n// no comment\n`;\n",
    "rare.js": 'import { show } from "./view.js";\nimport { only } from "./only.js";\n\n'
    "export class Rare {}\nshow(only);\n",
    "only.js": "export const only = 1;\n",
    "work.js": 'import { only } from "./only.js";\n\npostMessage(only);\n',
}


def test_lazy_and_worker_code_packed_separately() -> None:
    files = pack("main.js", MODULES.__getitem__)
    held = {name: re.findall(r"^// ([\w.]+)\nconst \$", source, re.MULTILINE) for name, source in files.items()}
    assert held == {
        "main.js": ["lib.min.js", "view.js", "effect.js", "main.js"],
        "rare.js": ["only.js", "rare.js"],
        # A worker shares nothing with the page.
        "work.js": ["only.js", "work.js"],
    }
    assert files["rare.js"].startswith('import { $view_js } from "./main.js";\n// only.js\n')
    assert files["rare.js"].endswith("export const { Rare } = $rare_js;\n")
    main = files["main.js"]
    assert main.endswith("export { $view_js };\n")
    assert "const { show, hide: away } = $view_js;" in main
    assert "return { default: a, other: a };" in main
    # Comments are left out, but for licences and what is text.
    assert "// The page." not in main
    assert "/*! Licence */" in main
    assert "// no comment" in main


@pytest.mark.parametrize(
    "source",
    [
        "export default class {}\n",
        "export let count = 0;\n",
        "export const { a, b } = things;\n",
        'export * from "./view.js";\n',
        'import * as all from "./view.js";\n',
        'import x from "https://elsewhere.example/x.js";\n',
        'import { gone } from "./view.js";\n',
        'import lib from "./view.js";\n',
        "const all = await load();\n",
        'import { a } from "./again.js";\nexport const b = a;\n',
    ],
)
def test_what_cannot_be_packed_is_refused(source: str) -> None:
    again = 'import { b } from "./main.js";\nexport const a = 1;\n'
    with pytest.raises(PackingError):
        pack("main.js", {**MODULES, "main.js": source, "again.js": again}.__getitem__)
