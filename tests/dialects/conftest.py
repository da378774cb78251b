"""One fake server for all dialects, and a file for what the functions did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dialects.conversation import Script
from tests.support.dialects import DialectModel
from tests.support.scripted import ScriptedModel


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def fake(script: Script) -> DialectModel:
    return DialectModel(script)


@pytest.fixture
def model(fake: DialectModel) -> Iterator[ScriptedModel]:
    """The server, which fails the test if it had to refuse anything."""
    with ScriptedModel(default=fake, strict=False) as scripted:
        yield scripted
    assert fake.refused == []


@pytest.fixture
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "effects.jsonl"
    monkeypatch.setenv("DIALECT_EFFECTS", str(path))
    return path
