"""What is told of a server's start and end: a line of its log, and an entry of the audit log: under which settings it
decided who may do what."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

from swarmkeep import __version__
from swarmkeep.settings import Settings
from swarmkeep.store.ports import DEFAULT_TENANT
from swarmkeep.store.ports.audit import AuditAction, AuditLog
from swarmkeep.store.urls import locate

log = logging.getLogger(__name__)

# How long the start may wait for a database that somebody else writes to, and the end for one that is gone.
_START_SECONDS = 5.0
_STOP_SECONDS = 2.0
# Settings that change who may do what, beside those for sizes and quotas, whose names begin alike. None is a secret.
_RECORDED = (
    "agents",
    "allowed_hosts",
    "approval_seconds",
    "cors_origins",
    "forwarded_allow_ips",
    "migrate",
    "offline",
    "rate_limit_per_minute",
    "run_seconds",
    "separate_approvers",
    "tool_seconds",
)


def describe_settings(settings: Settings) -> dict[str, Any]:
    """The effective settings that are recorded."""
    given = settings.model_dump(mode="json", include={name for name in type(settings).model_fields if _counts(name)})
    return {**given, "metrics_token": settings.metrics_token is not None}


def _counts(name: str) -> bool:
    return name in _RECORDED or name.startswith("max_")


class StartRecord:
    """One server's entries, or those of one of its workers, who is told by its number. They are in the log of the
    tenant `default`, whichever tenants there are.

    A server that cannot write them, as on a read-only database, works as it does without.
    """

    def __init__(self, audit_log: AuditLog, worker: int | None = None) -> None:
        self._audit_log = audit_log
        self._name = f"swarmkeep {__version__}" if worker is None else f"worker {worker} of swarmkeep {__version__}"
        self._server = {"server": f"srv_{uuid4().hex}", "version": __version__}
        if worker is not None:
            self._server["worker"] = str(worker)

    async def record_start(self, settings: Settings, address: str, *, needs_keys: bool) -> None:
        described = {"address": address, "api_keys": needs_keys, "settings": describe_settings(settings)}
        await self._record("server.started", described, _START_SECONDS)
        database = locate(settings.database_url).display
        log.info("%s is up, with agents from %s and the database %s", self._name, ", ".join(settings.agents), database)

    async def record_stop(self) -> None:
        await self._record("server.stopped", {}, _STOP_SECONDS)
        log.info("%s has stopped", self._name)

    async def _record(self, type: str, details: dict[str, Any], seconds: float) -> None:
        action = AuditAction(type=type, details={**self._server, **details})
        try:
            async with asyncio.timeout(seconds):
                await self._audit_log.record_action(DEFAULT_TENANT, action)
        except TimeoutError:
            log.warning("the audit log may lack an entry %s: the database did not answer in time", type)
        except Exception as error:
            log.warning("the audit log has no entry %s: %s", type, error)
