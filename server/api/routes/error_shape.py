"""How a dialect reports errors: HTTP statuses, JSON body, and the schema of that body."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from server.errors import Overloaded, RequestError

_FIELD = re.compile(r"`(\w+)`")
"""Pattern of a field name in an error message, such as `model` in backticks."""


def named_message(error: RequestError) -> str:
    """The message of an error with its field name before it, for error formats without a place for the field name."""
    return error.message if error.param is None or error.param in error.message else f"`{error.param}`: {error.message}"


class AnswerBody(BaseModel):
    """Base of every answer schema. An answer with a field that the schema does not have is invalid."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorMembers(AnswerBody):
    """Base of the objects that contain an error message. reason: the limit that refused the request (status 429)."""

    reason: str = ""


class ErrorObject(ErrorMembers):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorAnswer(AnswerBody):
    """The body of every error response of the native and OpenAI dialects."""

    error: ErrorObject


@dataclass(frozen=True)
class ErrorShape:
    """The error format of a dialect.

    statuses: status in `server.errors` to the dialect's HTTP status, if they differ.
    fields: field name in errors of operations to the dialect's field name, if they differ.
    body: creates the JSON body from the error and the request id.
    answer: schema of that body.
    codes: error code to HTTP status; takes precedence over `statuses`.
    """

    statuses: Mapping[int, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[RequestError, str], Any] = lambda error, request_id: error.body(request_id)
    answer: type[BaseModel] = ErrorAnswer
    codes: Mapping[str, int] = field(default_factory=dict)

    def status(self, error: RequestError) -> int:
        return self.codes.get(error.code) or self.statuses.get(error.status, error.status)

    def render(self, error: RequestError, request_id: str) -> Any:
        """The JSON body of an error. For an Overloaded error, the dialect's body also gets the field `reason`."""
        body = self.body(error, request_id)
        if isinstance(error, Overloaded):
            holder = body["error"] if isinstance(body.get("error"), dict) else body
            holder["reason"] = error.reason
        return body

    @contextmanager
    def renaming(self, sent: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
        """Context manager around an operation that replaces field names in its errors by those of the dialect.

        sent: field name in errors to the name that the request has used. Takes precedence over `fields`.
        """
        fields = {**self.fields, **sent}
        try:
            yield
        except RequestError as error:
            error.param = fields.get(error.param or "", error.param)
            error.message = _FIELD.sub(lambda found: f"`{fields.get(found[1], found[1])}`", error.message)
            raise


NATIVE_ERRORS = ErrorShape()
