"""Where a command's sessions are, as its options and the environment say."""

from __future__ import annotations

import os
from dataclasses import dataclass

import typer


@dataclass(frozen=True)
class SourceOptions:
    """What the options of a command say about where its sessions are."""

    url: str | None = None
    database_url: str | None = None
    tenant: str | None = None
    api_key: str | None = None

    @property
    def server_url(self) -> str | None:
        """The server to ask, if it is a server: the option counts, then the environment."""
        if self.url and self.database_url:
            raise typer.BadParameter("give either --url or --database-url, not both", param_hint="'--url'")
        if self.api_key and self.database_url:
            raise typer.BadParameter(
                "--api-key is for a server, not a database; leave it out, or give --url", param_hint="'--api-key'"
            )
        if self.database_url:
            return None
        url = self.url or os.environ.get("SWARMKEEP_URL") or None
        if self.api_key and not url:
            raise typer.BadParameter("--api-key needs a server: add --url", param_hint="'--api-key'")
        if url and self.tenant:
            raise typer.BadParameter(
                "--tenant is for a database; on a server the API key determines the tenant", param_hint="'--tenant'"
            )
        return url
