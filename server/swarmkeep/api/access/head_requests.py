"""Around the application: HEAD is answered for pages as GET is, without the body. The API has no such requests."""

from __future__ import annotations

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send

_API = ("/v1/", "/openai/")


class HeadRequests:
    """An ASGI application around another."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(_API):
            return await self._app(scope, receive, send)

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        return await self._app({**scope, "method": "GET"}, receive, send_without_body)
