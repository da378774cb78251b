"""`swarmkeep retention`: what goes by itself, and when."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession, serve_copy


def test_what_goes_is_listed(cli: CommandLine, recorded: RecordedSession, tmp_path: Path) -> None:
    env = {"SWARMKEEP_RETENTION": "1d"}
    listed = cli("retention", *recorded.options, env=env)
    assert (listed.code, listed.out) == (0, "")
    assert "0 sessions go before" in listed.err
    listed = cli("retention", "--within", "2d", *recorded.options, env=env)
    assert f"{recorded.session_id}  goes " in listed.out
    assert "kept for 1d" in listed.out
    without = cli("retention", "--within", "9000w", *recorded.options)
    assert (without.out, "is not set: no session goes by itself" in without.err) == ("", True)
    assert "SWARMKEEP_RETENTION" in cli("retention", *recorded.options, env={"SWARMKEEP_RETENTION": "soon"}).err
    with serve_copy(recorded, tmp_path, env={"SWARMKEEP_RETENTION": "5w"}) as server:
        (found,) = (cli("retention", "--within", "6w", "--json", "--url", server.url).json,)
    assert (found["session_id"], found["keep"], found["held"]) == (recorded.session_id, "5w", False)
