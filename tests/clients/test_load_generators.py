"""Common load generators, which read streams line by line without a client package, can read our streams.

The rules are those of the benchmark scripts of vLLM, SGLang and TGI, of `llmperf` and of `genai-perf`: lines end in LF
alone, each event is one `data: ` line, `[DONE]` ends the stream, a chunk has one choice, and the chunk with the usage
has none.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.clients.conftest import ClientServer
from tests.clients.test_openai import STORY, told
from tests.waiting import HANG_SECONDS

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": STORY, "logprobs": None, "repetition_penalty": 1.0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": [{"type": "text", "text": STORY}]}]},
}
every_route = pytest.mark.parametrize("path", BODIES)


def read(server: ClientServer, path: str, **fields: Any) -> bytes:
    body = {"model": "story", "max_tokens": 24, "temperature": 0.0, "stream": True, "ignore_eos": True}
    with httpx.stream(
        "POST", server.url + path, json=body | BODIES[path] | fields, headers=server.headers, timeout=HANG_SECONDS
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return response.read()


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


@every_route
def test_lines(server: ClientServer, path: str) -> None:
    data = read(server, path)
    assert b"\r" not in data and data.isascii()
    lines = [line for line in data.split(b"\n") if line]
    assert all(line.startswith(b"data: ") for line in lines)
    assert data.endswith(b"data: [DONE]\n\n") and data.count(b"[DONE]") == 1
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == told(24)


@every_route
def test_usage(server: ClientServer, path: str) -> None:
    data = read(server, path, stream_options={"include_usage": True})
    *chunks, last = [json.loads(line[6:]) for line in data.splitlines() if line and not line.endswith(b"[DONE]")]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 24
    assert all(chunk["usage"] is None for chunk in chunks)


@every_route
def test_several_answers_come_in_chunks_of_their_own(server: ClientServer, path: str) -> None:
    data = read(server, path, n=3, temperature=1.0, seed=1)
    texts = ["", "", ""]
    for line in data.splitlines():
        if line and not line.endswith(b"[DONE]"):
            (choice,) = json.loads(line[6:])["choices"]
            texts[choice["index"]] += text_of(choice)
    assert len(set(texts)) == 3
