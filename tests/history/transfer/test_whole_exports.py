"""A large file is read one conversation at a time, and an import of it can be taken up again."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import clean_environment

# With all of it in memory, Python would need twice its 120 MB. They are few and long: each takes an append.
COUNT = 4_000
_MEMORY_BYTES = 256 * 1024 * 1024


def write_chats(path: Path, count: int) -> None:
    """An export of ChatGPT: one list in one line, as it comes."""
    author = {"user": {"role": "user"}, "assistant": {"role": "assistant"}}
    with path.open("w") as file:
        for number in range(count):
            nodes: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": ["m1"]}}
            for name, parent, role in (("m1", "root", "user"), ("m2", "m1", "assistant")):
                content = {"content_type": "text", "parts": [f"Message {number} of {role}. " + "x" * 15_000]}
                message = {"id": name, "author": author[role], "create_time": 1756000000.5, "content": content,
                           "metadata": {}, "recipient": "all"}  # fmt: skip
                nodes[name] = {"id": name, "parent": parent, "children": [], "message": message}
            chat = {"title": f"Talk {number}", "mapping": nodes, "current_node": "m2", "conversation_id": f"c-{number}"}
            file.write(("," if number else "[") + json.dumps(chat))
        file.write("]")


def run_import(folder: Path, file: str) -> dict[str, Any]:
    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))

    command = [sys.executable, "-m", "swarmkeep", "import", file, "--agent", "Ann", "--json"]
    done = subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, preexec_fn=limit_memory, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.long
def test_whole_export_is_imported_in_bounded_memory(tmp_path: Path) -> None:
    write_chats(tmp_path / "begun.json", COUNT // 10)
    write_chats(tmp_path / "conversations.json", COUNT)
    # As a whole, and as Python's values, it is more than the process may have.
    assert (tmp_path / "conversations.json").stat().st_size > _MEMORY_BYTES // 4
    assert run_import(tmp_path, "begun.json")["imported"] == COUNT // 10
    report = run_import(tmp_path, "conversations.json")
    assert (report["imported"], report["present"]) == (COUNT - COUNT // 10, COUNT // 10)
    assert (report["format"], len(report["sessions"])) == ("chatgpt", 1000)
