"""Log lines on stderr, as text or as one JSON object per line. Both processes use it. Logs never contain prompts."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

ENVIRONMENT = "TRIPTYCH_LOG_FORMAT"
"""Environment variable through which a worker process learns the format."""
_NOISY = ("uvicorn", "asyncio", "httpx", "huggingface_hub", "filelock")
_TEXT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per record. The attribute `fields` of a record (`extra={"fields": {...}}`) adds members."""

    def format(self, record: logging.LogRecord) -> str:
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        value |= getattr(record, "fields", {})
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value, default=str)


def start_logging(level: str, log_format: str) -> None:
    """Write log records of at least this level to stderr. log_format: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
