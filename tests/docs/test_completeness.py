"""The documentation names everything that there is, where a reader looks for it: no more can be added unnoticed."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
import typer.main

import swarmkeep
import swarmkeep_client
from swarmkeep.agent import Agent
from swarmkeep.cli.app import app
from swarmkeep.events import errors as domain
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import FACTS, Fact, PendingCall, StopReason, ToolStatus
from swarmkeep.events.records import CompletionRecord, RequestRecord
from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.events.views import RunView, SessionView
from swarmkeep.history.verify import CODES
from swarmkeep.http import errors
from swarmkeep.http.websocket import COMMAND_TYPES
from swarmkeep.runs.limits import Limits
from swarmkeep.serve.app import build_api
from swarmkeep.serve.settings import Settings
from tests.docs.pages import (
    DOCS,
    PAGES,
    README,
    ROOT,
    find_code_spans,
    list_anchors,
    read_page,
    read_sections,
    read_table_rows,
)
from tests.support.dialects import DIALECTS, describe_dialect
from tests.support.markdown import read_blocks
from tests.support.source import list_modules

EVENTS, HTTP, CLIENT = DOCS / "events.md", DOCS / "http.md", DOCS / "client.md"
CLI, RUNNING, AGENTS, CONCEPTS = DOCS / "cli.md", DOCS / "running.md", DOCS / "agents.md", DOCS / "concepts.md"

PASSING_FRAMES = ("message.started", "message.delta", "done", "sessions.changed")
TERMINAL_EVENTS = [name for name, fact in FACTS.items() if "stop_reason" in fact.__struct_fields__]


def list_encoded_names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return struct.__struct_encode_fields__


# Model servers.


def test_every_server_that_was_tried_has_its_row() -> None:
    rows = read_table_rows(read_sections(DOCS / "models.md")["What was tried"])
    assert rows[2:] == [describe_dialect(dialect) for dialect in DIALECTS.values()]


# Events.


def find_section(name: str) -> str:
    # The four ends of a run share what stands under the last of them.
    return read_sections(EVENTS)[f"`{TERMINAL_EVENTS[-1] if name in TERMINAL_EVENTS else name}`"]


@pytest.mark.parametrize("name", FACTS)
def test_every_event_type_documented_with_fields(name: str) -> None:
    assert f"`{name}`" in read_sections(EVENTS)
    assert set(list_encoded_names(FACTS[name])) <= find_code_spans(find_section(name))


@pytest.mark.parametrize("name", FACTS)
def test_every_event_type_has_valid_example(name: str) -> None:
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", find_section(name), flags=re.DOTALL)]
    assert examples
    for example in examples:
        assert_has_shape(example, FACTS[name])


def assert_has_shape(value: Any, wanted: type[Fact]) -> None:
    """The value is of this shape, and has nothing besides."""
    fact = msgspec.convert(value, wanted)
    encoded = json.loads(msgspec.json.encode(fact))
    left_out = {key: item for key, item in value.items() if encoded.get(key) != item and not isinstance(item, dict)}
    assert left_out == {}
    assert set(value) <= set(list_encoded_names(wanted))
    for key, item in value.items():
        if isinstance(item, dict) and isinstance(encoded.get(key), dict):
            assert set(item) <= set(encoded[key])


def test_the_parts_of_events_are_there() -> None:
    spans = find_code_spans(read_page(EVENTS))
    for struct in (CompletionRecord, RequestRecord, PendingCall):
        assert set(list_encoded_names(struct)) <= spans | set(re.findall(r'"(\w+)":', read_page(EVENTS)))


def test_every_tool_status_is_explained() -> None:
    rows = {row[0].strip("`") for row in read_table_rows(find_section("message.added"))}
    assert set(get_args(ToolStatus)) <= rows


def test_passing_frames_are_explained() -> None:
    assert set(PASSING_FRAMES) <= {row[0].strip("`") for row in read_table_rows(read_sections(HTTP)["Streams"])}
    # That these are all.
    api = "".join(file.read_text() for file in list_modules("swarmkeep") if {"http", "openai"} & set(file.parts))
    written = re.findall(r'(?:\bframe\(|\[\(|\bappend\(\()"([\w.]+)", encode', api)
    assert set(written) == set(PASSING_FRAMES)


def test_the_live_connection_is_explained() -> None:
    named = find_code_spans(read_sections(HTTP)["Live"])
    assert {"done", "accepted", "error", "after", "ref", "idempotency_key", *COMMAND_TYPES} <= named


# HTTP.


@cache
def openapi() -> Json:
    @asynccontextmanager
    async def lifespan(app: object) -> Any:
        yield

    document: Json = build_api(lifespan=lifespan, max_body_bytes=1).openapi_schema.to_schema()
    return document


def list_operations() -> Iterator[tuple[str, Json]]:
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def list_body_fields(operation: Json) -> set[str]:
    content = operation.get("requestBody", {}).get("content", {})
    found: set[str] = set()
    for body in content.values():
        if not body["schema"]:
            # A file.
            continue
        reference = str(body["schema"]).rpartition("/components/schemas/")[2].partition("'")[0]
        found |= set(openapi()["components"]["schemas"][reference]["properties"])
    return found


@pytest.mark.parametrize("route", [route for route, _ in list_operations()])
def test_every_route_documented_with_fields(route: str) -> None:
    operation = dict(list_operations())[route]
    assert f"`{route}`" in read_sections(HTTP)
    named = find_code_spans(read_sections(HTTP)[f"`{route}`"])
    assert list_body_fields(operation) <= named
    parameters = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] != "path"}
    assert parameters <= named


def test_every_documented_route_is_there() -> None:
    routes = {route for route, _ in list_operations()}
    found = {title.strip("`") for title in read_sections(HTTP) if re.match(r"`(GET|POST|PATCH|PUT|DELETE) /", title)}
    assert found <= routes


def test_every_route_names_its_own_refusals() -> None:
    common = {"invalid_request", "forbidden", "too_large", "unsupported_media_type", "internal_error"}
    common |= {
        "store_unavailable",
        "overloaded",
        "session_damaged",
        "history_damaged",
        "unauthenticated",
        "rate_limited",
        "request_timeout",
    }
    for route, operation in list_operations():
        described = "".join(str(answer.get("description")) for answer in operation["responses"].values())
        codes = set(re.findall(r"`([a-z_]+)`: ", described)) - common
        assert codes <= find_code_spans(read_sections(HTTP)[f"`{route}`"]), route


def list_error_codes() -> dict[str, int]:
    """Every code with its status."""
    found = {error.code: status for error, status in errors.STATUS.items()}
    for status, spec in errors.problem_specs(*errors.TITLES).items():
        found |= dict.fromkeys(re.findall(r"`([a-z_]+)`: ", str(spec.description)), status)
    return found


def test_every_error_code_listed_with_status() -> None:
    rows = {row[1].strip("`"): row[0] for row in read_table_rows(read_sections(HTTP)["Errors"]) if row[0].isdecimal()}
    assert rows == {code: str(status) for code, status in list_error_codes().items()}
    codes = {cls.code for cls in vars(domain).values() if inspect.isclass(cls) and hasattr(cls, "code")}
    assert codes <= set(rows)


def test_every_failure_reason_is_listed() -> None:
    engine = [file.read_text() for file in list_modules("swarmkeep") if {"models", "runs"} & set(file.parts)]
    codes = {code for text in engine for code in re.findall(r'RunError\(\s*code="(\w+)"', text)}
    codes |= {
        code for text in engine for code in re.findall(r'"((?:provider|context|content)_\w+)", (?:True|False)', text)
    }
    codes |= {code for text in engine for code in re.findall(r'\bcode(?:: ClassVar\[str\])? = "(\w+)"', text)}
    codes |= {code for text in engine for code in re.findall(r'\("((?:provider|context|content)_\w+)", ', text)}
    assert len(codes) > 15
    rows = {row[0].strip("`") for row in read_table_rows(read_sections(HTTP)["Why a run fails"])}
    assert codes <= rows


def test_documented_sessions_and_runs_are_accurate() -> None:
    for title, struct in (("A session", SessionView), ("A run", RunView)):
        (example,) = re.findall(r"```json\n(.*?)```", read_sections(HTTP)[title], flags=re.DOTALL)
        shown = msgspec.convert(json.loads(example), struct)
        absent = [name for name in list_encoded_names(struct) if getattr(shown, name) is msgspec.UNSET]
        assert (*json.loads(example), *absent) == list_encoded_names(struct)
        # What is not always there is explained in the table.
        assert set(absent) <= find_code_spans(read_sections(HTTP)[title])


def test_every_status_and_stop_reason_explained() -> None:
    run = find_code_spans(read_sections(CONCEPTS)["Run"])
    assert {*get_args(RunStatus), *get_args(StopReason)} <= run
    assert set(get_args(SessionStatus)) <= find_code_spans(read_sections(CONCEPTS)["Session"])
    assert {*get_args(RunStatus), *get_args(StopReason)} <= find_code_spans(read_sections(HTTP)["A run"])


def test_every_check_problem_is_listed() -> None:
    rows = {row[0].strip("`"): row[1] for row in read_table_rows(read_sections(DOCS / "verification.md")["Checking"])}
    assert {code: rows.get(code) for code in CODES} == dict(CODES)


# Settings, commands, Python.


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_listed_with_default(field: str) -> None:
    is_ours = Settings.model_fields[field].validation_alias is None
    name = f"SWARMKEEP_{field.upper()}" if is_ours else field.upper()
    rows = {row[0].strip("`"): row[1].strip("`") for row in read_table_rows(read_sections(RUNNING)["Settings"])}
    assert name in rows
    default = Settings.model_fields[field].default
    if default is None:
        assert rows[name] == "not set"
    elif isinstance(default, tuple):
        assert rows[name] == (",".join(default) or "none")
    elif isinstance(default, bool):
        assert rows[name] == str(default).lower()
    elif isinstance(default, float):
        assert float(rows[name]) == default
    else:
        assert rows[name] == str(default)


def test_every_environment_variable_documented() -> None:
    source = "".join(file.read_text() for name in ("swarmkeep", "swarmkeep_client") for file in list_modules(name))
    read = set(re.findall(r"\b(?:SWARMKEEP|OPENAI)_[A-Z_]*[A-Z]\b", source))
    assert read <= set(re.findall(r"\b(?:SWARMKEEP|OPENAI)_[A-Z_]*[A-Z]\b", "".join(map(read_page, PAGES))))


def test_the_limits_are_as_they_are() -> None:
    rows = {row[0]: row[1] for row in read_table_rows(read_sections(RUNNING)["Limits"])}
    recoveries = Limits().max_recoveries
    assert rows["take-overs of a run without a model reply between them"].startswith(f"{recoveries},")


def list_commands(command: Any = None, path: str = "swarmkeep") -> Iterator[tuple[str, set[str]]]:
    """Every command by its name, with its options."""
    command = command or typer.main.get_command(app)
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    if path == "swarmkeep" or not getattr(command, "commands", None):
        yield path, options - {"--help"}
    for name, inner in getattr(command, "commands", {}).items():
        yield from list_commands(inner, f"{path} {name}")


COMMANDS = dict(list_commands())


def read_commands() -> dict[str, str]:
    """Return the section of each command, or its row in a table of several."""
    sections = {title.strip("`"): text for title, text in read_sections(CLI).items() if title.startswith("`swarmkeep")}
    rows = {row[0].strip("`"): row[1] for row in read_table_rows(read_page(CLI)) if row[0].startswith("`swarmkeep ")}
    return rows | sections


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_there_with_its_options(path: str) -> None:
    shared = find_code_spans(read_sections(CLI)["Options of most commands"])
    assert COMMANDS[path] <= find_code_spans(read_commands()[path]) | shared


def test_every_documented_command_is_there() -> None:
    assert set(read_commands()) <= set(COMMANDS)


def test_every_public_name_is_documented() -> None:
    text = read_page(AGENTS)
    assert [name for name in swarmkeep.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert set(Agent.model_fields) <= find_code_spans(read_sections(AGENTS)["`Agent`"])


def test_every_client_name_documented() -> None:
    text = read_page(CLIENT)
    methods = {
        name
        for cls in (
            swarmkeep_client.Client,
            swarmkeep_client.Session,
            type(swarmkeep_client.Client().sessions),
            type(swarmkeep_client.Client().agents),
        )
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert sorted(name for name in methods if not re.search(rf"\b{name}\(", text)) == []
    raised = {
        cls.__name__
        for cls in (getattr(swarmkeep_client, name) for name in swarmkeep_client.__all__)
        if inspect.isclass(cls) and issubclass(cls, swarmkeep_client.SwarmkeepError)
    }
    assert raised <= find_code_spans(text)
    assert set(swarmkeep_client.RunOptions.__annotations__) <= find_code_spans(text) | {"idempotency_key"}


# The pages themselves.


def test_every_page_reachable_from_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", read_page(README)))
    assert {str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")} == linked


def test_every_link_leads_somewhere() -> None:
    wrong = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", read_page(page), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in list_anchors(file)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_no_block_is_skipped_without_need() -> None:
    reasons = {block.remark for page in PAGES for block in read_blocks(page) if block.remark.startswith("no-run")}
    assert len(reasons) <= 9, reasons
