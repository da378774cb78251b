"""Cases as data: what is said, and what is expected of the agents. Read from YAML or JSON."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET

from swarmkeep.agent.values import ModelSettingsError, check_model_settings
from swarmkeep.evals.running import Observation, observe
from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import RunNotFound
from swarmkeep.events.facts import ApprovalDecided, GuardrailTripped, RecordedEvent, is_redacted
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import Entry, list_shown
from swarmkeep.events.state import Run, State
from swarmkeep.events.views import collect_runs
from swarmkeep.events.wording import join_content
from swarmkeep.history.divergences import DIVERGENCE_KINDS

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import Node


# YAML and JSON files as plain values, with the line of each value.


class UnreadableFile(ValueError):
    """The file is not there, or no YAML or JSON; the sentence names file and line."""


def _make_reader() -> YAML:
    """A reader of plain values only, as JSON has them: dates stay text, and in YAML 1.2 so do times and words such as
    yes, no, on and off. No tag makes anything else."""
    from ruamel.yaml import YAML  # loaded with the first file of cases, which few processes read
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        pass

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = Constructor
    # They are refused with the lines of both; see `_iterate_lines`.
    reader.allow_duplicate_keys = True
    return reader


def read_value(file: Path) -> tuple[Any, str]:
    """The file's value, and the text in which `find_lines` finds its parts. Raises UnreadableFile."""
    with _explain_errors(file):
        text = file.read_text(encoding="utf-8")
        return json.loads(text) if file.suffix == ".json" else _make_reader().load(text), text


def find_lines(file: Path, text: str) -> dict[str, int]:
    """The line of each value, by pointer (`/cases/0/name`). Raises UnreadableFile, also for a key given twice."""
    with _explain_errors(file):
        return dict(_iterate_lines(_make_reader().compose(text), ""))


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    from ruamel.yaml.error import YAMLError

    try:
        yield
    except OSError as error:
        raise UnreadableFile(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{file}: it is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"{file}, line {error.lineno}: it is not JSON: {error.msg}") from None
    except _KeyTwice as error:
        raise UnreadableFile(f"{file}, {error}") from None
    except YAMLError as error:
        raise UnreadableFile(_describe_yaml_error(file, error)) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableFile(f"{file}: it cannot be read: {error}") from None


