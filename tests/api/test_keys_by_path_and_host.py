"""Neither another spelling of the path nor the Host header bypasses the API key (advisories of 2025 and 2026)."""

from __future__ import annotations

import httpx
import pytest

PATHS = (
    "//generate",
    "///info",
    "/generate/",
    "/info/",
    "/health/../info",
    "/health/../../info",
    "/health//info",
    "/health/info",
    "/health%2f..%2finfo",
    "/ready;/info",
    "/info;/health",
    "/info%00/health",
    "/info?path=/health",
    "/info#/health",
    "/INFO",
    "/%69nfo",
    "/.//info",
    "/./info",
    "/docs/../info",
    "/docs/%2e%2e/info",
    "/v1/models?health",
    "/metrics?x=/health",
    "/health.json/../../v1/models",
)


@pytest.mark.parametrize("path", PATHS)
async def test_another_spelling_of_a_path_needs_the_key(path: str, guarded: httpx.AsyncClient) -> None:
    url = httpx.URL("http://localhost").copy_with(raw_path=path.partition("#")[0].encode())
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        answer = await guarded.send(httpx.Request(method, url))
        assert answer.status_code == 401, f"{method} {path}"


@pytest.mark.parametrize("host", ["localhost/health", "localhost?/health", "health", "localhost/info?", "x/health#"])
async def test_a_host_with_a_path_needs_the_key(host: str, guarded: httpx.AsyncClient) -> None:
    answer = await guarded.get("/info", headers={"host": host})
    assert answer.status_code in (400, 401)


async def test_headers_of_proxies_do_not_replace_the_path(guarded: httpx.AsyncClient) -> None:
    for name in ("x-original-url", "x-rewrite-url", "x-forwarded-prefix", "x-forwarded-host", "forwarded"):
        answer = await guarded.get("/info", headers={name: "/health"})
        assert answer.status_code == 401, name
