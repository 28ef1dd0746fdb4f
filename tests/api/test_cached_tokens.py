"""Answers report `usage.cached_tokens`, and two API keys never share cached prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.ipc.wire.frames import encode_frame
from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis, Tokens
from server.settings.settings import Settings
from tests.api.conftest import Bench


async def ask(bench: Bench, http: httpx.AsyncClient, key: str = "", **fields: object) -> tuple[Generate, asyncio.Task]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": "abc", "model": "decoder", **fields}
    posted = asyncio.create_task(http.post("/generate", json=body, headers=headers))
    return await bench.sent_generate(), posted


def finish(bench: Bench, message: Generate, cached: list[int]) -> None:
    ends = [Hypothesis([100], "length")]
    found = zip(message.rows, cached, strict=True)
    bench.output(finished=[Finished(row.sequence_id, ends, 0.0, 0.0, 0.0, count) for row, count in found])


async def test_a_prompt_counts_once_for_all_of_its_rows(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    message, posted = await ask(bench, http, prompt=["abc", "abd"], n=3)
    finish(bench, message, [1, 2, 2, 0, 2, 2])
    usage = (await posted).json()["usage"]
    assert (usage["prompt_tokens"], usage["cached_tokens"]) == (6, 1)


async def test_cached_tokens_are_reported_after_a_stop_string(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    message, posted = await ask(bench, http, stop=["d"])
    bench.output(tokens=[Tokens(message.rows[0].sequence_id, [ord("d") + 3], None, 2)])
    answer = (await posted).json()
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["cached_tokens"] == 2


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, Settings(api_keys=["first-key", "second-key"]))
    made.become_ready()
    yield made
    made.runtime.pools.close()


async def salt_of(bench: Bench, key: str = "") -> str:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as client:
        message, posted = await ask(bench, client, key)
        finish(bench, message, [0])
        assert (await posted).status_code == 200
    assert not key or key.encode() not in encode_frame(message), "the message contains the key"
    return message.cache_salt


async def test_each_key_has_its_own_salt(guarded: Bench) -> None:
    first, second = await salt_of(guarded, "first-key"), await salt_of(guarded, "second-key")
    assert first != second and len(first) == 32
    assert await salt_of(guarded, "first-key") == first


async def test_the_salt_of_a_key_differs_between_servers(guarded: Bench, tmp_path: Path) -> None:
    """The salt of an API key depends on a secret of the process, so nobody can compute it from the key alone."""
    other = Bench(tmp_path, Settings(api_keys=["first-key"]))
    other.become_ready()
    assert await salt_of(other, "first-key") != await salt_of(guarded, "first-key")
    other.runtime.pools.close()


async def test_without_keys_all_requests_share_one_salt(bench: Bench) -> None:
    bench.become_ready()
    assert await salt_of(bench) == await salt_of(bench) == ""
