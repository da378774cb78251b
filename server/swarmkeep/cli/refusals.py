"""Which errors are shown as one line instead of a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmkeep.cli.terminal import NO_SPACE, Refused, describe_os_error

if TYPE_CHECKING:
    from swarmkeep_client import SwarmkeepError

# By the module that defines them: what has not been imported has not been raised.
_REFUSED = {
    "swarmkeep.domain.errors": ("DomainError",),
    "swarmkeep.store.ports": ("StoreUnavailable", "SchemaBehind"),
    "swarmkeep.engine.agents.registry": ("AgentsError",),
    "swarmkeep.app": ("ServeError",),
    "swarmkeep.store.ports.errors": ("NoSuchRevision",),
}
_KEY_HINT = "; give a key of this server in SWARMKEEP_API_KEY or with --api-key"
_WRONG_USE = {
    "swarmkeep.store.urls": ("BadDatabaseUrl",),
    "swarmkeep.evals.cases": ("InvalidCases",),
    "swarmkeep.serving.server": ("WorkersRefused",),
}


@dataclass(frozen=True)
class Refusal:
    sentence: str
    exit_code: int = 1


def find_refusal(error: Exception) -> Refusal | None:
    """What the command says, if the error is an answer; None for one that is a mistake of ours."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        # Task groups wrap what one of their tasks raised.
        error = error.exceptions[0]
    if isinstance(error, Refused) or _is_one_of(error, _REFUSED):
        return Refusal(_join_lines(str(error)))
    if _is_one_of(error, _WRONG_USE):
        return Refusal(_join_lines(str(error)), exit_code=2)
    # Writing to a stream names no file.
    if isinstance(error, OSError) and error.errno in NO_SPACE and error.filename is None:
        return Refusal(f"cannot write the output: {describe_os_error(error)}")
    if isinstance(error, FileNotFoundError) and not _is_in_a_folder():
        return Refusal("the current folder does not exist any more; change to another one")
    client = sys.modules.get("swarmkeep_client")
    if client is not None and isinstance(error, client.SwarmkeepError):
        return Refusal(_join_lines(error.detail or str(error)) + _make_hint(error))
    return None


def _is_in_a_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _make_hint(error: SwarmkeepError) -> str:
    """What to do about an answer of a server; of one that says no more, where its log does."""
    if error.code == "unauthenticated":
        return _KEY_HINT
    return f" (request {error.request_id})" if error.code == "internal_error" and error.request_id else ""


def _is_one_of(error: Exception, names: Mapping[str, tuple[str, ...]]) -> bool:
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, classes in names.items()
        if module in sys.modules
        for name in classes
    )


def _join_lines(text: str) -> str:
    return " ".join(text.split())
