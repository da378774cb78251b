"""The reference pages, made of what the code says of itself: OpenAPI, `--help`, descriptions of settings, docstrings of
events. `make docs` puts them behind the pages http.md, cli.md, settings.md, events.md and servers.md of this folder."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from tests.support.dialects import DIALECTS, describe_dialect

from swarmkeep.cli.app import app as cli
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import FACTS, AwaitedApproval, EventView, ListedTool, Parent, PendingCall, RunError
from swarmkeep.events.records import CompletionRecord, ContextChange, RequestRecord, RunOptions, ToolRecord, Usage
from swarmkeep.history.verify import CODES
from swarmkeep.http.errors import STATUS, TITLES
from swarmkeep.http.metrics import GAUGES, Metrics
from swarmkeep.http.openapi import FAILURES, PROBLEMS, build_openapi, read_field_texts
from swarmkeep.serve.app import build_api
from swarmkeep.serve.settings import Settings

EXAMPLES = Path(__file__).parent / "events.json"
PARTS = (
    *(CompletionRecord, RequestRecord, ToolRecord, ContextChange, RunOptions, Usage),
    *(PendingCall, AwaitedApproval, RunError, Parent, ListedTool),
)
UNBOUNDED = 10**9
# What any route may refuse with, and what any that writes may.
COMMON_CODES = {
    *("invalid_request", "unauthenticated", "forbidden", "rate_limited", "internal_error", "store_unavailable"),
    *("too_large", "unsupported_media_type", "request_timeout", "overloaded", "session_damaged", "history_damaged"),
}


def make_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def make_code_table(texts: Mapping[str, str]) -> str:
    return make_table(("code", "meaning"), ((f"`{code}`", text) for code, text in texts.items()))


def join_sections(sections: Iterable[str]) -> str:
    return "\n\n".join(filter(None, sections)) + "\n"


def tidy(text: str) -> str:
    """Return the paragraphs and lists of a docstring, each in one line."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(re.sub(r"\s*\n(?!- )\s*", " ", paragraph) for paragraph in paragraphs)


# HTTP.


@cache
def read_openapi() -> Json:
    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        yield

    document: Json = json.loads(build_openapi(build_api(lifespan=lifespan, max_body_bytes=1)))
    return document


