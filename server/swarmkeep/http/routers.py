"""Routers that belong to one application."""

from __future__ import annotations

from typing import Any, Self

from litestar import Router


class OwnRouter(Router):
    """A router that is made for the application it is registered with, so that it need not be copied.

    Litestar copies each router with all below it whenever one is registered, for those that several applications
    share. For nested ones that was a third of the time that it takes to make the application.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self
