"""The demo at a terminal, and the picture that the README begins with: its end, light and dark.

`make screenshots` keeps it.
"""

from __future__ import annotations

import io
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from swarmkeep_client import Client, ConnectionFailed
from tests.cli.command_line import CommandLine
from tests.cli.pseudo_terminal import Terminal
from tests.support.source import ROOT

pytestmark = pytest.mark.long

COLUMNS, LINES = 110, 30
# Background, foreground, and the eight colours that the demo uses some of, plain and bright.
_DARK_COLOURS = [
    (110, 118, 129), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207),
    (177, 186, 196),
]  # fmt: skip
_LIGHT_COLOURS = [
    (36, 41, 47), (207, 34, 46), (17, 99, 41), (154, 103, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131),
    (110, 119, 129),
]  # fmt: skip
THEMES = {
    "dark": TerminalTheme((13, 17, 23), (230, 237, 243), _DARK_COLOURS),
    "light": TerminalTheme((255, 255, 255), (31, 35, 40), _LIGHT_COLOURS),
}
# As rich has it, but for the font, which it would fetch from somewhere.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>The end of swarmkeep demo</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, monospace; font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = os.environ.get("SWARMKEEP_SCREENSHOTS")
    return ROOT / kept if kept else tmp_path / "pictures"


def test_demo_stays_up_until_ctrl_c(cli: CommandLine, folder: Path) -> None:
    command = [sys.executable, "-m", "swarmkeep", "demo"]
    with Terminal(command, folder=cli.folder, env={"COLUMNS": str(COLUMNS)}) as terminal:
        shown, end = terminal.wait_for("✓ its tools"), terminal.wait_for("until Ctrl-C")
        (session_id,) = re.findall(r"timeline of session (\S+),", shown)
        url = end.split()[-3]
        terminal.wait_for(f"swarmkeep chat --url {url} --session {session_id}")
        talk = cli("chat", "--url", url, "--session", session_id, text="Please add a note to the ticket: hurry.\n")
        assert "add_note_to_ticket" in talk.out
        terminal.interrupt(until="stopping the server")
        assert terminal.wait() == 0
    with Client(url, max_retries=0) as client, pytest.raises(ConnectionFailed):
        client.health()
    assert [file for file in cli.folder.iterdir() if file != folder] == []
    take_pictures(shown + end.partition("\n")[0], folder)


def take_pictures(shown: str, folder: Path) -> None:
    lines = shown.replace("\r", "").splitlines()[-LINES:]
    folder.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        file = folder / f"demo-{name}.svg"
        file.write_text(draw(lines, theme), encoding="utf-8")
        picture = ET.parse(file).getroot()
        text = " ".join("".join(picture.itertext()).replace("\xa0", " ").split())
        assert "without a gap" in text
        assert "5 runs, all completed" in text
        assert "run.resumed" in text
        assert file.stat().st_size < 100_000
        # Nothing is fetched from anywhere.
        assert "http" not in file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")


def draw(lines: list[str], theme: TerminalTheme) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="standard")
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False, no_wrap=True, overflow="ellipsis")
    return console.export_svg(title="swarmkeep demo", theme=theme, code_format=FORMAT, unique_id="demo")


def test_the_readme_begins_with_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in THEMES:
        picture = f"docs/images/demo-{name}.svg"
        assert picture in readme.partition("\n## ")[0]
        ET.parse(ROOT / picture)
