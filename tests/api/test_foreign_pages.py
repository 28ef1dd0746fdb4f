"""A server without API keys refuses the requests of foreign web pages: `Host`, `Origin`, `Sec-Fetch-Site`."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from server.api.app import create_monitoring
from server.api.dialects import registry
from server.api.entry.page_check import PageCheck
from server.api.pages import docs_page, playground_page
from server.errors import BadHost, Forbidden, StartError
from server.settings.read import load
from server.settings.settings import Settings
from tests.api.conftest import Bench

EVIL = "evil-page.example"
PAGE = "https://app.example.com"
ROUTES = [
    *(("POST", path) for path in sorted(registry.OPERATION_PATHS)),
    *(("GET", path) for route in registry.GET_ROUTES for path in (route.path, *route.aliases)),
    *(("GET", path) for path in ("/info", "/metrics", "/openapi.json", "/no/such/route")),
    *(("GET", path) for path in (*docs_page.PAGE.files, *playground_page.FILES)),
    *(("OPTIONS", "/generate"), ("DELETE", "/generate"), ("HEAD", "/"), ("PUT", "/")),
]
NAVIGATION = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FOREIGN: dict[str, dict[str, str]] = {
    "a name that resolves to this machine": {"host": f"{EVIL}:8000", "origin": f"http://{EVIL}:8000"},
    "the same without an origin": {"host": EVIL, "sec-fetch-site": "same-origin"},
    "another site": {"origin": f"https://{EVIL}", "sec-fetch-site": "cross-site"},
    "another site in an old browser": {"origin": f"https://{EVIL}"},
    "a sandboxed frame or a redirect": {"origin": "null"},
    "another port of this machine": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    "an image or a script": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    "a redirect back to this server": {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
}


@asynccontextmanager
async def application(root: Path, base_url: str = "http://localhost", **settings: object) -> AsyncIterator[Bench]:
    bench = Bench(root, Settings(**settings))
    bench.become_ready()
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url=base_url) as bench.http:  # type: ignore[attr-defined]
        yield bench
    bench.runtime.close()


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_every_route_refuses_foreign_pages(
    bench: Bench, http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    bench.become_ready()
    for method, path in ROUTES:
        answer = await http.request(method, re.sub(r"{\w+(:\w+)?}", "decoder", path), headers=headers)
        assert answer.status_code == 403, (method, path)
        assert re.search("--allowed-hosts|--cors-origins", answer.text) or method == "HEAD", path
        assert EVIL not in answer.text and "access-control-allow-origin" not in answer.headers
    assert not bench.sent and bench.metrics.render().count(b'triptych_requests_rejected_total{reason="forbidden"}') == 1


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/generate", {"error": {"type": "permission_error", "code": "forbidden", "param": "host"}}),
        ("/v1/messages", {"type": "error", "error": {"type": "permission_error"}}),
        ("/api/chat", {}),
        ("/v2/chat", {}),
        ("/v2/translate", {}),
    ],
)
async def test_the_refusal_has_the_shape_of_the_dialect(
    bench: Bench, http: httpx.AsyncClient, path: str, shape: dict[str, object]
) -> None:
    answer = (await http.post(path, json={}, headers={"host": EVIL})).json()
    text = answer["message"] if "message" in answer else answer["error"]
    assert "--allowed-hosts" in (text["message"] if isinstance(text, dict) else text)
    for name, value in shape.items():
        assert answer[name] == value if isinstance(value, str) else value.items() <= answer[name].items()


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_may_use_any_name(bench: Bench, http: httpx.AsyncClient, path: str) -> None:
    bench.become_ready()
    assert (await http.get(path, headers={"host": EVIL})).status_code == 200
    assert (await http.get(path, headers={"origin": f"http://{EVIL}"})).status_code == 403


OWN = [
    *("127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]", "[::1]:8000", "[fd00::7]:8000", "::1"),
    *("localhost", "LOCALHOST:8000", "localhost.", "a.localhost", "a.b.localhost:1"),
    *(socket.gethostname(), f"{socket.gethostname().upper()}:8000"),
]
NOT_OWN = [
    *(EVIL, "localhost.example", "xlocalhost", "127.0.0.1.example", "1.2.3", "[localhost]", "[::1", "::1]:80"),
    *(
        "localhost:port",
        "localhost:8000:8000",
        "user@localhost",
        "localhost/",
        " ",
        ":8000",
        "[]",
        "127.0.0.1, localhost",
    ),
]


def check(host: str, *allowed: str, **headers: str) -> None:
    scope = {"path": "/generate", "method": "POST", "scheme": "http"}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    PageCheck(allowed, [PAGE, "chrome-extension://abc"]).check(scope, Headers({"host": host} | sent))


@pytest.mark.parametrize("host", OWN)
def test_own_names(host: str) -> None:
    check(host)


@pytest.mark.parametrize("host", NOT_OWN)
def test_other_names(host: str) -> None:
    with pytest.raises(Forbidden, match="--allowed-hosts"):
        check(host)


@pytest.mark.parametrize(
    ("allowed", "host", "passes"),
    [
        ("ai.example.com", "ai.example.com:8000", True),
        ("AI.example.com", "ai.Example.com", True),
        ("ai.example.com", "b.ai.example.com", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("triptych", "triptych:8000", True),
        ("*", EVIL, True),
    ],
)
def test_allowed_hosts(allowed: str, host: str, passes: bool) -> None:
    if passes:
        check(host, *load({"allowed_hosts": allowed}).allowed_hosts)
    else:
        with pytest.raises(Forbidden):
            check(host, allowed)


@pytest.mark.parametrize(
    "name", ["http://a.example", "a.example:80", "a.*", "*a.example", "*.", "a..b", "a/b", "[::1]"]
)
def test_malformed_allowed_hosts_are_refused(name: str) -> None:
    with pytest.raises(StartError, match="allowed_hosts: write host names without scheme and port"):
        load({"allowed_hosts": name})


async def test_the_full_name_of_this_machine_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "Machine.Example.org.")
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread.run())
    pages = PageCheck([], [])
    headers, scope = Headers({"host": "machine.example.org:8000"}), {"path": "/", "method": "GET", "scheme": "http"}
    with pytest.raises(Forbidden):
        pages.check(scope, headers)
    pages.look_up_full_name()
    pages.check(scope, headers)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "http://localhost:80"),
        ("127.0.0.1:80", "http://127.0.0.1"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("localhost:8000", PAGE),
        ("localhost:8000", "chrome-extension://abc"),
    ],
)
def test_own_and_listed_origins(host: str, origin: str) -> None:
    check(host, origin=origin)
    check(host, origin=origin, sec_fetch_site="same-origin")


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "https://localhost:8000",
            "http://localhost",
            "http://localhost:8001",
            "http://127.0.0.1:8000",
            "localhost:8000",
        ),
        *("http://localhost:8000.evil.example", "http://evil@localhost:8000", f"{PAGE}.evil.example", "null", ""),
        *("http://", "file://", "chrome-extension://other"),
    ],
)
def test_other_origins(origin: str) -> None:
    with pytest.raises(Forbidden, match="--cors-origins"):
        check("localhost:8000", origin=origin)


def test_two_origins_must_both_be_allowed() -> None:
    headers = Headers(raw=[(b"host", b"localhost"), (b"origin", b"http://localhost"), (b"origin", EVIL.encode())])
    with pytest.raises(Forbidden):
        PageCheck([], []).check({"path": "/generate", "method": "POST", "scheme": "http"}, headers)


async def test_a_listed_page_may_call_from_another_site(tmp_path: Path) -> None:
    async with application(tmp_path, cors_origins=PAGE) as bench:
        headers = {"origin": PAGE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        answer = await bench.http.post("/tokenize", json={"inputs": "a"}, headers=headers)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
        assert (await bench.http.post("/tokenize", json={}, headers=headers | {"host": EVIL})).status_code == 403
        other = await bench.http.post("/tokenize", json={"inputs": "a"}, headers=headers | {"origin": f"http://{EVIL}"})
        assert other.status_code == 403 and "access-control-allow-origin" not in other.headers


async def test_all_origins_may_be_allowed(tmp_path: Path) -> None:
    async with application(tmp_path, cors_origins="*") as bench:
        for headers in ({"origin": f"https://{EVIL}"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            answer = await bench.http.post("/tokenize", json={"inputs": "a"}, headers=headers)
            assert answer.status_code == 200
        assert (await bench.http.post("/tokenize", json={}, headers={"host": EVIL})).status_code == 403


async def test_https_has_its_own_origin(tmp_path: Path) -> None:
    async with application(tmp_path, "https://localhost:8443") as bench:
        for origin, status in (("https://localhost:8443", 200), ("http://localhost:8443", 403), (PAGE, 403)):
            answer = await bench.http.post("/tokenize", json={"inputs": "a"}, headers={"origin": origin})
            assert answer.status_code == status, origin


async def test_links_open_the_pages_and_nothing_else(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    for path, status in (("/", 200), ("/docs", 200), ("/info", 403), ("/metrics", 403), ("/docs/page.js", 403)):
        assert (await http.get(path, headers=NAVIGATION)).status_code == status, path
    assert (await http.head("/", headers=NAVIGATION)).status_code == 403
    assert (await http.post("/", json={"inputs": "a"}, headers=NAVIGATION)).status_code == 403
    for site in ("none", "same-origin", "same-site"):
        assert (await http.get("/docs/page.js", headers={"sec-fetch-site": site})).status_code == 200


async def test_a_server_with_keys_is_guarded_by_them(guarded: httpx.AsyncClient) -> None:
    for headers in FOREIGN.values():
        assert (await guarded.post("/tokenize", json={"inputs": "a"}, headers=headers)).status_code == 401
        known = headers | {"x-api-key": "the-key"}
        assert (await guarded.post("/tokenize", json={"inputs": "a"}, headers=known)).status_code == 503


@pytest.mark.parametrize("hosts", [[], [b""], [b"localhost", b"localhost"], [b"localhost", EVIL.encode()]])
@pytest.mark.parametrize("keys", [{}, {"api_keys": "the-key"}])
async def test_a_request_has_one_host(tmp_path: Path, hosts: list[bytes], keys: dict[str, str]) -> None:
    async with application(tmp_path, **keys) as bench:
        for path in ("/health", "/info", "/no/such/route"):
            raw = [(b"host", host) for host in hosts] + [(b"x-api-key", b"the-key")]
            request = httpx.Request("GET", f"http://localhost{path}", headers=httpx.Headers(raw))
            if not hosts:
                del request.headers["host"]
            answer = await bench.http.send(request)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "host", path
            assert answer.json()["error"]["code"] == BadHost.code


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
async def test_prometheus_may_name_the_service(tmp_path: Path, host: str, status: int) -> None:
    """A metrics port that listens on all addresses accepts any `Host`, such as the name of a Kubernetes service.

    On a loopback address it accepts local names only, because pages in a browser on this machine could reach it.
    """
    settings = {"metrics_port": 0, "metrics_host": host, "insecure_no_auth": True}
    async with application(tmp_path, **settings) as bench:
        transport = httpx.ASGITransport(create_monitoring(bench.state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/metrics")).status_code == 200
            assert (await http.get("/metrics", headers={"host": "triptych:9100"})).status_code == status
            assert (await http.get("/health", headers={"host": "triptych:9100"})).status_code == 200
            assert (await http.get("/metrics", headers={"origin": f"http://{EVIL}"})).status_code == 403
