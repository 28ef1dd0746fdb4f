"""An idle server with several models never answers 429 to a single request within the published limits.

Every route is tested at each limit, and at several limits together."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.api.dialects.registry import ROUTES
from server.operations.admission import DEFAULT_MEMORY_BYTES
from server.settings.settings import Settings
from tests.api.conftest import Bench

MAX_BODY_BYTES = 20_000
MAX_CHARACTERS = 4000
COUNTS = {"n": 16, "best_of": 16, "num_beams": 16, "top_logprobs": 20, "num_alternatives": 15, "top_k": 1000}
"""Fields that multiply the work of a request, with their largest allowed values."""
LONG = ("one two " * MAX_CHARACTERS)[:MAX_CHARACTERS]
TEXTS = ("inputs", "input", "prompt", "text", "texts", "query", "q", "documents", "context", "labels", "ids")
"""Fields with the texts of a request."""
PATHS = sorted({route.path for route in ROUTES if "json" in route.media_type})


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, Settings(max_body_bytes=MAX_BODY_BYTES, max_text_characters=MAX_CHARACTERS))
    made.runtime.admission.models = len(made.runtime.texts)
    made.become_ready()
    yield made
    made.runtime.pools.close()


def bodies(path: str) -> list[dict[str, Any]]:
    """Bodies for a route: one for each combination of long texts, long lists and large counts.

    Lists are shortened until the body is within the limit of bytes.
    """
    found: dict[bytes, dict[str, Any]] = {}
    for route, *flags in itertools.product([known for known in ROUTES if known.path == path], *[(False, True)] * 3):
        long_texts, long_lists, counts = flags
        body = {key: value for key, value in route.example[0].items() if key != "model"}
        for key in [key for key in body if key in TEXTS]:
            value = body[key][0] if isinstance(body[key], list) and body[key] else body[key]
            value = LONG if long_texts and isinstance(value, str) else value
            takes_list = isinstance(body[key], list) or key in ("inputs", "input", "prompt", "q")
            body[key] = [value] * 1024 if takes_list and long_lists else [value] if key == "texts" else value
        body |= {key: most for key, most in COUNTS.items() if counts and key in route.body.model_fields}
        for key, value in body.items():
            while isinstance(value, list) and len(value) > 1 and len(json.dumps(body)) > MAX_BODY_BYTES:
                value = body[key] = value[: len(value) // 2]
        found[json.dumps(body).encode()] = body
    return list(found.values())


@pytest.mark.parametrize("path", PATHS)
async def test_no_request_within_the_limits_is_refused_with_429(idle: Bench, path: str) -> None:
    url, admission = path.replace("{model}", next(iter(idle.runtime.texts))), idle.runtime.admission
    async with httpx.AsyncClient(transport=httpx.ASGITransport(idle.app), base_url="http://localhost") as http:

        async def reserved_by(body: dict[str, Any]) -> int:
            """Send a request until the worker gets it, or it is answered. Returns the reserved memory in bytes."""
            idle.sent.clear()
            asked = asyncio.create_task(http.post(url, json=body))
            while not asked.done() and not idle.sent:
                await asyncio.sleep(0.001)
            reserved = admission.total.memory_bytes
            if asked.done():
                assert asked.result().status_code not in (429, 500, 503), asked.result().text
            else:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            assert admission.total.requests == idle.client.queue.requests == 0
            return reserved

        for body in bodies(path):
            admission.memory_bytes = DEFAULT_MEMORY_BYTES
            admission.memory_bytes = max(await reserved_by(body), 1)
            # Now the request needs all the memory, although a model's share is smaller if there are several models.
            await reserved_by(body)
