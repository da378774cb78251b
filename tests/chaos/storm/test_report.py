"""The report finds its place in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.storm.report import BEGIN, END, Report, Row
from tests.support.source import ROOT


@pytest.fixture
def finished() -> Report:
    report = Report(3.0)
    report.rows += [Row("sqlite", 1, kills=3, taken_over=[1.0, 3.5]), Row("postgres", 2, kills=4)]
    return report


def test_the_report_replaces_the_one_before(finished: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n")
    monkeypatch.setenv("CHAOS_REPORT", str(page))
    for _ in range(2):
        finished.write()
        text = page.read_text()
        assert "7 kills" in text
        assert "| all | 2 | 7 |" in text
        assert "old" not in text
        assert (text.startswith("# Before\n"), text.endswith(f"{END}\n\nAfter\n")) == (True, True)


def test_report_page_is_optional(finished: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.md"
    monkeypatch.setenv("CHAOS_REPORT", str(page))
    finished.write()
    assert "| sqlite | 1 | 3 |" in page.read_text()
    monkeypatch.setenv("CHAOS_REPORT", "")
    finished.write()


def test_documentation_has_report_place() -> None:
    page = (ROOT / "docs/running.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
