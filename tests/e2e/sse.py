"""Read server-sent events as the standard (WHATWG HTML, section 9.2) defines them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Yield the name and the parsed data of each event.

    Lines are split at line feeds only. `iter_lines` of httpx would also split at other characters, such as U+2028.
    """
    buffer = ""
    for chunk in response.iter_text():
        buffer += chunk
        while "\n\n" in buffer:
            frame, buffer = buffer.split("\n\n", 1)
            fields = [line.partition(": ") for line in frame.split("\n") if not line.startswith(":")]
            if not fields:
                continue
            name = next((value for field, _, value in fields if field == "event"), "message")
            yield name, json.loads("\n".join(value for field, _, value in fields if field == "data"))
    assert not buffer.strip(), f"the stream ended inside a frame: {buffer!r}"


def stream(url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[tuple[str, Any]]:
    with httpx.stream("POST", url, json=body, headers=headers, timeout=120) as response:
        response.read() if response.status_code != 200 else None
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return list(events(response))
