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
"""A field as error messages name it."""


def named_message(error: RequestError) -> str:
    """The message of an error, for shapes that have no place for the name of the field."""
    return error.message if error.param is None or error.param in error.message else f"`{error.param}`: {error.message}"


class AnswerBody(BaseModel):
    """Base of every answer schema: fields that are not documented are an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorMembers(AnswerBody):
    """Base of the objects with the message of an error. reason: the limit that refuses a request, with status 429."""

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
    """How a dialect reports errors.

    statuses: HTTP status of the dialect by the status in `server.errors`, where the two differ.
    codes: HTTP status by error code; takes precedence over `statuses`.
    fields: the dialect's name of a field by the name that errors of operations use, where the two differ.
    body: the JSON body, from the error and the request id.
    answer: schema of the body.
    """

    statuses: Mapping[int, int] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[RequestError, str], Any] = lambda error, request_id: error.body(request_id)
    answer: type[BaseModel] = ErrorAnswer
    codes: Mapping[str, int] = field(default_factory=dict)

    def status(self, error: RequestError) -> int:
        return self.codes.get(error.code) or self.statuses.get(error.status, error.status)

    def render(self, error: RequestError, request_id: str) -> Any:
        """The JSON body of an error. In every dialect, the body of a refusal has `reason` beside the message."""
        body = self.body(error, request_id)
        if isinstance(error, Overloaded):
            holder = body["error"] if isinstance(body.get("error"), dict) else body
            holder["reason"] = error.reason
        return body

    @contextmanager
    def renaming(self, sent: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
        """Context manager around an operation: its errors name the fields as the dialect does.

        sent: names that one request has used in place of the usual ones.
        """
        fields = {**self.fields, **sent}
        try:
            yield
        except RequestError as error:
            error.param = fields.get(error.param or "", error.param)
            error.message = _FIELD.sub(lambda found: f"`{fields.get(found[1], found[1])}`", error.message)
            raise


NATIVE_ERRORS = ErrorShape()
