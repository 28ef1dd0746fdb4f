"""Log lines on stderr, as text or as one JSON object per line. Logs never contain prompts.

The HTTP process and the workers use this module. Only the server's own loggers (`triptych.*`) write below level
WARNING, because libraries may log data of requests. Exceptions of requests are logged without their messages, because
a message can contain such data: the message of a `KeyError`, for example, is the key.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

ENVIRONMENT = "TRIPTYCH_LOG_FORMAT"
"""Environment variable with the log format, which worker processes inherit."""
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the HTTP request that the current task answers, for JSON log lines; empty outside of requests."""
_TEXT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"

log = logging.getLogger("triptych")


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object.

    The attribute `fields` of a record, set by `extra={"fields": {...}}`, adds members to the object.
    """

    def format(self, record: logging.LogRecord) -> str:
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            value["request_id"] = request_id
        value |= getattr(record, "fields", {})
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value, default=str)


def start_logging(level: str, log_format: str) -> None:
    """Start to write log records to stderr.

    level: lowest level to write, such as `info`; for loggers of libraries it is at least `warning`.
    log_format: `text` or `json`. With `json`, warnings of Python and exceptions that end a thread or the process become
        log records too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]), handlers=[handler])
    logging.getLogger("triptych").setLevel(level.upper())
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def fault_place(error: BaseException) -> str:
    """Return the stack and the type of an exception and of its causes as text, without their messages."""
    lines = []
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        lines += [*traceback.format_tb(cause.__traceback__), type(cause).__name__]
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(line.rstrip() for line in lines)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        log.critical("an uncaught exception ends the process", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is not None:
        name = arguments.thread.name if arguments.thread else "a thread"
        log.critical("an uncaught exception ends the thread %s:\n%s", name, fault_place(error))
