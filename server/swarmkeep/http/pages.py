"""Joins modules of JavaScript into few files, so that a page needs few requests, without a step that builds anything.

Each module becomes a function that gives its exports, so that its names stay its own:

    const $theme_js = (() => {
    const { button, icon } = $dom_js;
    ...
    return { themeButton };
    })();

A module that is loaded on demand, by `import("./timeline.js")`, begins a file of its own under its name, with what it
needs and no file before it has. So does one that runs in a worker, named by `new URL("./work.js", import.meta.url)`; it
shares nothing with the page. All other module syntax of JavaScript is refused: see `PackingError`.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from swarmkeep.http.openapi import build_openapi
from swarmkeep.http.parameters import takes_gzip

_NAME = r'"\./([\w.-]+)"'
_IMPORT = re.compile(rf"^import\s*(?:(?:(\w+)|\{{([^}}]*)\}})\s*from\s*)?{_NAME};?[ \t]*$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|class|const) (\w+)", re.MULTILINE)
# At the end, as libraries have it.
_EXPORT_LIST = re.compile(r"\bexport\s*\{([^}]*)\};?\s*\Z")
_ON_DEMAND = re.compile(rf"\bimport\({_NAME}\)")
_IN_WORKER = re.compile(rf"\bnew URL\({_NAME}, import\.meta\.url\)")
_LEFT_OVER = re.compile(r"^(?:import\b(?!\s*[(.])|export\b|(?:(?:const|let) [^=;]*=\s*)?await\b).*", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*//.*$", re.MULTILINE)


class PackingError(Exception):
    """A module cannot be packed: it imports in a circle, what another does not export, or all of it (`* as`), exports
    what may change or has no name, or waits before it is there."""


class Module(msgspec.Struct, frozen=True):
    """A module as a function: what is in it, by what names others know that, and what it needs."""

    name: str
    body: str
    exports: dict[str, str]
    needed: dict[str, list[str]]
    """What it takes of others, by their names."""
    on_demand: list[str]
    in_workers: list[str]

    @property
    def variable(self) -> str:
        return _name_variable(self.name)

    def write(self) -> str:
        given = ", ".join(name if name == local else f"{name}: {local}" for name, local in self.exports.items())
        return f"// {self.name}\nconst {self.variable} = (() => {{\n{self.body}\nreturn {{ {given} }};\n}})();\n"


def read_module(name: str, source: str) -> Module:
    exports: dict[str, str] = {}
    body = _EXPORT.sub(lambda found: _note_export(exports, found), _drop_comments(source).rstrip())
    body = _EXPORT_LIST.sub(lambda found: _note_exports(exports, found), body)
    needed = {found[3]: [there for there, _ in _list_taken(found)] for found in _IMPORT.finditer(body)}
    body = _IMPORT.sub(_write_import, body)
    if left := _LEFT_OVER.search(body):
        raise PackingError(f"{name}: `{left[0][:80]}` cannot be packed")
    return Module(name, body, exports, needed, _ON_DEMAND.findall(body), _IN_WORKER.findall(body))


def _drop_comments(source: str) -> str:
    """Without the lines that are comments, as far as they are in no text: one that goes over several lines has a back
    tick too many in its first."""
    if any(line.count("`") % 2 for line in source.splitlines()):
        return source
    return _COMMENT.sub("", source)


def _note_export(exports: dict[str, str], found: re.Match[str]) -> str:
    exports[found[2]] = found[2]
    return f"{found[1]} {found[2]}"


def _note_exports(exports: dict[str, str], found: re.Match[str]) -> str:
    for name, other in _split_names(found[1]):
        exports[other] = name
    return ""


def _write_import(found: re.Match[str]) -> str:
    taken = ", ".join(there if there == here else f"{there}: {here}" for there, here in _list_taken(found))
    return f"const {{ {taken} }} = {_name_variable(found[3])};" if taken else ""


def _list_taken(found: re.Match[str]) -> list[tuple[str, str]]:
    """List the names that an import takes, each as a pair of its name there and here."""
    default, names = found[1], found[2]
    return [("default", default)] if default else _split_names(names or "")


def _name_variable(name: str) -> str:
    return f"${re.sub(r'[^A-Za-z0-9]', '_', name)}"


def _split_names(names: str) -> list[tuple[str, str]]:
    """`a, b as c` as pairs of a name and what it is called from there on."""
    parts = [part.split() for part in names.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def pack(entry: str, read: Callable[[str], str]) -> dict[str, str]:
    """The files of a page that begins with the module `entry`, by name; `read` gives a module's source."""
    return _Packer(read).pack(entry)


