"""Errors of the client commands. Each message is one line for the terminal, and each class has an exit code.

CommandError         2   the command or its input is wrong
├── Unreachable      2   no server answers
└── RequestFailed    1   the server refused the request, or its answer broke off
    └── AnswerCut    3   an answer ended at a limit of tokens or of time
"""

from __future__ import annotations

from typing import ClassVar

from server.errors import TriptychError


class CommandError(TriptychError):
    """A command cannot run with its arguments or input."""

    exit_code: ClassVar[int] = 2


class Unreachable(CommandError):
    """No server answers on the URL, or the server closes the connection.

    timed_out: whether the server was connected, but sent nothing for too long.
    """

    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class RequestFailed(CommandError):
    """The server answered with an error, or its answer broke off.

    status: HTTP status; 200 for an answer that failed after it had begun.
    error: the error of the answer as JSON; None for an answer without one.
    """

    exit_code = 1

    def __init__(self, message: str, status: int, error: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class AnswerCut(RequestFailed):
    """A limit of tokens or time has ended an answer before the model did. The answer so far was written."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(message, 200)
