"""YAML and JSON files as plain values, with the line of each value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


class UnreadableFile(ValueError):
    """The file is not there, or no YAML or JSON; the sentence names file and line."""


class _Loader(yaml.SafeLoader):
    """Plain values only, as JSON has them: dates stay text, and so do words such as yes, no, on and off. No tag makes
    anything else."""


_NOT_IN_JSON = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, found) for tag, found in resolvers if tag not in _NOT_IN_JSON]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))


def read_value(file: Path) -> tuple[Any, str]:
    """The file's value, and the text in which `find_lines` finds its parts. Raises UnreadableFile."""
    with _explain_errors(file):
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".json":
            return yaml.load(text, _Loader), text
        value = json.loads(text)
        # Tabs between values are JSON, but no YAML.
        return value, json.dumps(value, indent=2) if "\t" in text else text


def find_lines(file: Path, text: str) -> dict[str, int]:
    """The line of each value, by pointer (`/cases/0/name`). Raises UnreadableFile."""
    with _explain_errors(file):
        return dict(_iterate_lines(yaml.compose(text, _Loader), ""))


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableFile(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{file}: it is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UnreadableFile(f"{file}, line {error.lineno}: it is not JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        raise UnreadableFile(_describe_yaml_error(file, error)) from None
    except (RecursionError, ValueError) as error:
        raise UnreadableFile(f"{file}: it cannot be read: {error}") from None


def _describe_yaml_error(file: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}"
    return f"{file}{where}: it is not YAML: {getattr(error, 'problem', None) or error}"


def _iterate_lines(node: yaml.Node | None, pointer: str) -> Iterator[tuple[str, int]]:
    if node is None:
        return
    yield pointer, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _iterate_lines(value, f"{pointer}/{key.value}")
            yield f"{pointer}/{key.value}", key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _iterate_lines(value, f"{pointer}/{index}")
