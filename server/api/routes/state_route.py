"""Routes that read or change stored data or loaded models, such as glossaries. They run no operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body import is_large, validate
from server.api.bodies.body_limits import body_limits
from server.api.bodies.form import read_fields
from server.api.bodies.json_answer import MEDIA_TYPE, PiecewiseResponse
from server.api.bodies.json_pieces import pieces
from server.api.fields.keys import authorize, read_unverified
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.state import State, of
from server.ipc.client.call import Call

INLINE_BYTES = 256 << 10
"""An answer of more bytes is sent in pieces."""


@dataclass(frozen=True)
class StateText:
    """An answer of text that may be large. parts: UTF-8, rendered one after the other."""

    parts: Iterator[bytes]
    media_type: str


@dataclass(frozen=True)
class LargeAnswer:
    """The beginning of a large answer, and its other parts, which are not rendered yet."""

    first: bytes
    parts: Iterator[bytes]
    media_type: str


@dataclass(frozen=True, kw_only=True)
class StateRoute:
    """A route that reads or changes the server's stored data or its loaded models.

    body: schema of the body, which is JSON or a form; None for a route without body.
    render: takes the state, the request and the body. Returns the JSON value of the answer, `StateText`, a response, or
        a coroutine for one of them. Long lists in the value are iterators, whose items may be read after `render` has
        returned. May raise RequestError.
    status: HTTP status of an answer that `render` returns as a JSON value.
    is_public: the route needs no API key, because its path contains a secret.
    works_in_thread: `render` takes long, because of much text or a file. It runs in a separate thread, one request at
        a time.
    key_field: field of the body that may hold the API key; empty if only headers may.
    parameters: names and descriptions of the parameters in the query, which `render` reads.
    lines: example of a body with one JSON value a line, which `render` reads; empty without such a body.
    The other fields have the same meaning as in `Route`.
    """

    path: str
    method: Literal["GET", "DELETE", "POST", "PUT", "PATCH"]
    name: str
    description: str
    answer: type[BaseModel]
    example: Any
    render: Callable[[State, Request, Any], Any]
    body: type[BaseModel] | None = None
    body_example: Any = field(default_factory=dict)
    errors: ErrorShape = NATIVE_ERRORS
    status: int = 200
    is_public: bool = False
    works_in_thread: bool = False
    key_field: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    lines: str = ""

    @property
    def operation_id(self) -> str:
        return self.name

    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises RequestError."""
        state = of(request)
        body: BaseModel | None = None
        if self.body is not None:
            schema = self.body
            value = await read_unverified(request, read_fields(request, body_limits(state)))
            authorize(request, state, self.key_field, value.get(self.key_field) if isinstance(value, dict) else None)
            large = is_large(request)
            body = (
                await state.runtime.pools.parse.run(lambda: validate(value, schema))
                if large
                else validate(value, schema)
            )
        with self.errors.renaming():
            if self.works_in_thread:
                begun = await state.runtime.pools.keep.run(lambda: self._begin(self.render(state, request, body)))
            else:
                found = self.render(state, request, body)
                begun = self._begin(await found if isinstance(found, Awaitable) else found)
            return begun if isinstance(begun, Response) else await self._in_pieces(state, begun)

    def _begin(self, found: Any) -> Response | LargeAnswer:
        """Create the response for a result of `render`. Of a large result, return the beginning and the other parts."""
        if isinstance(found, Response):
            return found
        parts, media_type = (
            (found.parts, found.media_type) if isinstance(found, StateText) else (pieces(found), MEDIA_TYPE)
        )
        first = b""
        for part in parts:
            first += part
            if len(first) > INLINE_BYTES:
                return LargeAnswer(first, parts, media_type)
        return Response(first, self.status, media_type=media_type)

    async def _in_pieces(self, state: State, answer: LargeAnswer) -> Response:
        """Response that renders and sends a large answer in pieces, so that a slow client keeps little memory.

        Raises Overloaded if too many large answers are being sent.
        """
        rest = state.runtime.pools.render.iterate(answer.parts)
        first = answer.first + await anext(rest, b"")
        response = PiecewiseResponse(first, rest, Call(state.runtime.client))
        response.status_code, response.headers["content-type"] = self.status, answer.media_type
        return response
