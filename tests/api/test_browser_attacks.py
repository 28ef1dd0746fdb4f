"""A server without API keys refuses every request that a browser sends for a hostile web page.

Source of the headers: Fetch Standard (WHATWG), `Origin` and `Sec-Fetch-*`; HTML Standard, form submission.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import httpx
import pytest

from tests.api.conftest import Bench

SERVER = "localhost:8000"


class Page(NamedTuple):
    """A hostile page. host, site: the headers `Host` and `Sec-Fetch-Site` of its requests. origin: its origin."""

    host: str
    origin: str
    site: str


PAGES = {
    "rebinding": Page("evil.example:8000", "http://evil.example:8000", "same-origin"),
    "rebinding of a subdomain": Page(
        "localhost.evil.example:8000", "http://localhost.evil.example:8000", "same-origin"
    ),
    "rebinding of an address as a name": Page(
        "127.0.0.1.evil.example:8000", "http://127.0.0.1.evil.example:8000", "same-origin"
    ),
    "another site": Page(SERVER, "http://evil.example", "cross-site"),
    "another site with TLS": Page(SERVER, "https://evil.example", "cross-site"),
    "a frame or a file": Page(SERVER, "null", "cross-site"),
    "another port": Page(SERVER, "http://localhost:3000", "same-site"),
    "another scheme": Page(SERVER, "https://localhost:8000", "cross-site"),
}
FORM = {"urlencoded": "q=a&target=de&text=a&target_lang=DE&inputs=a", "multipart": "--x--\r\n", "plain": '{"inputs":"a'}
TYPES = {
    "urlencoded": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data; boundary=x",
    "plain": "text/plain",
}
POSTED = (
    *("/translate", "/v2/translate", "/detect", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/generate", "/embed", "/api/generate", "/api/chat", "/", "/models/decoder", "/v1/chat/completions"),
)
FETCHED = (
    "/info",
    "/metrics",
    "/languages",
    "/v1/models",
    "/api/tags",
    "/openapi.json",
    "/tokenizer_info",
    "/",
    "/docs",
)


def fetched(page: Page, mode: str, destination: str) -> dict[str, str]:
    return {
        "host": page.host,
        "sec-fetch-site": page.site,
        "sec-fetch-mode": mode,
        "sec-fetch-dest": destination,
        "referer": page.origin,
    }


@pytest.mark.parametrize("name", PAGES)
async def test_no_form_of_a_hostile_page_is_read(bench: Bench, http: httpx.AsyncClient, name: str) -> None:
    bench.become_ready()
    page = PAGES[name]
    for path, kind in itertools.product(POSTED, TYPES):
        for mode, destination in (("navigate", "document"), ("no-cors", "empty"), ("navigate", "iframe")):
            headers = fetched(page, mode, destination) | {"origin": page.origin, "content-type": TYPES[kind]}
            answer = await http.post(path, content=FORM[kind], headers=headers)
            assert answer.status_code == 403, (path, kind, mode)
        # Old browsers send no Sec-Fetch headers.
        headers = {"host": page.host, "origin": page.origin, "content-type": TYPES[kind]}
        assert (await http.post(path, content=FORM[kind], headers=headers)).status_code == 403, (path, kind)
    assert not bench.sent


@pytest.mark.parametrize("name", PAGES)
async def test_a_hostile_page_reads_nothing(bench: Bench, http: httpx.AsyncClient, name: str) -> None:
    """Requests by fetch, event stream, WebSocket, image, script, frame and preflight are refused.

    One exception: a page from another port of this machine may load an image, script or frame. Such a GET has no
    origin, and the page cannot read the answer.
    """
    bench.become_ready()
    page = PAGES[name]
    for path in FETCHED:
        for mode, destination in (("cors", "empty"), ("cors", "eventsource"), ("websocket", "websocket")):
            headers = fetched(page, mode, destination) | {"origin": page.origin}
            if mode == "websocket":
                headers |= {"upgrade": "websocket", "connection": "Upgrade"}
            answer = await http.get(path, headers=headers)
            # After DNS rebinding, a real browser sends no origin with a GET. The `Host` header is refused anyway.
            assert answer.status_code == 403, (path, mode)
            assert "access-control-allow-origin" not in answer.headers
        if page.site != "same-site":
            for destination in ("image", "script", "iframe"):
                answer = await http.get(path, headers=fetched(page, "no-cors", destination))
                assert answer.status_code == 403, (path, destination)
        preflight = fetched(page, "cors", "empty") | {"origin": page.origin, "access-control-request-method": "POST"}
        answer = await http.options(path, headers=preflight)
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers


async def test_links_of_other_pages_open_the_pages_for_people_only(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    for page in PAGES.values():
        for path in FETCHED:
            answer = await http.get(path, headers=fetched(page, "navigate", "document") | {"accept": "text/html"})
            may_open = page.host == SERVER and (path in ("/", "/docs") or page.site == "same-site")
            assert (answer.status_code != 403) is may_open, (page, path)
            if path in ("/", "/docs") and may_open:
                assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_probes_say_nothing_to_any_page(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    for path in ("/health", "/ready"):
        for host in ("10.2.3.4:8000", "triptych:8000", "backend", "evil.example"):
            assert (await http.get(path, headers={"host": host})).status_code == 200
        answer = await http.get(path, headers={"host": SERVER, "origin": "http://evil.example"})
        assert answer.status_code == 403


@pytest.mark.parametrize("name", PAGES)
async def test_no_route_of_any_method_serves_a_hostile_page(bench: Bench, http: httpx.AsyncClient, name: str) -> None:
    """Every route and method of the OpenAPI document is refused, so that new routes are covered too."""
    bench.become_ready()
    paths = (await http.get("/openapi.json", headers={"host": SERVER})).json()["paths"]
    page, asked = PAGES[name], 0
    for path, method in [(path, method) for path, methods in paths.items() for method in methods]:
        if path in ("/health", "/ready") and page.host != SERVER:
            continue
        headers = fetched(page, "cors", "empty") | {"origin": page.origin, "content-type": "text/plain"}
        for fields in (headers, {"host": page.host, "origin": page.origin}):
            answer = await http.request(method, path, content=b"{}", headers=fields)
            assert answer.status_code == 403, (method, path)
            asked += 1
    assert asked > 150 and not bench.sent
