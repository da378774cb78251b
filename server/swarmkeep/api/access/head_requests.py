"""Around the application: HEAD is answered for pages as GET is, without the body. The API has no such requests."""

from __future__ import annotations

from typing import Any, cast

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_API = ("/v1/", "/openai/")


class HeadRequests:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope.get("method") != "HEAD" or scope["path"].startswith(_API):
            return await self._app(scope, receive, send)

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = cast(Message, {**cast(dict[str, Any], message), "body": b""})
            await send(message)

        return await self._app(cast(Scope, {**scope, "method": "GET"}), receive, send_without_body)
