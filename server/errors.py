"""Every failure Triptych reports, as one tree. Knows no HTTP framework; the routes turn these into answers.

    TriptychError
    ├── StartError                  for the operator: one line on the terminal, exit code 2
    │   └── CheckpointError         a checkpoint that does not load: exit code 1
    └── RequestError                for the client: status, type, code, param
        ├── InvalidRequest          422  invalid_request
        │   ├── ContextLengthExceeded    context_length_exceeded
        │   ├── RequestTooLarge          request_too_large
        │   └── UnsupportedMediaType     415
        ├── Unauthorized            401  unauthorized
        ├── NotFound                404  not_found
        │   └── ModelNotFound            model_not_found
        ├── MethodNotAllowed        405  method_not_allowed
        ├── BodyTimeout             408  body_timeout
        ├── BodyTooLarge            413  body_too_large
        ├── Overloaded              429  overloaded       (Retry-After)
        ├── EngineFailure           500  engine_error
        ├── NotReady                503  not_ready        (Retry-After)
        ├── DeadlineExceeded        504  timeout
        └── ClientGone              499  nobody is left to read the answer

Messages name the field, the limit and the value's size. They never hold a prompt, a path, a key or a stack trace.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TriptychError(Exception):
    """Base of everything Triptych raises on purpose."""


class StartError(TriptychError):
    """The server cannot start. The message is one line for the operator."""


class CheckpointError(StartError):
    """A checkpoint cannot be loaded; names the model and what is wrong with it."""


class RequestError(TriptychError):
    """A request that gets an error instead of an answer.

    param: the field at fault, if one is. retry_after: seconds, for the `Retry-After` header.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str] = "engine_error"

    def __init__(self, message: str, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def body(self, request_id: str) -> dict[str, Any]:
        """The `error` object of the contract."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error | {"request_id": request_id}}


class InvalidRequest(RequestError):
    """Malformed JSON, a wrong type, an unknown field, a value out of bounds, or a contradiction."""

    status = 422
    kind = "invalid_request_error"
    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"


class RequestTooLarge(InvalidRequest):
    """Could not run even on an idle server: prompt and new tokens, times beams, exceed the KV pool or the queue."""

    code = "request_too_large"


class UnsupportedMediaType(InvalidRequest):
    """A body that does not say it is JSON."""

    status = 415


class Unauthorized(RequestError):
    """No key, or a wrong one."""

    status = 401
    kind = "authentication_error"
    code = "unauthorized"


class NotFound(RequestError):
    """No such route."""

    status = 404
    kind = "not_found_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No loaded model has this name."""

    code = "model_not_found"


class MethodNotAllowed(RequestError):
    """The route exists, for another method."""

    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"


class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    status = 408
    kind = "invalid_request_error"
    code = "body_timeout"


class BodyTooLarge(RequestError):
    """More bytes than the limit, declared or counted."""

    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"


class Overloaded(RequestError):
    """The queue is full, by requests or by tokens."""

    status = 429
    kind = "rate_limit_error"
    code = "overloaded"


class EngineFailure(RequestError):
    """A fault on our side."""


class NotReady(RequestError):
    """Loading, draining, or the worker is being replaced."""

    status = 503
    code = "not_ready"


class DeadlineExceeded(RequestError):
    """The deadline passed before there was anything to send."""

    status = 504
    kind = "timeout_error"
    code = "timeout"


class ClientGone(RequestError):
    """The client closed the connection: its work is dropped and no answer can reach it."""

    status = 499
    code = "client_gone"
