"""People with API keys, who sit before windows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support import warm
from tests.support.processes import clean_environment
from tests.web.window import Api, Window


class Person:
    """Somebody with a key, and what they are called; by its id where it has no name."""

    def __init__(self, database_url: str, folder: Path, name: str, role: str) -> None:
        command = [sys.executable, "-m", "swarmkeep", "keys", "create", "--role", role, "--json"]
        if name:
            command += ["--name", name]
        made = warm.run([*command, "--database-url", database_url], folder=folder, env=clean_environment())
        made.check_returncode()
        found = json.loads(made.stdout)
        self.key, self.shown, self.label = found["key"], found["id"], found["id"]
        if name:
            self.shown, self.label = name, f"{self.label} ({name})"

    def ask(self, url: str) -> Api:
        api = Api(url)
        api.client.headers["authorization"] = f"Bearer {self.key}"
        return api

    def give_key(self, window: Window) -> None:
        """Enter it where the page asks for one."""
        dialog = window.page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill(self.key)
        dialog.get_by_role("button", name="Use this key").click()
