"""Routes that read or delete the responses that an API key has stored before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from server.api.bodies.json_answer import json_response
from server.api.routes.error_shape import NATIVE_ERRORS, ErrorShape
from server.api.state import cache_salt, of
from server.api.stored.stored_responses import Shelf
from server.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class OwnedRoute:
    """A route that reads or deletes stored responses of the request's API key. It has no body.

    render: creates the JSON value of the answer, from the key's shelf and the parameters. May raise RequestError.
    parameters: names and descriptions of the parameters in the query. Other parameters are refused.
    The other fields have the same meaning as in `Route`.
    """

    path: str
    method: Literal["GET", "DELETE", "POST"]
    name: str
    description: str
    answer: type[BaseModel]
    example: Any
    render: Callable[[Shelf, Mapping[str, str]], Any]
    errors: ErrorShape = NATIVE_ERRORS
    parameters: Mapping[str, str] = field(default_factory=dict)

    async def respond(self, request: Request) -> Response:
        """Answer one request. Raises InvalidRequest for an unknown parameter, and the errors of `render`."""
        unknown = next((name for name in request.query_params if name not in self.parameters), None)
        if unknown is not None:
            taken = ", ".join(f"`{name}`" for name in self.parameters) or "no parameters"
            raise InvalidRequest(f"this route takes only {taken} in the query")
        shelf = of(request).responses.shelf(cache_salt(request))
        return json_response(self.render(shelf, {**request.query_params, **request.path_params}))
