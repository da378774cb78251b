"""Answers HEAD as GET, without the body."""

from __future__ import annotations

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send
from swarmkeep.api.access.request_log import SEND_PART

# Where the framework writes which route it is: metrics and traces look there.
_ROUTE = "path_template"


class HeadRequests:
    """An ASGI application around another."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[_ROUTE] = get_scope.get(_ROUTE)
                await send(message)
                # The answer is over: to a stream that is as if its reader had left, so it ends, too.
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        get_scope = {name: value for name, value in scope.items() if name != SEND_PART} | {"method": "GET"}
        return await self._app(get_scope, receive, send_start)
