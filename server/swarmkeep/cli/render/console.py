"""Standard output as rich writes to it."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from swarmkeep.cli.terminal import has_colours


def make_console(**options: Any) -> Console:
    """Colours where they may be used; nothing that a text holds is markup."""
    options["color_system"] = "auto" if has_colours(sys.stdout) else None
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, **options)