def _describe_yaml_error(file: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{file}{where}: it is not YAML: {getattr(error, 'problem', None) or error}"


class _KeyTwice(Exception):
    """A mapping has a key twice: one of the values would be dropped without a word."""


def _iterate_lines(node: Node | None, pointer: str) -> Iterator[tuple[str, int]]:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    if node is None:
        return
    yield pointer, node.start_mark.line + 1
    if isinstance(node, MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = (str(key.tag), str(key.value))
            if name in lines:
                place = f"{pointer}/{key.value}"
                raise _KeyTwice(f"line {line}, {place}: the key is there twice; the first is in line {lines[name]}")
            lines[name] = line
            yield from _iterate_lines(value, f"{pointer}/{key.value}")
            yield f"{pointer}/{key.value}", line
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            yield from _iterate_lines(value, f"{pointer}/{index}")


SUFFIXES = (".yaml", ".yml", ".json")
_FOREIGN_FOLDERS = {"node_modules", "__pycache__", "venv"}
_POINTER = re.compile(r"^(?P<what>.*?) - at `(?:key` in `)?\$(?P<path>.*)`$", re.DOTALL)


class InvalidCases(ValueError):
    """A file of cases is wrong; the sentence says where, by file and line."""


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The expected outcome of a conversation, or of one message in it; all that is given must hold.

    `function`: calls that are made, in this order, others between them allowed. `arguments`: what the last of them is
    called with, at least. `context`: what the context variables hold in the end, at least. `output`: what the answer
    holds, at least, where the agent has an output type. `text`: what is said, in any case of letters; between slashes
    it is a regular expression. `guardrail`: those that refuse something, by name, in this order; a run that one ends is
    wrong where none is expected. `judge`: a sentence that a model says is true of it.
    """

    function: str | tuple[str, ...] = ()
    no_function: str | tuple[str, ...] = ()
    arguments: Json | None = None
    agent: str | None = None
    context: Json | None = None
    output: Json | None = None
    text: str | tuple[str, ...] = ()
    no_text: str | tuple[str, ...] = ()
    guardrail: str | tuple[str, ...] = ()
    no_guardrail: str | tuple[str, ...] = ()
    judge: str | None = None


class Say(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of the user, and what is expected of the answer to it."""

    say: str
    expect: Expect = Expect()


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case: a `conversation` to hold, or a session that was `recorded`, by its id.

    `history`: Chat Completions messages that went before. `approve`: what a person says to calls that need it.
    `model_settings`: parameters of the model requests, over the agents' own. `ignore`: kinds of differences that a
    recorded session may show.
    """

    name: str
    conversation: tuple[str | Say, ...] = ()
    recorded: str | None = None
    agent: str | None = None
    context_variables: Json = {}
    history: tuple[Json, ...] = ()
    approve: bool = True
    max_turns: int = 10
    model_settings: Json = {}
    needs: Literal["model"] | None = None
    ignore: tuple[str, ...] = ()
    expect: Expect = Expect()

    @property
    def messages(self) -> list[Say]:
        return [Say(say=item) if isinstance(item, str) else item for item in self.conversation]

    @property
    def expectations(self) -> list[Expect]:
        return [self.expect, *(message.expect for message in self.messages)]

    @property
    def is_judged(self) -> bool:
        return any(expect.judge for expect in self.expectations)


class CaseFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of cases. `agents`: what `--agents` takes, unless that is given; `needs` counts for all its cases."""

    cases: tuple[Case, ...]
    agents: str | tuple[str, ...] = ()
    needs: Literal["model"] | None = None
    path: str = ""


def load_cases(paths: Sequence[Path], *, on_skip: Callable[[Path], None] = lambda file: None) -> list[CaseFile]:
    """Every file of cases among these files, and in these folders. Raises InvalidCases.

    In a folder files that hold no `cases` are something else, as any project has: `on_skip` is told of each. What is
    hidden there is not looked at.
    """
    files: list[CaseFile] = []
    for path in paths:
        is_folder = path.is_dir()
        for file in _find_files(path) if is_folder else [path]:
            found = _load_file(file, is_found=is_folder)
            if found is None:
                on_skip(file)
            else:
                files.append(found)
    if not any(file.cases for file in files):
        raise InvalidCases(f"there are no cases in {', '.join(map(str, paths))}")
    return files


def _find_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _FOREIGN_FOLDERS]
        found += [Path(place, name) for name in names if not name.startswith(".") and name.endswith(SUFFIXES)]
    if not found:
        raise InvalidCases(f"{folder}: no file in this folder ends in {', '.join(SUFFIXES)}")
    return sorted(file for file in found if file.is_file())


def _load_file(file: Path, *, is_found: bool) -> CaseFile | None:
    """None for a file that was only found, and is no file of cases."""
    try:
        value, text = read_value(file)
        if is_found and not (isinstance(value, dict) and "cases" in value):
            return None
        lines = find_lines(file, text)
    except UnreadableFile as error:
        raise InvalidCases(str(error)) from None
    try:
        found = msgspec.convert({**value, "path": str(file)} if isinstance(value, dict) else value, CaseFile)
    except msgspec.ValidationError as error:
        what, pointer = _split_pointer(str(error))
        raise InvalidCases(f"{_format_place(file, lines, pointer)}: {what}") from None
    for pointer, problem in _find_problems(found):
        raise InvalidCases(f"{_format_place(file, lines, pointer)}: {problem}")
    return found


def _split_pointer(message: str) -> tuple[str, str]:
    found = _POINTER.match(message)
    if found is None:
        return message, ""
    return found["what"], re.sub(r"\[(\d+|\.\.\.)\]", r"/\1", found["path"]).replace(".", "/").replace("///", "/...")


def _format_place(file: Path, lines: dict[str, int], pointer: str) -> str:
    """The line of a value, or of the nearest that holds it."""
    while pointer and pointer not in lines:
        pointer = pointer.rpartition("/")[0]
    return f"{file}, line {lines.get(pointer, 1)}" + (f", {pointer}" if pointer else "")


def _find_problems(file: CaseFile) -> Iterator[tuple[str, str]]:
    """Find problems that a type cannot express: pointers and sentences."""
    names: set[str] = set()
    for index, case in enumerate(file.cases):
        here = f"/cases/{index}"
        if case.name in names:
            yield f"{here}/name", f"another case has the name {case.name!r}"
        names.add(case.name)
        if bool(case.conversation) == bool(case.recorded):
            yield here, "give either a conversation or the id of a recorded session"
        if case.recorded and (case.history or case.agent or case.context_variables):
            yield here, "leave agent, context variables and history out: a recorded session has its own"
        if not case.recorded and all(expect == Expect() for expect in case.expectations):
            yield here, "the case expects nothing"
        if case.max_turns < 1:
            yield f"{here}/max_turns", "must be at least 1"
        for kind in case.ignore:
            if kind not in DIVERGENCE_KINDS:
                yield (
                    f"{here}/ignore",
                    f"unknown kind of difference {kind!r}; known kinds: {', '.join(DIVERGENCE_KINDS)}",
                )
        yield from _find_bad_settings(here, case)
        yield from _find_bad_expectations(here, case)


def _find_bad_settings(here: str, case: Case) -> Iterator[tuple[str, str]]:
    if case.recorded and case.model_settings:
        yield f"{here}/model_settings", "no model is asked for a recorded session"
    try:
        check_model_settings(case.model_settings)
    except ModelSettingsError as error:
        yield f"{here}/model_settings/{error.name}".rstrip("/"), str(error)


def _find_bad_expectations(here: str, case: Case) -> Iterator[tuple[str, str]]:
    for number, expect in enumerate(case.expectations):
        place = f"{here}/expect" if number == 0 else f"{here}/conversation/{number - 1}/expect"
        if expect.arguments is not None and not expect.function:
            yield f"{place}/arguments", "say which function these arguments belong to"
        for key, texts in (("text", expect.text), ("no_text", expect.no_text)):
            for text in as_tuple(texts):
                try:
                    compile_pattern(text)
                except re.error as error:
                    yield f"{place}/{key}", f"{text!r} is not a valid regular expression: {error}"


def as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern that is looked for in a text: a regular expression between slashes, else the words as they stand."""
    regular = len(text) > 2 and text.startswith("/") and text.endswith("/")
    return re.compile(text[1:-1] if regular else re.escape(text), re.IGNORECASE)


# Propose a case from a recorded run: what was said before it and in it, and expectations by what was done.

# What Chat Completions has; the rest of a recorded message is the server's.
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_MAX_TURNS = 10
_NAME_CHARACTERS = 60
# YAML is written at half a megabyte a second, beside whatever else the process does.
MAX_CASE_BYTES = 2_000_000


class NoCase(ValueError):
    """A run that no case can be made of; the sentence says why."""


def propose_case(events: Sequence[RecordedEvent], run_id: str | None = None, name: str | None = None) -> Json:
    """The case of a run, by default the session's last one, in the words of a file of cases.

    Raises RunNotFound, and NoCase.
    """
    run = _find_run(fold(events), run_id)
    before = fold(event for event in events if event.seq < run.first_seq)
    mine = [event for event in events if run.first_seq <= event.seq <= run.last_seq]
    after = fold(mine, before)
    asked, rest = _split_input(run, after.messages[len(before.messages) :])
    if any(is_redacted(event) for event in mine if event.seq == asked.seq):
        raise NoCase(f"what the user said in run {run.id} was redacted; choose another run")
    text = join_content(asked.message.get("content"))
    if not text or asked.message.get("content") != text:
        raise NoCase(f"the user's message of run {run.id} is not text alone, and a case holds nothing else")
    history = [_plain(entry.message) for entry in (*list_shown(before.messages), *rest)]
    case: Json = {"name": name or _shorten(text), "agent": before.agent}
    case |= {"context_variables": dict(before.context_variables)} if before.context_variables else {}
    case |= {"history": history} if history else {}
    case["conversation"] = [text]
    case |= _list_options(run, mine)
    case["expect"] = _propose_expectations(before, after, mine)
    found: Json = _replace_surrogates(case)
    if len(encode(found)) > MAX_CASE_BYTES:
        raise NoCase(f"the case of run {run.id} would have more than {MAX_CASE_BYTES} bytes; choose an earlier run")
    return found


def _find_run(state: State, run_id: str | None) -> Run:
    begun = [run for run in collect_runs(state) if run.status != "queued"]
    if run_id is None:
        if not begun:
            raise NoCase("the session has no run that has begun")
        return begun[-1]
    found = [run for run in begun if run.id == run_id]
    if not found:
        raise RunNotFound(run_id)
    return found[-1]


def _split_input(run: Run, entries: Iterable[Entry]) -> tuple[Entry, list[Entry]]:
    """The user's last message of the run's input, and what the caller gave before it."""
    given: list[Entry] = []
    for entry in entries:
        if entry.run_id != run.id or entry.removed:
            continue
        if entry.completion is not None or entry.tool is not None or entry.person is not None:
            break
        given.append(entry)
    if not given or given[-1].role != "user":
        raise NoCase(f"run {run.id} does not begin with a message of the user")
    return given[-1], given[:-1]


def _plain(message: Json) -> Json:
    """A message as a model is sent it, of its content only the text."""
    kept = {key: message[key] for key in _KEYS if key in message}
    if isinstance(kept.get("content"), list):
        kept["content"] = join_content(kept["content"])
    return kept


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _NAME_CHARACTERS else line[: _NAME_CHARACTERS - 1] + "…"


def _list_options(run: Run, mine: Iterable[RecordedEvent]) -> Json:
    decisions = {event.fact.decision for event in mine if isinstance(event.fact, ApprovalDecided)}
    if decisions >= {"approve", "deny"}:
        raise NoCase(f"of run {run.id} some calls were approved and others denied, and a case decides all alike")
    options: Json = {"approve": False} if "deny" in decisions else {}
    if run.turns > _MAX_TURNS:
        options["max_turns"] = run.turns
    settings = run.options.model_settings
    return options if settings is UNSET or not settings else {**options, "model_settings": settings}


def _propose_expectations(before: State, after: State, mine: Iterable[RecordedEvent]) -> Json:
    guardrails = tuple(event.fact.name for event in mine if isinstance(event.fact, GuardrailTripped))
    seen = observe(after, first=len(before.messages), guardrails=guardrails)
    expect: Json = _expect_calls(seen)
    expect["agent"] = seen.agent
    had, has = before.context_variables, seen.context_variables
    if changed := {key: value for key, value in has.items() if key not in had or had[key] != value}:
        expect["context"] = changed
    if isinstance(seen.output, dict) and seen.output:
        expect["output"] = seen.output
    if guardrails:
        expect["guardrail"] = list(guardrails)
    return expect


def _expect_calls(seen: Observation) -> Json:
    if not seen.calls:
        return {}
    names, (_, arguments) = [name for name, _ in seen.calls], seen.calls[-1]
    expect: Json = {"function": names}
    return {**expect, "arguments": arguments} if isinstance(arguments, dict) and arguments else expect


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which no file holds."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def make_case_file(events: Sequence[RecordedEvent], run_id: str | None = None, name: str | None = None) -> bytes:
    """A file with the case of a run, in YAML. Raises RunNotFound, and NoCase."""
    return write_case(propose_case(events, run_id, name))


# Line breaks of YAML that JSON does not have: unless they are escaped, they are read as spaces.
_BREAKS = "\x85\u2028\u2029"


def _represent_text(representer: Any, text: str) -> Any:
    style = '"' if any(sign in text for sign in _BREAKS) else None
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def write_case(case: Json) -> bytes:
    """A file with this case, in YAML."""
    from ruamel.yaml import YAML

    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.allow_unicode = True
    writer.width = 120
    # As it was put together: the name first, the expectations last.
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.representer.add_representer(str, _represent_text)
    text = io.StringIO()
    writer.dump({"cases": [case]}, text)
    return text.getvalue().encode()
