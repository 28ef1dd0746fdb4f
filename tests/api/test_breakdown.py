"""`Server-Timing`: the parts of a request's time, for requests that ask for them."""

from __future__ import annotations

import asyncio
import re
import time

import httpx
import pytest

from server.ipc.wire.encode_messages import Encode, Encoded
from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from tests.api.conftest import Bench

ASKING = {"X-Breakdown": "1"}
EMBED = {"model": "embedder", "inputs": "a text"}


async def encode_message(bench: Bench) -> Encode:
    while not (sent := [message for message in bench.sent if isinstance(message, Encode)]):
        await asyncio.sleep(0)
    return sent[0]


def parts_of(answer: httpx.Response) -> dict[str, float]:
    """Duration in milliseconds of each part in the `Server-Timing` header, by name."""
    return {name: float(value) for name, value in re.findall(r"(\w+);dur=([\d.-]+)", answer.headers["server-timing"])}


async def embed(bench: Bench, http: httpx.AsyncClient, headers: dict[str, str]) -> httpx.Response:
    asking = asyncio.create_task(http.post("/embed", json=EMBED, headers=headers))
    message = await encode_message(bench)
    began = time.monotonic()
    await asyncio.sleep(0.02)
    sent = time.monotonic()
    await asyncio.sleep(0.01)
    encoded = Encoded(message.sequence_id, 0, bytes(16))
    bench.output(encoded=[encoded], began=began, sent=sent)
    return await asking


async def test_the_parts_add_up_and_have_the_times_of_the_worker(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    started = time.monotonic()
    answer = await embed(bench, http, ASKING)
    whole = (time.monotonic() - started) * 1000
    parts = parts_of(answer)
    assert answer.status_code == 200
    assert list(parts) == ["arrival", "tokenize", "hand_over", "step", "hand_back", "render"]
    assert parts["step"] >= 20 and parts["hand_back"] >= 10 and min(parts.values()) >= 0
    assert sum(parts.values()) <= whole


async def test_other_requests_get_no_parts(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    answer = await embed(bench, http, {})
    assert answer.status_code == 200 and "server-timing" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_generated_text_has_parts_unless_it_is_a_stream(
    bench: Bench, http: httpx.AsyncClient, stream: bool
) -> None:
    """A whole answer has the header; a stream does not. The part `step` lasts from the first step to the last one."""
    bench.become_ready()
    body = {"model": "decoder", "prompt": "a", "stream": stream, "max_new_tokens": 2}
    asking = asyncio.create_task(http.post("/generate", json=body, headers=ASKING))
    (row,) = await bench.sent_rows()
    began = time.monotonic()
    bench.output(tokens=[Tokens(row.sequence_id, [70])], began=began, sent=began + 0.001)
    await asyncio.sleep(0.03)
    sent = time.monotonic()
    finished = [Finished(row.sequence_id, [Hypothesis([70, 71], "length")], 0.0, 0.0, 0.0)]
    bench.output(tokens=[Tokens(row.sequence_id, [71])], finished=finished, began=sent - 0.001, sent=sent)
    answer = await asking
    assert answer.status_code == 200
    if stream:
        assert "server-timing" not in answer.headers
    else:
        assert parts_of(answer)["step"] >= 30