class _Packer:
    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._modules: dict[str, Module] = {}
        self._homes: dict[str, str] = {}
        """The file that each module is in."""

    def pack(self, entry: str) -> dict[str, str]:
        files: dict[str, list[str]] = {}
        waiting, workers = [entry], dict[str, None]()
        for name in waiting:
            files[name] = [found for found in self._list_needed(name) if found not in self._homes]
            self._homes |= dict.fromkeys(files[name], name)
            for found in files[name]:
                waiting += [other for other in self._get(found).on_demand if other not in waiting]
                workers |= dict.fromkeys(self._get(found).in_workers)
        packed = {name: self._write_file(name, modules, files) for name, modules in files.items()}
        for worker in workers:
            packed |= _Packer(self._read).pack(worker)
        self._refuse_same_variables()
        return packed

    def _get(self, name: str) -> Module:
        if name not in self._modules:
            self._modules[name] = read_module(name, self._read(name))
        return self._modules[name]

    def _list_needed(self, name: str) -> list[str]:
        """A module and what it needs, each behind what it needs itself."""
        found: dict[str, None] = {}

        def add(module: str, above: tuple[str, ...]) -> None:
            if module in above:
                raise PackingError(f"imported in a circle: {' -> '.join((*above, module))}")
            for needed, names in self._get(module).needed.items():
                if missing := [name for name in names if name not in self._get(needed).exports]:
                    raise PackingError(f"{module}: {needed} does not export {', '.join(missing)}")
                if needed not in found:
                    add(needed, (*above, module))
            found[module] = None

        add(name, ())
        return list(found)

    def _write_file(self, name: str, modules: list[str], files: dict[str, list[str]]) -> str:
        return "".join(
            [
                *self._write_imports(name, modules),
                *(self._get(module).write() for module in modules),
                *self._write_exports(name, modules, files),
            ]
        )

    def _write_imports(self, name: str, modules: list[str]) -> Iterator[str]:
        taken: dict[str, list[str]] = {}
        for module in self._list_foreign(name, modules):
            taken.setdefault(self._homes[module], []).append(self._get(module).variable)
        for home, variables in taken.items():
            yield f'import {{ {", ".join(variables)} }} from "./{home}";\n'

    def _list_foreign(self, name: str, modules: list[str]) -> list[str]:
        """List the names that a file needs of others."""
        needed = {other for module in modules for other in self._get(module).needed} | {name}
        return sorted(other for other in needed if self._homes[other] != name)

    def _write_exports(self, name: str, modules: list[str], files: dict[str, list[str]]) -> Iterator[str]:
        foreign = {other for file, held in files.items() for other in self._list_foreign(file, held)}
        if shared := [self._get(module).variable for module in modules if module in foreign]:
            yield f"export {{ {', '.join(shared)} }};\n"
        variable, exports = self._get(name).variable, self._get(name).exports
        if names := [export for export in exports if export != "default"]:
            yield f"export const {{ {', '.join(names)} }} = {variable};\n"
        if "default" in exports:
            yield f"export default {variable}.default;\n"

    def _refuse_same_variables(self) -> None:
        if len({module.variable for module in self._modules.values()}) < len(self._modules):
            raise PackingError("two modules have names that differ in signs only")


# Static files with the security headers of a page.

WEB = Path(__file__).resolve().parents[1] / "web"
VENDOR = WEB / "vendor"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
# To be asked for again each time, which a 304 answers: after an update no old module meets a new one.
_ASKED_AGAIN = "no-cache"
# What has the digest of its content in its address never changes.
_KEPT = "public, max-age=31536000, immutable"


class StaticFile(msgspec.Struct, frozen=True):
    """A file's content, as it is and compressed once for all."""

    content: bytes
    compressed: bytes
    media_type: str
    digest: str


def make_file(content: bytes, suffix: str) -> StaticFile:
    digest = hashlib.sha256(content).hexdigest()[:32]
    return StaticFile(content, gzip.compress(content, mtime=0), _MEDIA_TYPES[suffix], digest)


@cache
def read_file(file: Path) -> StaticFile:
    return make_file(file.read_bytes(), file.suffix)


def make_file_response(
    request: Request[Any, Any, Any], files: Mapping[str, Path], name: str, policy: str
) -> Response[Any]:
    """One of `files`, or 304 if the client has it; `policy` is its Content-Security-Policy."""
    if name not in files:
        raise NotFoundException
    return make_static_response(request, read_file(files[name]), policy)


def make_static_response(
    request: Request[Any, Any, Any], file: StaticFile, policy: str, *, is_kept: bool = False
) -> Response[Any]:
    """A file, or 304 if the client has it. One that `is_kept` is not asked for again: its address is its content's."""
    is_compressed = takes_gzip(request.scope["headers"])
    etag = f'"{file.digest}{"-gzip" if is_compressed else ""}"'
    cached = _KEPT if is_kept else _ASKED_AGAIN
    headers = {**_HEADERS, "Cache-Control": cached, "Content-Security-Policy": policy, "ETag": etag}
    known = request.headers.get("if-none-match", "")
    if known.strip() == "*" or etag in known:
        return Response[Any](None, status_code=304, headers=headers)
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    content = file.compressed if is_compressed else file.content
    return Response[Any](content, media_type=file.media_type, headers=headers)


