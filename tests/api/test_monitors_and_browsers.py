"""`HEAD` requests, trailing slashes and CORS work as monitors, proxies and browsers expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from server.errors import StartError
from server.settings.read import load
from server.settings.settings import Settings
from tests.api.conftest import Bench

PAGE = "https://example.com"


@asynccontextmanager
async def application(root: Path, **settings: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an application that requires an API key. settings: further settings of the application."""
    bench = Bench(root, Settings(api_keys="the-key", **settings))
    bench.become_ready()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as client:
        yield client
    bench.runtime.pools.close()


@pytest.mark.parametrize(
    "path", ["/", "/health", "/ready", "/info", "/metrics", "/openapi.json", "/docs", "/api/version"]
)
async def test_head_answers_as_get_without_the_body(bench: Bench, http: httpx.AsyncClient, path: str) -> None:
    bench.become_ready()
    accept = {"accept": "text/html"}
    get, head = await http.get(path, headers=accept), await http.head(path, headers=accept)
    assert (head.status_code, head.content) == (get.status_code, b"") and get.status_code == 200
    assert head.headers["content-type"] == get.headers["content-type"]
    if path not in ("/metrics", "/info"):
        assert head.headers["content-length"] == get.headers["content-length"]


async def test_head_is_about_the_whole_body(bench: Bench, http: httpx.AsyncClient) -> None:
    """`HEAD` ignores the `Range` header, which is defined for `GET` only, and reports the length of the whole body."""
    part = {"accept": "text/html", "range": "bytes=0-9", "if-range": "x"}
    whole = await http.head("/", headers={"accept": "text/html"})
    head = await http.head("/", headers=part)
    assert head.status_code == 200 and head.headers["content-length"] == whole.headers["content-length"]
    del part["if-range"]
    assert (await http.get("/", headers=part)).status_code == 206


async def test_head_needs_the_key_as_get_does(tmp_path: Path) -> None:
    async with application(tmp_path) as client:
        assert (await client.head("/health")).status_code == 200
        assert (await client.head("/info")).status_code == 401
        refused = await client.head("/generate", headers={"x-api-key": "the-key"})
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def test_a_slash_at_the_end_of_a_path_is_ignored(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    plain = await http.post("/tokenize", json={"inputs": "a"})
    slash = await http.post("/tokenize/", json={"inputs": "a"})
    assert slash.status_code == 200 and slash.json() == plain.json()
    assert (await http.get("/health/")).status_code == 200
    assert (await http.post("/generate/", json={})).json()["error"]["param"] == "prompt"
    assert (await http.get("/no/such/")).status_code == 404


async def test_a_slash_opens_no_guarded_path(tmp_path: Path) -> None:
    async with application(tmp_path) as client:
        for path in ("/info/", "/tokenize/", "/health/x/", "/health//"):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.get("/health/")).status_code == 200


PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-timeout-ms",
}


async def test_a_preflight_needs_no_key(tmp_path: Path) -> None:
    async with application(tmp_path, cors_origins=PAGE) as client:
        answer = await client.options("/generate", headers=PREFLIGHT)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
        assert "access-control-allow-credentials" not in answer.headers


async def test_an_answer_and_an_error_can_be_read_by_an_allowed_page(tmp_path: Path) -> None:
    async with application(tmp_path, cors_origins=PAGE) as client:
        for headers, status in (({"authorization": "Bearer the-key"}, 200), ({}, 401)):
            answer = await client.post("/tokenize", json={"inputs": "a"}, headers=headers | {"origin": PAGE})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-expose-headers"] == "*" and answer.headers["x-request-id"]


async def test_other_pages_are_not_allowed(tmp_path: Path) -> None:
    async with application(tmp_path, cors_origins=PAGE) as client:
        other = PREFLIGHT | {"origin": "https://other.example"}
        refused = await client.options("/generate", headers=other)
        assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers


async def test_cors_is_off_by_default(tmp_path: Path) -> None:
    async with application(tmp_path) as client:
        answer = await client.options("/generate", headers=PREFLIGHT)
        assert answer.status_code == 401
        health = await client.get("/health", headers={"origin": PAGE})
        assert not [name for name in health.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", ["*", "https://a.example,http://localhost:3000"])
def test_valid_origins(origins: str) -> None:
    assert load({"cors_origins": origins}).cors_origins == origins.split(",")


@pytest.mark.parametrize("origins", ["example.com", "https://example.com/", "https://example.com/app", "null"])
def test_invalid_origins_are_refused(origins: str) -> None:
    with pytest.raises(StartError, match="cors_origins"):
        load({"cors_origins": origins})
