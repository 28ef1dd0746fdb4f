"""Answers that end at their deadline: an error in other dialects, a finish reason in the native one, never `length`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.api.bodies.json_answer import MAX_INLINE
from server.api.dialects.native.generation import GenerateRenderer
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.logprobs import TokenLogprob, pack
from server.settings.settings import Settings
from server.text.chats.chat import ChatTemplates
from tests.api.conftest import Bench
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import parse_events
from tests.wire.fake_worker import FIRST_BYTE

MESSAGES = [{"role": "user", "content": "abc"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 50},
    "/v1/responses": {"input": "abc", "max_output_tokens": 50},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/v2/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "abc", "stream": False},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/generate": {"inputs": "abc"},
    "/models/decoder": {"inputs": "abc", "parameters": {"max_new_tokens": 5}},
}
"""Bodies of requests without streaming, by path: the routes of other dialects that generate text and can stream."""
WHOLE: dict[str, dict[str, Any]] = {
    "/models/translator": {"inputs": "abc", "parameters": {"src_lang": "en", "tgt_lang": "de"}},
    "/translate": {"q": "abc", "source": "en", "target": "de"},
    "/v2/translate": {"text": ["abc"], "source_lang": "EN", "target_lang": "DE"},
}
"""Bodies of requests, by path: the routes that generate text and never stream."""
COMPLETE = ("[DONE]", '"done":true', "message_stop", "response.completed", "response.incomplete", 'generated_text":"')
"""Texts that only a complete stream has."""
LIMITS = ("length", "MAX_TOKENS", "max_tokens", 'max_output_tokens"}')
"""Names in the dialects for an answer that reached the largest number of tokens."""


@pytest.fixture
def chats(bench: Bench) -> Bench:
    """A bench whose decoder has a chat template."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    texts = dict(bench.runtime.texts)
    texts["decoder"] = replace(texts["decoder"], chat_templates=ChatTemplates({"default": template}))
    bench.runtime.texts = texts
    bench.become_ready()
    return bench


async def post_until_the_deadline(
    bench: Bench, http: httpx.AsyncClient, path: str, body: dict[str, Any], tokens: int = 3
) -> httpx.Response:
    """Post a request. As its worker, send `tokens` tokens of each row, and after the deadline that it has ended."""
    posted = asyncio.create_task(http.post(path, json=body))
    async with asyncio.timeout(HANG_SECONDS):
        message = await bench.sent_generate()
    found = [FIRST_BYTE + ord("x")] * tokens
    scored = message.params.logprobs
    for sequence in bench.client._sequences.by_id.values():
        sequence.call.limits.deadline = 0.0
    for row in message.rows:
        first = pack([TokenLogprob(found[0], -0.5, [])]) if scored else None
        logprobs = pack([TokenLogprob(token, -0.5, []) for token in found]) if scored else None
        ended = Hypothesis(found, "timeout", None, None, logprobs)
        bench.output(tokens=[Tokens(row.sequence_id, found[:1], first)])
        bench.output(finished=[Finished(row.sequence_id, [ended] * message.params.num_return_sequences, 0, 0, 0)])
    return await posted


@pytest.mark.parametrize("path", [*BODIES, *WHOLE])
async def test_a_whole_answer_becomes_an_error(chats: Bench, http: httpx.AsyncClient, path: str) -> None:
    body = ({"model": "decoder"} | BODIES[path]) if path in BODIES else WHOLE[path]
    answer = await post_until_the_deadline(chats, http, path, body)
    assert answer.status_code == 504 and "the deadline passed before the answer was complete" in answer.text
    assert not any(limit in answer.text for limit in LIMITS)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", {"code": "timeout", "type": "timeout_error"}),
        ("/v1/messages", {"type": "timeout_error"}),
    ],
)
async def test_the_kind_of_the_error(chats: Bench, http: httpx.AsyncClient, path: str, kind: dict[str, str]) -> None:
    answer = await post_until_the_deadline(chats, http, path, {"model": "decoder"} | BODIES[path])
    assert kind.items() <= answer.json()["error"].items()


