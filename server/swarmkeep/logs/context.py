"""What every log line of a request or a run says: ids that its caller, wherever it is, does not have to hand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("swarmkeep_log_fields", default={})  # noqa: B039, never changed


def current_fields() -> Mapping[str, str | int]:
    """The fields of log lines from here, in the order in which they were set."""
    return _fields.get()


def bind_fields(**fields: str | int | None) -> None:
    """Set fields for the rest of this task, and for what it starts; None takes one away."""
    merged = {**_fields.get(), **fields}
    _fields.set({name: value for name, value in merged.items() if value is not None})


@contextmanager
def log_fields(**fields: str | int | None) -> Iterator[None]:
    """Set more fields meanwhile."""
    before = _fields.get()
    bind_fields(**fields)
    try:
        yield
    finally:
        _fields.set(before)


@contextmanager
def only_log_fields(**fields: str | int | None) -> Iterator[None]:
    """Set these fields alone meanwhile: a request that a kept connection begins knows nothing of the one before."""
    before = _fields.get()
    _fields.set({})
    bind_fields(**fields)
    try:
        yield
    finally:
        _fields.set(before)
