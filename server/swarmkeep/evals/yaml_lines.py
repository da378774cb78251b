"""YAML and JSON files as plain values, with the line of each value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import Node


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
