"""Routes of functions that take the request and return the response."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from server.api.entry.headers import IndexedRequest


class RequestRoute(APIRoute):
    """A route whose function takes the request and returns the response. Its path and method describe it to FastAPI.

    FastAPI would look for parameters, dependencies and files in each request, which takes a tenth of the time of a
    small request in this process.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # answers 405
            return
        response = await self.endpoint(IndexedRequest(scope, receive, send))
        await response(scope, receive, send)