@pytest.mark.parametrize("path", [*BODIES, "/generate_stream"])
async def test_a_stream_ends_with_an_error(chats: Bench, http: httpx.AsyncClient, path: str) -> None:
    body = {"model": "decoder"} | BODIES.get(path, {"inputs": "abc"}) | {"stream": True}
    answer = await post_until_the_deadline(chats, http, path, body)
    assert answer.status_code == 200 and not any(text in answer.text for text in COMPLETE + LIMITS)
    *begin, end = [line for line in answer.text.splitlines() if line and not line.startswith("event:")]
    assert "the deadline passed before the answer was complete" in end and "x" in "".join(begin)
    if path in ("/v1/completions", "/v1/chat/completions"):
        chunks = [json.loads(line.removeprefix("data: ")) for line in begin]
        assert {choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]} == {None}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tokens", [3, MAX_INLINE + 1])
async def test_the_native_dialect_reports_it(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool, tokens: int
) -> None:
    """The answer has the finish reason, even if it is so large that a thread renders it after the deadline."""
    render = GenerateRenderer.whole
    monkeypatch.setattr(GenerateRenderer, "whole", lambda *arguments: (time.sleep(0.05), render(*arguments))[1])
    bench.become_ready()
    body = {"model": "decoder", "prompt": "abc", "stream": stream}
    answer = await post_until_the_deadline(bench, http, "/generate", body, tokens)
    assert answer.status_code == 200
    result = parse_events(answer.text)[-1][1] if stream else answer.json()
    (choice,) = result["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("x" * tokens, "timeout")
    assert not stream or parse_events(answer.text)[-1][0] == "done"


async def test_the_native_translation_reports_it(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    body = {"inputs": ["abc", "def"], "source_lang": "en", "target_lang": "de"}
    answer = await post_until_the_deadline(bench, http, "/translate", body)
    assert [translation["finish_reason"] for translation in answer.json()["translations"]] == ["timeout", "timeout"]


@pytest.mark.parametrize(
    ("settings", "sent", "seconds"),
    [
        ({}, {}, None),
        ({"default_timeout_seconds": 300.0}, {}, 300.0),
        ({"default_timeout_seconds": 300.0}, {"timeout_ms": 600_000}, 600.0),
        ({}, {"timeout_ms": 100_000}, 100.0),
    ],
)
async def test_the_limits_of_a_request(tmp_path: Path, settings: Any, sent: Any, seconds: float | None) -> None:
    bench = Bench(tmp_path, Settings(queue_timeout_seconds=700.0, **settings))
    bench.become_ready()
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        before = time.monotonic()
        posted = asyncio.create_task(http.post("/generate", json={"prompt": "abc"} | sent))
        async with asyncio.timeout(HANG_SECONDS):
            message = await bench.sent_generate()
        assert message.start_deadline is not None and 0 <= message.start_deadline - before - 700.0 < 60
        if seconds is None:
            assert message.deadline is None
        else:
            assert message.deadline is not None and 0 <= message.deadline - before - seconds < 60
        (row,) = message.rows
        bench.output(finished=[Finished(row.sequence_id, [Hypothesis([100], "stop")], 0, 0, 0)])
        assert (await posted).status_code == 200
        limits = (await http.get("/info")).json()["limits"]
    default = settings.get("default_timeout_seconds")
    assert limits["default_timeout_ms"] == (default and default * 1000) and limits["queue_timeout_ms"] == 700_000
    bench.runtime.pools.close()


def test_the_default_timeout_is_at_most_the_longest_one() -> None:
    with pytest.raises(
        ValueError, match=r"default_timeout_seconds \(700\) must be at most max_timeout_seconds \(600\)"
    ):
        Settings(default_timeout_seconds=700.0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/generate"])
async def test_a_wait_that_is_too_long_is_an_error_of_the_dialect(tmp_path: Path, path: str, stream: bool) -> None:
    bench = Bench(tmp_path, Settings(queue_timeout_seconds=0.02))
    texts = dict(bench.runtime.texts)
    texts["decoder"] = replace(texts["decoder"], chat_templates=ChatTemplates({"default": "a"}))
    bench.runtime.texts = texts
    bench.become_ready()
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.post(path, json={"model": "decoder"} | BODIES[path] | {"stream": stream})
    assert answer.status_code == 504 and "--queue-timeout-seconds" in answer.text
    bench.runtime.pools.close()