# The page at `/`: chat, and a timeline of any session. Plain files; nothing comes from elsewhere.

_FILES = {file.name: file for file in (WEB / "page").iterdir() if file.suffix in (".html", ".css", ".js")}
_LIBRARIES = ("marked/marked.esm.js", "dompurify/purify.min.js", "highlight.js/highlight.min.js", "katex/katex.min.js")
_FILES |= {file.name: file for file in (VENDOR / path for path in _LIBRARIES)}
# What the page of a release that joined nothing may ask for.
_PARTS = {name: file for name, file in _FILES.items() if name != "index.html"}
_PREFETCH = "prefetch.js"
_BEGIN = "main.js"
_STYLES = "page.css"
_STYLE_COMMENT = re.compile(r"^/\*.*?\*/\n+", re.MULTILINE | re.DOTALL)
_STYLE_LINK = re.compile(r' *<link rel="stylesheet" href="page/([\w.-]+)">\n')

# Scripts and styles are those of the files here. Markup in text becomes part of the page through DOMPurify only, and a
# worker has the one address that `highlighting.js` gives it.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types dompurify highlighter"
)


@cache
def make_page() -> tuple[StaticFile, dict[str, StaticFile]]:
    """The page itself, and the files that it is given at addresses of their content, by name."""
    index = _read("index.html")
    styles = "".join(_STYLE_COMMENT.sub("", _read(name)) for name in _STYLE_LINK.findall(index))
    sources = {**pack(_PREFETCH, _read), **pack(_BEGIN, _read), _STYLES: styles}
    digest = hashlib.sha256("".join(f"{name}\n{source}\n" for name, source in sources.items()).encode())
    place = f"page/{digest.hexdigest()[:16]}/"
    first, *others = (found[0] for found in _STYLE_LINK.finditer(index))
    for link in others:
        index = index.replace(link, "")
    index = index.replace(first, f'    <link rel="stylesheet" href="page/{_STYLES}">\n').replace('"page/', f'"{place}')
    files = {name: make_file(source.encode(), f".{name.rpartition('.')[2]}") for name, source in sources.items()}
    return make_file(index.encode(), ".html"), {place + name: file for name, file in files.items()}


async def _get_page() -> tuple[StaticFile, dict[str, StaticFile]]:
    # To join and compress them takes longer than one should hold up the others.
    return make_page() if make_page.cache_info().currsize else await asyncio.to_thread(make_page)


def _read(name: str) -> str:
    return _FILES[name].read_text(encoding="utf-8")


@get("/", include_in_schema=False)
async def get_page(request: Request[Any, Any, Any]) -> Response[Any]:
    index, _ = await _get_page()
    return make_static_response(request, index, _POLICY)


@get("/page/{version:str}/{name:str}", include_in_schema=False)
async def get_page_file_of_version(
    request: Request[Any, Any, Any], version: FromPath[str], name: FromPath[str]
) -> Response[Any]:
    """While servers are updated one by one, a page of one may ask another for its files: it gets those that there are,
    and keeps none of them."""
    _, files = await _get_page()
    if file := files.get(f"page/{version}/{name}"):
        return make_static_response(request, file, _POLICY, is_kept=True)
    for path, file in files.items():
        if path.endswith(f"/{name}"):
            return make_static_response(request, file, _POLICY)
    return make_file_response(request, _PARTS, name, _POLICY)


@get("/page/{name:str}", include_in_schema=False)
async def get_page_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return make_file_response(request, _FILES, name, _POLICY)


ROUTES = [get_page, get_page_file_of_version, get_page_file]


# The OpenAPI document, and a page that shows it. The page loads nothing from outside.

_DOCS_FILES = {name: WEB / "docs" / name for name in ("index.html", "init.js")}
_DOCS_FILES |= {name: VENDOR / "swagger-ui" / name for name in ("swagger-ui.css", "swagger-ui-bundle.js")}
# The page's own library sets styles on elements; scripts come from files alone.
_DOCS_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


@get("/docs", include_in_schema=False)
async def get_docs_page(request: Request[Any, Any, Any]) -> Response[Any]:
    return make_file_response(request, _DOCS_FILES, "index.html", _DOCS_POLICY)


@get("/docs/{name:str}", include_in_schema=False)
async def get_docs_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[Any]:
    return make_file_response(request, _DOCS_FILES, name, _DOCS_POLICY)


@get("/openapi.json", include_in_schema=False)
async def get_openapi(request: Request[Any, Any, Any]) -> Response[Any]:
    state = request.app.state
    if "openapi_json" not in state:
        state.openapi_json = await asyncio.to_thread(build_openapi, request.app)
    return Response[Any](state.openapi_json, media_type="application/json")


DOCS_ROUTES = [get_docs_page, get_docs_file, get_openapi]
