"""The access log, with one record per request: client, name of the API key, path, status, duration, model, tokens, etc.

A record never contains a prompt, an API key or a query string.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from server.api.entry.scope import CALL, KEY_LIMITS, REFUSAL, TRACE
from server.ipc.client.call import Call

log = logging.getLogger("triptych.access")
_MAX_PATH_CHARACTERS = 256


def log_request(scope: Scope, level: int, status: int, seconds: float, path: str | None) -> None:
    """Log a request that has ended.

    level: level of the log record.
    status: HTTP status; 499 if the client disconnected before a status was sent.
    seconds: duration of the request.
    path: path of the request; None if it belongs to no route. It is then logged as `unmatched`, because it may contain
        any text.
    """
    if not log.isEnabledFor(level):
        return
    client = scope.get("client")
    fields: dict[str, Any] = {
        "client": client[0] if client else None,
        "method": scope["method"][:8],
        # Quoted, so that a path cannot forge a line of the log.
        "path": quote((path or "unmatched")[:_MAX_PATH_CHARACTERS], safe="/:@!$&'()*+,;=~{}"),
        "status": status,
        "milliseconds": round(seconds * 1000, 1),
    }
    if KEY_LIMITS in scope:
        fields["key"] = scope[KEY_LIMITS].name
    if REFUSAL in scope:
        fields["reason"] = scope[REFUSAL].reason
    call = scope.get(CALL)
    if isinstance(call, Call) and call.model:
        fields |= {
            "model": call.model,
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": call.completion_tokens,
        }
        if reasons := dict.fromkeys([*call.finish_reasons, *filter(None, [call.failure])]):
            fields["finish"] = ",".join(reasons)
    if isinstance(call, Call) and call.ignored:
        fields["ignored"] = len(set(call.ignored))
    request_id = fields["request_id"] = scope["triptych.request_id"]
    if TRACE in scope:
        fields["trace_id"] = scope[TRACE].trace_id
    log.log(level, "%s", _text(fields), extra={"fields": fields})
    if isinstance(call, Call) and call.ignored:
        log.debug("%s ignored %s", request_id, ", ".join(dict.fromkeys(call.ignored)))


def _text(fields: dict[str, Any]) -> str:
    text = "{client} {method} {path} {status} {milliseconds}ms".format_map(fields | {"client": fields["client"] or "-"})
    if "key" in fields:
        text += " key={key}".format_map(fields)
    if "reason" in fields:
        text += " reason={reason}".format_map(fields)
    if "model" in fields:
        text += " model={model} tokens={prompt_tokens}+{completion_tokens}".format_map(fields)
    if "finish" in fields:
        text += " finish={finish}".format_map(fields)
    if "ignored" in fields:
        text += " ignored={ignored}".format_map(fields)
    return f"{text} {fields['request_id']}"
