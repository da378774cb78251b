"""Asks for a key where no route does it: for paths that are not there, and methods that a path does not have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send

# Gives the answer to whoever may not come in; None lets them in.
Refuse = Callable[[Scope], Awaitable[Application | None]]

_MISSING = (404, 405)


class Unrouted:
    """Below `prefixes` nobody is told what is there and what is not before `refuse` has let them in."""

    def __init__(self, within: Application, prefixes: tuple[str, ...], refuse: Refuse) -> None:
        self._within = within
        self._prefixes = prefixes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(self._prefixes):
            await self._within(scope, receive, send)
            return
        refusal: Application | None = None

        async def pass_on(message: Message) -> None:
            nonlocal refusal
            # Whoever came to a route was asked there, which the scope tells.
            if message["type"] == "http.response.start" and message["status"] in _MISSING and "auth" not in scope:
                refusal = await self._refuse(scope)
            if refusal is None:
                await send(message)

        await self._within(scope, receive, pass_on)
        if refusal is not None:
            await refusal(scope, receive, send)
