"""Who works without a server."""

from __future__ import annotations

import getpass


def name_operator() -> str:
    """The user of the operating system, for the record of what they do without a server."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # In a container a user may have a number only.
        return "cli"
