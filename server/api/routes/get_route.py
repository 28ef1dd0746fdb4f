"""`GET` routes of the dialects. They describe the server or its models, and run no model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.body_limits import body_limits
from server.api.bodies.form import read_fields
from server.api.bodies.json_answer import json_response
from server.api.fields.keys import authorize, read_unverified
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.state import State, of
from server.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class GetRoute:
    """A `GET` route of a dialect that describes the server or its models.

    answer: schema of the answer. example: an example of the answer, for the OpenAPI document.
    render: creates the JSON value of the answer from the state and the parameters, or returns a coroutine for it. May
        raise RequestError.
    parameters: names and descriptions of parameters in the query, or in a form. If it is empty, the parameters of a
        request are ignored.
    takes_post: the route also answers `POST`.
    The other fields have the same meaning as in `Route`.
    """

    path: str
    method: ClassVar[str] = "GET"
    name: str
    description: str
    answer: type[BaseModel]
    example: Any
    render: Callable[[State, Mapping[str, str]], Any]
    errors: ErrorShape = NATIVE_ERRORS
    aliases: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    takes_post: bool = False
    key_field: str = ""

    @property
    def operation_id(self) -> str:
        return self.name

    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises Unauthorized, InvalidRequest for an unknown parameter, and errors of `render`."""
        state = of(request)
        given: dict[str, Any] = {}
        if self.parameters:
            given = dict(request.query_params)
            if request.headers.get("content-length", "0") != "0":
                fields = await read_unverified(request, read_fields(request, body_limits(state)))
                given |= fields if isinstance(fields, dict) else {}
        authorize(request, state, self.key_field, given.get(self.key_field))
        unknown = next((name for name in given if name not in self.parameters), None)
        if unknown is not None:
            raise InvalidRequest(f"this route takes only {', '.join(f'`{name}`' for name in self.parameters)}")
        if state.runtime.registry is not None:
            await state.runtime.registry.discover()
        found = self.render(state, {**given, **request.path_params})
        return json_response(await found if isinstance(found, Awaitable) else found)
