"""The exceptions that Triptych reports to operators and clients. HTTP routes turn a RequestError into a response.

    TriptychError
    ├── StartError                  for the operator: one line on the terminal, exit code 2
    │   └── CheckpointError         a checkpoint cannot be loaded: exit code 1
    └── RequestError                for the client: status and code of the response
        ├── InvalidRequest          422  invalid_request
        │   ├── ContextLengthExceeded    context_length_exceeded
        │   ├── RequestTooLarge          request_too_large
        │   ├── PreviousResponseNotFound previous_response_not_found
        │   └── UnsupportedMediaType     415
        ├── BadHost                 400  invalid_request
        ├── MalformedHttp           400  invalid_request
        ├── HeadersTooLarge         431  headers_too_large
        ├── Unauthorized            401  unauthorized
        ├── Forbidden               403  forbidden
        ├── NotFound                404  not_found
        │   ├── ModelNotFound            model_not_found
        │   ├── ResponseNotFound         response_not_found
        │   └── ItemNotFound             item_not_found
        ├── MethodNotAllowed        405  method_not_allowed
        ├── BodyTimeout             408  body_timeout
        ├── BodyTooLarge            413  body_too_large
        ├── Overloaded              429  overloaded       (Retry-After; `server.limits.refusals` has its reasons)
        ├── EngineFailure           500  engine_error
        ├── NotReady                503  not_ready        (Retry-After)
        │   └── ServerFailed        503  failed
        ├── StorageFailed           503  storage_failed   (Retry-After)
        ├── DeadlineExceeded        504  timeout
        └── ClientGone              499  the client has disconnected

Messages name the field, its limit and the size of its value. They never contain a prompt, a path, a key or a stack
trace. Imports no HTTP framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

MAX_MESSAGE = 2000
"""Most characters of a message for the operator."""


def one_line(message: str) -> str:
    """Turn a message into one line for a terminal: control characters are escaped, and a long message is cut.

    Messages may contain names from files of unknown origin.
    """
    text = " ".join(message.split())
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


class TriptychError(Exception):
    """Base class of the errors that Triptych raises."""


class StartError(TriptychError):
    """The server cannot start. The message is one line for the operator."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class CheckpointError(StartError):
    """A checkpoint cannot be loaded. The message names the model and the reason."""


class RequestError(TriptychError):
    """A request fails.

    message: text for the client.
    param: name of the invalid field; None if the error is not about a field.
    retry_after: value of the `Retry-After` header in seconds; None for no header.
    status, kind, code: HTTP status of the response, and `type` and `code` in its body.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str] = "engine_error"

    def __init__(self, message: str, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """The value of the label `reason` by which metrics count the error."""
        return self.code

    def fields(self) -> dict[str, Any]:
        """Return the error as a JSON object, without the request id."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the JSON body of the response."""
        return {"error": self.fields() | {"request_id": request_id}}


class InvalidRequest(RequestError):
    """Malformed JSON, a wrong type, an unknown field, a value out of bounds, or fields that contradict each other."""

    status = 422
    kind = "invalid_request_error"
    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt is longer than the model's context.

    counts: (tokens of the prompt, tokens of the context); None if the prompt was not tokenized.
    """

    code = "context_length_exceeded"

    def __init__(self, message: str, param: str | None = None, counts: tuple[int, int] | None = None) -> None:
        super().__init__(message, param)
        self.counts = counts


class RequestTooLarge(InvalidRequest):
    """The request alone exceeds a limit, so that waiting would not help.

    The limits are the size of the KV pool, the queue, the memory for requests, and the limits of the API key.
    """

    code = "request_too_large"


class PreviousResponseNotFound(InvalidRequest):
    """The conversation that a request continues is not stored, or not stored completely."""

    code = "previous_response_not_found"


class UnsupportedMediaType(InvalidRequest):
    """The content type of the body is not accepted."""

    status = 415


class BadHost(RequestError):
    """The request has no header `Host`, or more than one."""

    status = 400
    kind = "invalid_request_error"
    code = "invalid_request"


class MalformedHttp(RequestError):
    """The bytes on a connection are no HTTP request."""

    status = 400
    kind = "invalid_request_error"
    code = "invalid_request"


class HeadersTooLarge(RequestError):
    """The request line and the headers of a request are too long."""

    status = 431
    kind = "invalid_request_error"
    code = "headers_too_large"


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"
    code = "unauthorized"


class Forbidden(RequestError):
    """The API key does not permit the request, or another site's web page may have sent it to a server without keys."""

    status = 403
    kind = "permission_error"
    code = "forbidden"


class NotFound(RequestError):
    """No route has the path of the request."""

    status = 404
    kind = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No model with this name is loaded."""

    code = "model_not_found"


class ResponseNotFound(NotFound):
    """No response of this API key is stored under the id."""

    code = "response_not_found"


class ItemNotFound(NotFound):
    """No item of this API key is stored under the id."""

    code = "item_not_found"


class MethodNotAllowed(RequestError):
    """The route does not accept this HTTP method."""

    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"


class BodyTimeout(RequestError):
    """The body was not received within the time limit."""

    status = 408
    kind = "invalid_request_error"
    code = "body_timeout"


class BodyTooLarge(RequestError):
    """The body has more bytes than the limit. Its `Content-Length` is checked, and the received bytes are counted."""

    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that a refused request would exceed. `server.limits.refusals` lists all limits.

    reason: name of the limit, as in the body of the error, the metric and the access log.
    limit: value of the limit, as text.
    setting: the setting that changes the limit; empty for a limit without a setting.
    """

    reason: str
    limit: str
    setting: str


class Overloaded(RequestError):
    """The request would exceed a limit at the moment, and may succeed later.

    state: words for the message that say what has reached the limit, such as `512 requests are in progress`.
    refusal: the limit; the message names its value and its setting.
    retry_after: seconds after which the client should try again.
    """

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"

    def __init__(self, state: str, refusal: Refusal, retry_after: int, param: str | None = None) -> None:
        field = f"`{param}`: " if param else ""
        limit = f"limit {refusal.limit}, {refusal.setting or 'not a setting'}"
        super().__init__(f"{field}{state} ({limit}); try again in {retry_after} s", param, retry_after)
        self.refusal = refusal

    @property
    def reason(self) -> str:
        return self.refusal.reason

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"reason": self.reason}


class EngineFailure(RequestError):
    """The engine, the tokenizer, or another part of the server failed while it worked on the request."""


class NotReady(RequestError):
    """The server is loading models, shutting down, or replacing the worker."""

    status = 503
    code = "not_ready"


class ServerFailed(NotReady):
    """The server cannot become ready again without a restart."""

    code = "failed"


class StorageFailed(RequestError):
    """The disk cannot be written: it is full, read-only, or damaged."""

    status = 503
    code = "storage_failed"


class DeadlineExceeded(RequestError):
    """A time limit passed: the limit on waiting in the queue, or the limit on the time for the whole answer."""

    status = 504
    kind = "timeout_error"
    code = "timeout"


class ClientGone(RequestError):
    """The client closed the connection. The work on its request is cancelled, and no response is sent."""

    status = 499
    code = "client_gone"
