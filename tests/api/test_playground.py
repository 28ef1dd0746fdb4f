"""`GET /` and the playground's files, tested without a browser: they need no API key and refer to no other host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import httpx
import pytest

from server.api.pages.playground_page import PAGE, accepts_html

HTML = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
SCRIPTS = sorted(name for name in PAGE.files.values() if name.endswith(".js"))
TEXTS = ["index.html", *PAGE.files.values()]
XML_NAMESPACE = "http://www.w3.org/2000/svg"


def source(name: str) -> str:
    return (PAGE.directory / name).read_text()


async def test_browsers_get_the_page_and_others_a_description(guarded: httpx.AsyncClient) -> None:
    page = await guarded.get("/", headers=HTML)
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text == source("index.html") and page.headers["vary"] == "Accept"
    for accept in ("*/*", "application/json", "text/html;q=0, */*"):
        other = await guarded.get("/", headers={"accept": accept})
        assert other.json() == {"name": "triptych", "info": "/info", "openapi": "/openapi.json", "needs_key": True}
        assert (other.headers["vary"], other.headers["cache-control"]) == ("Accept", "no-store")
    for headers in (HTML, {}):
        head = await guarded.head("/", headers=headers)
        assert (head.status_code, head.content) == (200, b"")


async def test_only_reading_the_page_is_open_without_a_key(guarded: httpx.AsyncClient) -> None:
    for path in ("/", *PAGE.files):
        assert (await guarded.get(path)).status_code == 200
        for method in ("POST", "PUT", "DELETE"):
            assert (await guarded.request(method, path)).status_code == 401
    for path in ("/playground", "/playground/", "/playground/nothing.js", "/playground/..%2f..%2f__init__.py"):
        assert (await guarded.get(path)).status_code == 401


async def test_the_description_says_when_no_key_is_needed(http: httpx.AsyncClient) -> None:
    assert (await http.get("/")).json()["needs_key"] is False


async def test_security_headers(guarded: httpx.AsyncClient) -> None:
    for path in ("/", *PAGE.files):
        headers = (await guarded.get(path, headers=HTML)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "style-src 'self';" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert not re.search(r"unsafe|http|data:|\*", policy)
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        if path.endswith(".js"):
            assert headers["content-type"].startswith(("text/javascript", "application/javascript"))


async def test_a_file_that_the_browser_has_is_not_sent_again(guarded: httpx.AsyncClient) -> None:
    first = await guarded.get("/", headers=HTML)
    again = await guarded.get("/", headers=HTML | {"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_names_served_files_only() -> None:
    addresses = re.findall(r'(?:src|href)="([^"]+)"', source("index.html"))
    files = {f"/{address}" for address in addresses if address.startswith("playground/")}
    assert files <= set(PAGE.files) and len(files) == 7
    assert set(addresses) - {file.lstrip("/") for file in files} == {"./", "docs", "#main"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_is_a_served_module_that_exports_the_names(name: str) -> None:
    for names, target in re.findall(r'^import (?:\{([^}]*)\} from )?"([^"]+)";', source(name), re.MULTILINE):
        parts: list[str] = []
        for part in (PurePosixPath(name).parent / target).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        path = "/".join(parts)
        assert f"/playground/{path}" in PAGE.files
        exported = re.findall(r"^export (?:async )?(?:const|class|function\*?) (\w+)", source(path), re.MULTILINE)
        assert {imported_name.strip() for imported_name in names.split(",") if imported_name.strip()} <= set(exported)


@pytest.mark.parametrize("name", SCRIPTS)
def test_module_syntax(name: str) -> None:
    playwright = pytest.importorskip("playwright", reason="the interpreter of playwright checks the syntax")
    node = Path(playwright.__file__).parent / "driver" / "node"
    run = subprocess.run([node, "--input-type=module", "--check"], input=source(name), text=True, capture_output=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_names_another_host(name: str) -> None:
    code = source(name).replace(XML_NAMESPACE, "")
    code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(("//", "*", "/*")))
    assert not re.search(r"\b(https?|wss?)://|[\"'(]//|@import|\burl\(", code)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_from_strings(name: str) -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", source(name)
    )
    assert "localStorage" not in source(name) or name == "theme.js", "the API key belongs to sessionStorage"


def test_the_page_has_no_inline_script_or_style() -> None:
    page = source("index.html")
    assert "<style" not in page and " style=" not in page and not re.search(r"\son\w+=", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        ("text/html", True),
        ("application/json, TEXT/HTML ; q=0.2", True),
        ("text/html;q=0.0", False),
        ("text/*", False),
        ("*/*", False),
        ("", False),
        ("application/xhtml+xml", False),
    ],
)
def test_accept(accept: str, answer: bool) -> None:
    assert accepts_html(accept) is answer
