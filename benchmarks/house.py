"""Print what the code is made of: sizes, rooms, the way of a run, words. `make house` runs it."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "server" / "swarmkeep"
_ODD_WORDS = re.compile(r"\b(whoever|nobody|somebody|lest|anew|whatever)\b", re.IGNORECASE)
_QUESTION = re.compile(r"(What|Whether|Who|How|Where|Which|Why)\b")


def list_python(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*.py")) if "vendor" not in file.parts]


def count_lines(files: list[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def count_heads(tree: ast.Module) -> int:
    """Lines up to the end of a module's last import, its docstring included."""
    is_head = [isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body]
    ends = [node.end_lineno or 0 for node, found in zip(tree.body, is_head, strict=True) if found]
    if tree.body and isinstance(tree.body[0], ast.Expr):
        ends.append(tree.body[0].end_lineno or 0)
    return max(ends, default=0)


def name_module(file: Path) -> str:
    parts = file.relative_to(SERVER.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_single_importers(files: list[Path]) -> int:
    """Modules that exactly one other module of the server imports."""
    modules = {name_module(file) for file in files}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                named = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [name if name in modules else node.module for name in named]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                continue
            for name in found:
                if name in modules:
                    importers[name].add(name_module(file))
    return sum(len(found) == 1 for found in importers.values())


def list_docstrings(files: list[Path]) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield text


def list_test_names(folder: Path) -> list[str]:
    return [name for file in list_python(folder) for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))]


def count_words(files: list[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").split()) for file in files)


class Way:
    """What of the server's own code ran, how often, and how deep."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.depth = 0

    @property
    def modules(self) -> int:
        return len({code.co_filename for code in self.calls})


class Follower:
    """Counts what runs in all threads that begin from here on, into the way that it is given, if any."""

    def __init__(self) -> None:
        self.way: Way | None = None
        self._own: dict[CodeType, bool] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        way = self.way
        if way is None or event != "call" or not self._is_own(frame.f_code):
            return
        way.calls[frame.f_code] += 1
        depth, above = 0, frame
        while above is not None:
            depth += self._is_own(above.f_code)
            above = above.f_back  # type: ignore[assignment]
        way.depth = max(way.depth, depth)

    def _is_own(self, code: CodeType) -> bool:
        if code not in self._own:
            self._own[code] = code.co_filename.startswith(str(SERVER))
        return self._own[code]


async def follow(path: str, body: dict[str, Any]) -> Way:
    """Send one request to the application several times. Follows that of the last five which calls least: what runs
    beside it by the clock (leases, polls, the index of words) falls into some of them, and is no part of it."""
    follower = Follower()
    ways: list[Way] = []
    import httpx2

    from swarmkeep.serve.app import create_app
    from swarmkeep.serve.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            database_url=f"sqlite:///{folder}/house.db",
            agents=["swarmkeep_agents.acme"],
            offline=True,
            access_log=False,
        )
        app = create_app(settings)
        transport = httpx2.ASGITransport(app)
        async with app.lifespan(), httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            session = (await client.post("/v1/sessions", json={})).json()
            for _ in range(7):
                follower.way = Way()
                ways.append(follower.way)
                answer = await client.post(path.format(session=session["id"]), json=body)
                answer.raise_for_status()
                follower.way = None
    return min(ways[2:], key=lambda way: way.calls.total())


def measure_way(path: str, body: dict[str, Any]) -> Way:
    try:
        return asyncio.run(follow(path, body))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def list_rows() -> Iterator[tuple[str, str, str]]:
    """Each figure: what it is, its value, and what is aimed at."""
    files = list_python(SERVER)
    lines = count_lines(files)
    heads = sum(count_heads(ast.parse(file.read_text(encoding="utf-8"))) for file in files)
    yield "server: lines / modules", f"{lines:,} / {len(files)}", "52,000 / 260"
    yield "heads and imports of all lines", f"{100 * heads / lines:.1f} %", "8 %"
    yield "modules with exactly one importer", str(count_single_importers(files)), "40"
    run = measure_way("/v1/sessions/{session}/runs", {"input": "hello"})
    yield (
        "a hello run: modules / functions / frames deep",
        f"{run.modules} / {len(run.calls)} / {run.depth}",
        "45 / 300 / 16",
    )
    streamed = measure_way("/openai/v1/responses", {"model": "Triage Agent", "input": "hello", "stream": True})
    yield "a streamed response: modules / calls", f"{streamed.modules} / {streamed.calls.total():,}", "60 / 2,000"
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    yield "odd words in 10,000 lines", f"{1e4 * len(_ODD_WORDS.findall(text)) / lines:.0f}", "5"
    docstrings = list(list_docstrings(files))
    questions = sum(bool(_QUESTION.match(text)) for text in docstrings)
    yield "docstrings that begin with a question word", f"{100 * questions / len(docstrings):.1f} %", "3 %"
    yield "docs: words", f"{count_words(sorted((ROOT / 'docs').glob('*.md'))):,}", "45,000"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.split(r"^## ", changes, flags=re.MULTILINE)[1]
    yield "change log of the newest release: words", f"{len(newest.split()):,}", "1,500"
    names = [len(name.split("_")) - 1 for name in list_test_names(ROOT / "tests")]
    yield "tests: lines", f"{count_lines(list_python(ROOT / 'tests')):,}", "60,000"
    yield "words in a test's name: median / longest", f"{median(names):.0f} / {max(names)}", "6 / 12"


def main(put: Callable[[str], None] = print) -> None:
    put(f"{'':48}{'here':>18}  at most")
    for name, value, aim in list_rows():
        put(f"{name:48}{value:>18}  {aim}")


if __name__ == "__main__":
    main()
