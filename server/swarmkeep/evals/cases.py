"""Cases as data: what is said, and what is expected of the agents. Read from YAML or JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from swarmkeep.agent.values import ModelSettingsError, check_model_settings
from swarmkeep.events.codec import Json
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
