"""The page /docs needs no other host and no API key; the OpenAPI document that it shows needs the key."""

from __future__ import annotations

from html.parser import HTMLParser

import httpx
import pytest

from server.api.pages import playground_page
from server.api.pages.docs_page import PAGE

DIRECTORY, FILES = PAGE.directory, PAGE.files
ICON = "/playground/icon.svg"
"""The icon of both pages, a file of the playground."""
KEY = {"authorization": "Bearer the-key"}


class Addresses(HTMLParser):
    """Collects every URL that a browser would load for a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href", "action") and value]


async def test_the_page_and_all_its_files_come_from_this_server_without_a_key(guarded: httpx.AsyncClient) -> None:
    page = await guarded.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    addresses = [httpx.URL("http://localhost/docs").join(address) for address in Addresses(page.text).found]
    addresses.remove(httpx.URL("http://localhost/"))  # the way back
    assert sorted({address.path for address in addresses}) == sorted({*FILES, ICON} - {"/docs"})
    for address in addresses:
        assert address.host == "localhost"
        owner = playground_page.PAGE if address.path == ICON else PAGE
        file = await guarded.get(address)
        assert file.status_code == 200
        assert file.content == (owner.directory / owner.files[address.path]).read_bytes()


async def test_the_security_policy_forbids_other_hosts(guarded: httpx.AsyncClient) -> None:
    for path in FILES:
        policy = (await guarded.get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy and "*" not in policy


async def test_the_scripts_of_the_page_name_no_other_host() -> None:
    for name in ("index.html", "page.js", "page.css"):
        assert "//" not in (DIRECTORY / name).read_text().replace("\n// ", "\n").removeprefix("// ")


async def test_a_file_that_the_browser_has_is_not_sent_again(guarded: httpx.AsyncClient) -> None:
    first = await guarded.get("/docs/page.js")
    again = await guarded.get("/docs/page.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_the_schema_needs_the_key(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/openapi.json")).status_code == 401
    schema = await guarded.get("/openapi.json", headers=KEY)
    assert schema.status_code == 200 and "/generate" in schema.json()["paths"]


@pytest.mark.parametrize("path", ["/docs/", "/docs/../openapi.json", "/docs/%2e%2e/openapi.json", "/docs/x", "/docsx"])
async def test_no_other_path_below_the_page_is_public(guarded: httpx.AsyncClient, path: str) -> None:
    assert (await guarded.get(httpx.URL("http://localhost", raw_path=path.encode()))).status_code == 401
    assert (await guarded.get(httpx.URL("http://localhost", raw_path=path.encode()), headers=KEY)).status_code != 401
