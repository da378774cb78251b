"""Engines on each kind of database, as the engine's own tests have them."""

from __future__ import annotations

from tests.runs.conftest import async_client, cluster

__all__ = ["async_client", "cluster"]