def list_operations() -> Iterator[tuple[str, Json]]:
    for path, methods in read_openapi()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def describe_type(schema: Json) -> str:
    """Name the type of a value: its JSON type, its values, or a struct further down."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join("null" if value is None else f"`{value}`" for value in values)
    if "oneOf" in schema:
        found = " or ".join(dict.fromkeys(map(describe_type, schema["oneOf"])))
    elif schema.get("type") == "array":
        found = f"list of {describe_type(schema.get('items', {}))}"
    else:
        found = str(schema.get("type", "any value"))
    return found + _describe_bounds(schema)


def _describe_bounds(schema: Json) -> str:
    """Say how long or large a value may be; bounds that no one meets are left out."""
    least, most = schema.get("minimum"), schema.get("maximum", UNBOUNDED)
    if "maxLength" in schema:
        return f", up to {schema['maxLength']:,} characters"
    if most < UNBOUNDED:
        return f", {least or 0:g} to {most:,g}"
    return f", from {least:g}" if least is not None else ""


def describe_default(schema: Json, is_required: bool) -> str:
    if is_required:
        return "required"
    default = schema.get("default")
    return "" if default in (None, [], "") else f"`{json.dumps(default)}`"


def describe_fields(name: str) -> str:
    schema = read_openapi()["components"]["schemas"][name]
    rows = (
        (
            f"`{field}`",
            describe_type(found),
            describe_default(found, field in schema.get("required", ())),
            found.get("description", "").partition("\n\n")[0],
        )
        for field, found in schema.get("properties", {}).items()
    )
    return join_sections(
        [tidy(schema.get("description", "")), make_table(("field", "type", "default", "meaning"), rows)]
    )


def find_struct(content: Json) -> str | None:
    """Return the name of the struct that a body is, where it is one."""
    schema = content.get("application/json", {}).get("schema", {})
    return schema["$ref"].rpartition("/")[2] if "$ref" in schema else None


def list_codes(operation: Json) -> list[str]:
    described = " ".join(str(answer.get("description")) for answer in operation["responses"].values())
    return list(dict.fromkeys(re.findall(r"`([a-z_]+)`: ", described)))


def describe_operation(route: str, operation: Json) -> Iterator[str]:
    yield f"### `{route}`"
    yield operation["summary"] + "."
    yield tidy(operation.get("description", ""))
    parameters = [
        (
            f"`{parameter['name']}`",
            parameter["in"],
            describe_type(parameter["schema"]),
            describe_default(parameter["schema"], parameter.get("required", False)),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
        if parameter["in"] != "path" or "description" in parameter
    ]
    if parameters:
        yield make_table(("parameter", "in", "type", "default", "meaning"), parameters)
    body = operation.get("requestBody")
    if body:
        name = find_struct(body["content"])
        yield describe_fields(name) if name else "The body is the file."
        yield "" if body.get("required") else "The body may be absent."
    yield " ".join(_describe_answers(operation))
    own = [f"`{code}`" for code in list_codes(operation) if code not in COMMON_CODES]
    yield f"Refused with: {', '.join(own)}." if own else ""


def _describe_answers(operation: Json) -> Iterator[str]:
    for status, answer in operation["responses"].items():
        if not status.startswith("2"):
            continue
        name = find_struct(answer.get("content", {}))
        forms = [f"`{kind}`" for kind in answer.get("content", {}) if kind != "application/json"]
        yield (
            f"Answers {status}"
            + (f" with {describe_type({'$ref': name})}" if name else "")
            + (f"{', or ' if name else ' as '}{', '.join(forms)}." if forms else ".")
        )


def write_http() -> str:
    sections: list[str] = []
    by_tag: dict[str, list[str]] = {}
    bodies = set()
    for route, operation in list_operations():
        bodies.add(find_struct(operation.get("requestBody", {}).get("content", {})))
        by_tag.setdefault(operation["tags"][0], []).append(join_sections(describe_operation(route, operation)))
    for tag, operations in by_tag.items():
        sections += [f"## {tag.replace('agui', 'AG-UI').capitalize() if tag != 'agui' else 'AG-UI'}", *operations]
    sections.append("## Objects")
    for name in read_openapi()["components"]["schemas"]:
        if name not in bodies:
            sections += [f"### {name}", describe_fields(name)]
    sections += ["## Errors", make_table(("status", "code", "title", "meaning"), list_problems())]
    sections += ["## Why a run fails", make_code_table(FAILURES), "## Problems of a log", make_code_table(CODES)]
    return join_sections(sections)


def list_problems() -> list[tuple[str, str, str, str]]:
    rows = [(str(STATUS[code]), f"`{code}`", TITLES[code], text) for code, text in PROBLEMS.items()]
    return sorted(rows, key=lambda row: row[0])


# Events.


@cache
def read_examples() -> dict[str, list[Json]]:
    examples: dict[str, list[Json]] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    return examples


def describe_struct(struct: type[msgspec.Struct]) -> str:
    texts = read_field_texts(struct)
    rows = ((f"`{field.encode_name}`", texts.get(field.encode_name, "")) for field in msgspec.structs.fields(struct))
    return join_sections([tidy(inspect.getdoc(struct) or ""), make_table(("field", "meaning"), rows)])


def write_events() -> str:
    sections = ["## The envelope", describe_struct(EventView), "## Types"]
    for name, fact in FACTS.items():
        examples = (f"```json\n{json.dumps(example, ensure_ascii=False)}\n```" for example in read_examples()[name])
        sections += [f"### `{name}`", describe_struct(fact), *examples]
    sections.append("## Parts")
    for struct in PARTS:
        sections += [f"### {struct.__name__}", describe_struct(struct)]
    return join_sections(sections)


# Settings.


def list_settings() -> Iterator[tuple[str, str, str]]:
    """Each setting by its variable, with its default and its meaning."""
    for name, field in Settings.model_fields.items():
        variable = name.upper() if field.validation_alias else f"SWARMKEEP_{name.upper()}"
        yield variable, _show_default(field.default), field.description or ""


def _show_default(default: object) -> str:
    match default:
        case None:
            return "not set"
        case tuple():
            return f"`{','.join(map(str, default))}`" if default else "none"
        case bool():
            return f"`{str(default).lower()}`"
        case float():
            return f"`{default:g}`"
    return f"`{default}`"


def list_metrics() -> Iterator[tuple[str, str]]:
    for metric in Metrics().registry.collect():
        if metric.name.startswith("swarmkeep_"):
            yield metric.name + ("_total" if metric.type == "counter" else ""), metric.documentation
    yield from GAUGES.items()


def write_settings() -> str:
    rows = ((f"`{variable}`", default, text) for variable, default, text in list_settings())
    metrics = ((f"`{name}`", text) for name, text in list_metrics())
    return join_sections(
        [
            make_table(("variable", "default", "meaning"), rows),
            "## Metrics",
            "`GET /metrics` shows these, for Prometheus; see [Running it](../running.md#metrics).",
            make_table(("metric", "counts"), metrics),
        ]
    )


# Command line.


def list_commands(command: Any = None, path: str = "swarmkeep") -> Iterator[tuple[str, Any]]:
    """Every command by its name."""
    command = command or typer.main.get_command(cli)
    inner = getattr(command, "commands", {})
    if path == "swarmkeep" or not inner:
        yield path, command
    for name, found in inner.items():
        yield from list_commands(found, f"{path} {name}")


def list_options(command: Any) -> Iterator[tuple[str, str]]:
    """Each argument and option of a command, with what `--help` says of it."""
    for parameter in command.params:
        if parameter.name != "help":
            names = [*parameter.opts, *parameter.secondary_opts]
            shown = ", ".join(f"`{name}`" for name in names if name.startswith("-")) or f"`{parameter.metavar}`"
            value = f" {parameter.metavar}" if parameter.metavar and names[0].startswith("-") else ""
            yield shown + value, parameter.help or ""


def write_cli() -> str:
    sections = []
    for path, command in list_commands():
        sections += [f"## `{path}`", tidy(command.help or "")]
        sections.append(make_table(("option", "meaning"), list_options(command)))
    return join_sections(sections)


# Model servers.


def write_servers() -> str:
    head = ("server", "model", "sends, beside usual replies", "refuses", "setting")
    return make_table(head, map(describe_dialect, DIALECTS.values())) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/site/http": write_http,
    "docs/site/events": write_events,
    "docs/site/settings": write_settings,
    "docs/site/cli": write_cli,
    "docs/site/servers": write_servers,
}
