"""`swarmkeep blob`, on a database and on a server."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from tests.cli.command_line import CommandLine
from tests.cli.conftest import RecordedSession
from tests.support.pictures import hash_content, make_inline_picture, make_message, make_png

PICTURE = make_png(3000)
NAME = hash_content(PICTURE)


def test_picture_extracted_from_session(
    cli: CommandLine, recorded: RecordedSession, place: list[str], tmp_path: Path
) -> None:
    history = json.dumps([make_message(make_inline_picture(PICTURE))])
    (tmp_path / "chat.json").write_text(history)
    assert cli("import", "chat.json", "--from", "chat", "--as", "pictures", "--agent", "Sales Agent", *place).code == 0
    assert cli("blob", "pictures", NAME, "-o", "cat.png", *place).code == 0
    file = tmp_path / "cat.png"
    assert file.read_bytes() == PICTURE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"[picture, image/png, 3 kB, sha256 {NAME[:12]}…]" in cli("sessions", "show", "pictures", *place).out
    assert f"[picture, image/png, 3 kB, sha256 {NAME[:12]}…]" in cli("events", "pictures", *place).out
    for wrong, code in (("0" * 64, 1), ("../../etc/passwd", 2), (NAME.upper(), 2), ("", 2)):
        refused = cli("blob", "pictures", wrong, "-o", "none", *place)
        assert refused.code == code
        assert not (tmp_path / "none").exists()
    assert "no session" in cli("blob", "absent", NAME, "-o", "none", *place).err
    assert cli("import", "chat.json", "--from", "chat", "--as", "pictures", "--agent", "Sales Agent", *place).code == 0
    assert cli("verify", "pictures", *place).code == 0
    cli("sessions", "delete", "pictures", *place)
