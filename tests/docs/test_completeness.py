"""The documentation names everything that there is, where a reader looks for it: no more can be added unnoticed."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, get_args

import msgspec
import pytest
from docs.site import reference

import swarmkeep
import swarmkeep_client
from swarmkeep.agent import Agent
from swarmkeep.events import errors as domain
from swarmkeep.events.facts import FACTS, Fact, StopReason, ToolStatus
from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.events.views import RunView, SessionView
from swarmkeep.history.verify import CODES
from swarmkeep.http import errors, openapi
from swarmkeep.http.websocket import COMMAND_TYPES
from swarmkeep.runs.limits import Limits
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

HTTP, CLIENT = DOCS / "http.md", DOCS / "client.md"
RUNNING, AGENTS, CONCEPTS = DOCS / "running.md", DOCS / "agents.md", DOCS / "concepts.md"
# Made of the code: what is said there is said in OpenAPI, `--help` and docstrings.
EVENTS, ROUTES = DOCS / "site" / "events.md", DOCS / "site" / "http.md"
COMMANDS, SETTINGS = DOCS / "site" / "cli.md", DOCS / "site" / "settings.md"

PASSING_FRAMES = ("message.started", "message.delta", "done", "sessions.changed")


def list_encoded_names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return struct.__struct_encode_fields__


# Model servers.


def test_every_server_that_was_tried_has_its_row() -> None:
    rows = read_table_rows(read_page(DOCS / "site" / "servers.md"))[2:]
    assert rows == [describe_dialect(dialect) for dialect in DIALECTS.values()]


# Events.


def explain_rows(text: str) -> dict[str, str]:
    """What the tables of a text say of each name: their last column."""
    return {row[0].strip("`"): row[-1] for row in read_table_rows(text)}


def assert_explained(text: str, names: set[str]) -> None:
    explained = explain_rows(text)
    assert {name for name in names if not explained.get(name)} == set()


@pytest.mark.parametrize("name", FACTS)
def test_every_event_type_documented_with_fields(name: str) -> None:
    section = read_sections(EVENTS)[f"`{name}`"]
    assert inspect.getdoc(FACTS[name])
    assert_explained(section, set(list_encoded_names(FACTS[name])))


@pytest.mark.parametrize("name", FACTS)
def test_every_event_type_has_valid_example(name: str) -> None:
    assert reference.read_examples()[name]
    for example in reference.read_examples()[name]:
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
    for struct in reference.PARTS:
        assert_explained(read_sections(EVENTS)[struct.__name__], set(list_encoded_names(struct)))


def test_every_tool_status_is_explained() -> None:
    assert set(get_args(ToolStatus)) <= find_code_spans(explain_rows(read_sections(EVENTS)["ToolRecord"])["status"])


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


def list_body_fields(operation: Any) -> set[str]:
    struct = reference.find_struct(operation.get("requestBody", {}).get("content", {}))
    return set(reference.read_openapi()["components"]["schemas"][struct]["properties"]) if struct else set()


@pytest.mark.parametrize("route", [route for route, _ in reference.list_operations()])
def test_every_route_documented_with_fields(route: str) -> None:
    operation = dict(reference.list_operations())[route]
    assert operation["summary"]
    section = read_sections(ROUTES)[f"`{route}`"]
    parameters = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] != "path"}
    assert_explained(section, list_body_fields(operation) | parameters)
    assert set(reference.list_codes(operation)) <= find_code_spans(section) | reference.COMMON_CODES


@pytest.mark.parametrize("name", reference.read_openapi()["components"]["schemas"])
def test_every_field_of_an_answer_is_explained(name: str) -> None:
    fields = set(reference.read_openapi()["components"]["schemas"][name].get("properties", {}))
    assert_explained(reference.describe_fields(name), fields - {"data", "next_cursor"})


def test_every_route_in_a_page_is_there() -> None:
    routes = {re.sub(r"\{.*?\}", "…", route) for route, _ in reference.list_operations()}
    for page in PAGES:
        named = {
            span for span in find_code_spans(read_page(page)) if re.match(r"(GET|POST|PATCH|PUT|DELETE) /v1/", span)
        }
        shown = {re.sub(r"\{.*?\}", "…", span.partition("?")[0]) for span in named}
        assert shown <= routes, page


def test_every_error_code_listed_with_status() -> None:
    rows = {row[1].strip("`"): row for row in read_table_rows(read_sections(ROUTES)["Errors"]) if row[0].isdecimal()}
    assert set(rows) == set(errors.TITLES) == set(openapi.PROBLEMS)
    assert all(title and meaning for _, _, title, meaning in rows.values())
    assert {code: str(status) for code, status in errors.STATUS.items()} == {code: row[0] for code, row in rows.items()}
    raised = {cls.code for cls in vars(domain).values() if inspect.isclass(cls) and hasattr(cls, "code")}
    assert raised <= set(rows)


def test_every_failure_reason_is_listed() -> None:
    engine = [file.read_text() for file in list_modules("swarmkeep") if {"models", "runs"} & set(file.parts)]
    found = {code for text in engine for code in re.findall(r'RunError\(\s*code="(\w+)"', text)}
    found |= {
        code for text in engine for code in re.findall(r'"((?:provider|context|content)_\w+)", (?:True|False)', text)
    }
    found |= {code for text in engine for code in re.findall(r'\bcode(?:: ClassVar\[str\])? = "(\w+)"', text)}
    found |= {code for text in engine for code in re.findall(r'\("((?:provider|context|content)_\w+)", ', text)}
    assert len(found) > 15
    assert_explained(read_sections(ROUTES)["Why a run fails"], found)


def test_documented_sessions_and_runs_are_accurate() -> None:
    for title, struct in (("Sessions", SessionView), ("Runs", RunView)):
        (example,) = re.findall(r"```json\n(.*?)```", read_sections(HTTP)[title], flags=re.DOTALL)
        shown = msgspec.convert(json.loads(example), struct)
        absent = [name for name in list_encoded_names(struct) if getattr(shown, name) is msgspec.UNSET]
        assert (*json.loads(example), *absent) == list_encoded_names(struct)


def test_every_status_and_stop_reason_explained() -> None:
    run = find_code_spans(read_sections(CONCEPTS)["Run"])
    assert {*get_args(RunStatus), *get_args(StopReason)} <= run
    assert set(get_args(SessionStatus)) <= find_code_spans(read_sections(CONCEPTS)["Session"])
    assert {*get_args(RunStatus), *get_args(StopReason)} <= find_code_spans(read_sections(ROUTES)["RunView"])


def test_every_check_problem_is_listed() -> None:
    rows = {row[0].strip("`"): row[1] for row in read_table_rows(read_sections(ROUTES)["Problems of a log"])}
    assert {code: rows.get(code) for code in CODES} == dict(CODES)


# Settings, commands, Python.


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_listed_with_default(field: str) -> None:
    is_ours = Settings.model_fields[field].validation_alias is None
    name = f"SWARMKEEP_{field.upper()}" if is_ours else field.upper()
    rows = {row[0].strip("`"): row[1:] for row in read_table_rows(read_page(SETTINGS)) if len(row) == 3}
    shown, meaning = rows[name]
    assert meaning
    default = Settings.model_fields[field].default
    if isinstance(default, float):
        assert float(shown.strip("`")) == default
    elif default is None or default == ():
        assert shown == ("not set" if default is None else "none")
    else:
        value = ",".join(default) if isinstance(default, tuple) else str(default)
        assert shown.strip("`") == (value.lower() if isinstance(default, bool) else value)


def test_every_metric_is_explained() -> None:
    metrics = dict(reference.list_metrics())
    assert {name for name, text in metrics.items() if not text} == set()
    written = set(re.findall(r"swarmkeep_[a-z_]+", read_page(RUNNING)))
    suffixes = ("", "_bucket", "_count", "_sum")
    assert {name for name in written if not any(name.removesuffix(suffix) in metrics for suffix in suffixes)} == set()


def test_every_environment_variable_documented() -> None:
    source = "".join(file.read_text() for name in ("swarmkeep", "swarmkeep_client") for file in list_modules(name))
    read = set(re.findall(r"\b(?:SWARMKEEP|OPENAI)_[A-Z_]*[A-Z]\b", source))
    assert read <= set(re.findall(r"\b(?:SWARMKEEP|OPENAI)_[A-Z_]*[A-Z]\b", "".join(map(read_page, PAGES))))


def test_the_limits_are_as_they_are() -> None:
    rows = {row[0]: row[1] for row in read_table_rows(read_sections(RUNNING)["Limits"])}
    recoveries = Limits().max_recoveries
    assert rows["take-overs of a run without a model reply between them"].startswith(f"{recoveries},")


@pytest.mark.parametrize("path", dict(reference.list_commands()))
def test_every_command_is_there_with_its_options(path: str) -> None:
    command = dict(reference.list_commands())[path]
    assert command.help
    rows = read_table_rows(read_sections(COMMANDS)[f"`{path}`"])
    explained = {name for row in rows if row[1] for name in find_code_spans(row[0])}
    assert {
        name for option in command.params if option.name != "help" for name in option.opts if name[0] == "-"
    } <= explained


def test_every_command_in_a_page_is_there() -> None:
    known = dict(reference.list_commands())
    for page in PAGES:
        for span in find_code_spans(read_page(page)):
            if words := re.match(r"swarmkeep ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", span):
                assert {f"swarmkeep {words[1]}", f"swarmkeep {words[1].split()[0]}"} & {
                    *known,
                    *(" ".join(path.split()[:2]) for path in known),
                }, f"{page}: {span}"


def test_every_public_name_is_documented() -> None:
    text = read_page(AGENTS)
    assert [name for name in swarmkeep.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert set(Agent.model_fields) <= find_code_spans(read_sections(AGENTS)["`Agent`"])


def test_every_client_name_documented() -> None:
    public = {name: getattr(swarmkeep_client, name) for name in swarmkeep_client.__all__}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    refusals = {name for name, cls in classes.items() if issubclass(cls, swarmkeep_client.ApiError)} - {"ApiError"}
    assert {name for name in refusals if classes[name].code not in openapi.PROBLEMS} == set()
    assert {name for name, cls in classes.items() if not cls.__doc__} <= refusals
    client = swarmkeep_client.Client()
    parts = [swarmkeep_client.Session, swarmkeep_client.Client, *map(type, vars(client).values())]
    methods = {
        f"{cls.__name__}.{name}": value
        for cls in parts
        if cls in classes.values()
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert len(methods) > 60
    assert {name for name, method in methods.items() if not method.__doc__} == set()
    text = find_code_spans(read_page(CLIENT))
    named = {span.rpartition(".")[2] for span in text}
    assert {name for name in methods if name.rpartition(".")[2] not in named | {"close()", "close"}} == set()
    assert set(swarmkeep_client.RunOptions.__annotations__) <= text | {"idempotency_key"}


# The pages themselves.


def test_every_page_reachable_from_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", read_page(README)))
    assert {str(page.relative_to(ROOT)) for page in DOCS.glob("*.md")} == linked


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
