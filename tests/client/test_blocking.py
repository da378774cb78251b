"""The blocking client is made from the asyncio one."""

from __future__ import annotations

import runpy
from pathlib import Path

import swarmkeep_client

MAKER = Path(__file__).parents[2] / "clients" / "make_sync.py"


def test_blocking_client_equals_made_one(tmp_path: Path) -> None:
    made = runpy.run_path(str(MAKER))["make_sync"](tmp_path)
    home = Path(swarmkeep_client.__file__).parent
    assert len(made) == 3
    assert [file.name for file in made if file.read_bytes() != (home / file.name).read_bytes()] == [], (
        "run `make client`"
    )
