"""The trial that all of these tests look at; it takes minutes, so there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.llm.trial import Trial, run_trial
from tests.support import llm

_SUMMARY = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[llm.Recorder]:
    """The small model, behind a recorder of what it is sent."""
    assert llm.is_installed(), "the small model is not installed: run these tests with `make test-llm`"
    with llm.SmallModel(tmp_path_factory.mktemp("model")) as model, llm.Recorder(model.port) as recorder:
        yield recorder


@pytest.fixture(scope="session")
def trial(recorder: llm.Recorder, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Trial:
    result = run_trial(recorder, tmp_path_factory.mktemp("servers"))
    pytestconfig.stash[_SUMMARY] = result.summary()
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _SUMMARY in config.stash:
        terminalreporter.write_line(f"the small model: {config.stash[_SUMMARY]}")
