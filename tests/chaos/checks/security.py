"""Check promises 22, 23 and 35 to 37: API keys on every route, leaks, hostile pages, log lines and special tokens."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from server.api.dialects.openai.audio import realtime
from server.api.dialects.registry import KEYS_IN_FIELDS
from server.api.entry.middleware import KEY_SUBPROTOCOL, PUBLIC_PATHS
from tests.chaos import facts, mix
from tests.chaos.connection import Connection
from tests.chaos.openapi import document
from tests.chaos.pytest_run import run_tests
from tests.chaos.record import Record
from tests.chaos.server import server
from tests.waiting import HANG_SECONDS

KEYS = ("a-first-key-0001", "a-second-key-0002")
KEY_FILE = f'''
[keys.first]
key = "{KEYS[0]}"
admin = true

[keys.second]
key = "{KEYS[1]}"
'''
LINK_PATHS = ("/download_file/{file}",)
"""Paths that need no API key, because the path itself contains a secret."""
REFUSALS = (401, 403)
"""Statuses of an answer to a missing or wrong key. Some dialects use 403."""
CANARY = "CaNaRy"


async def _handshake(record: Record, url: str, headers: dict[str, str], accepted: bool) -> None:
    """Open the WebSocket route with a key in a header, and again with the key as a subprotocol.

    accepted: whether the header has a valid key.
    """
    address = f"{url.replace('http', 'ws', 1)}{realtime.PATH}"
    key = headers.get("authorization", headers.get("x-api-key", "")).rpartition(" ")[2]
    for given in ({"additional_headers": headers}, {"subprotocols": ["realtime", f"{KEY_SUBPROTOCOL}{key or 'none'}"]}):
        is_named = "subprotocols" in given and key in KEYS
        try:
            async with connect(address, proxy=None, open_timeout=HANG_SECONDS, **given):  # type: ignore[arg-type]
                status = 101
        except InvalidStatus as error:
            status = error.response.status_code
        record.must((status == 101) is (accepted or is_named), f"WebSocket with {headers}: status {status}")
        record.runs += 1


def keys() -> Record:
    """Promise 22: every route refuses requests that have no valid API key.

    Each valid key is accepted in each header for keys. Routes that load or change models accept only the first key,
    whose entry in the key file has `admin`; the error for the second key names the missing permission.
    """
    record = Record("request")
    wrong = [
        {},
        *({"authorization": f"Bearer {text}"} for text in ("", "wrong", KEYS[0][:-1], KEYS[0] + "x", KEYS[0].upper())),
    ]
    wrong += [{"x-api-key": KEYS[1][:5]}, {"authorization": f"Basic {KEYS[0]}"}]
    right = [
        {place: text.format(key)}
        for key in KEYS
        for place, text in (("authorization", "Bearer {}"), ("x-api-key", "{}"))
    ]

    async def walk(url: str) -> None:
        routes = [(method.upper(), path) for path, item in document(url, right[0])["paths"].items() for method in item]
        routes += [("POST", path) for path in PUBLIC_PATHS] + [("GET", "/openapi.json"), ("GET", "/nowhere")]
        async with Connection(url) as connection:
            for method, path in routes:
                if method == "GET" and path in PUBLIC_PATHS:
                    continue
                if path in LINK_PATHS:
                    answer = await connection.request(method, path)
                    record.must(answer.status == 404, f"{method} {path} with a wrong link: status {answer.status}")
                    record.runs += 1
                    continue
                for headers in wrong:
                    answer = await connection.request(method, path, None, headers)
                    record.must(answer.status in REFUSALS, f"{method} {path} with {headers}: status {answer.status}")
                    record.runs += 1
                for headers in right:
                    answer = await connection.request(method, path, None, headers)
                    second = any(KEYS[1] in value for value in headers.values())
                    lacks_admin = second and answer.status == 403 and b"admin = true" in answer.body
                    accepted = answer.status not in REFUSALS or lacks_admin
                    record.must(accepted, f"{method} {path} with a key: status {answer.status}")
                    record.runs += 1
            for headers in wrong:
                await _handshake(record, url, headers, accepted=False)
            for headers in right:
                await _handshake(record, url, headers, accepted=True)
            for method, path in sorted(KEYS_IN_FIELDS):
                for key, refused in ((KEYS[0], False), ("wrong", True)):
                    for field in ("auth_key", "api_key"):
                        answer = await connection.request(method, path, {field: key})
                        if answer.status not in REFUSALS:
                            record.must(not refused, f"{method} {path}: a wrong key in a field is accepted")
                        record.runs += 1
            for path in PUBLIC_PATHS:
                record.must((await connection.request("GET", path)).status == 200, f"GET {path} needs a key")

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "keys.toml"
        file.write_text(KEY_FILE)
        with server("--api-key-file", str(file)) as running:
            asyncio.run(walk(running.url))
            text = running.log.read_text()
            record.must(not any(key in text for key in KEYS), "the log contains a key")
    return record


def leaks(paths: int, requests: int = 60) -> Record:
    """Promise 23: canary texts in prompts, keys, paths and headers appear in no error, log (level debug) or metric.

    Requests to unknown paths add no metrics. paths: number of unknown paths.
    """
    record = Record("request")
    rng = random.Random(23)

    async def send(url: str) -> None:
        async with Connection(url) as connection:
            for i in range(requests):
                request = mix.request(i)
                text = f"{CANARY}{i}"
                fields = {
                    name: value for name, value in request.body.items() if name not in ("prompt", "inputs", "input")
                }
                changed = {name: text for name in request.body if name in ("prompt", "inputs", "input")}
                path = request.path if "nowhere" not in request.path else f"/{text}?{text}={text}"
                answer = await connection.request(
                    "POST", path, fields | changed, {"authorization": f"Bearer {text}", "user-agent": text}
                )
                if answer.status >= 400:
                    record.must(CANARY.encode() not in answer.body, f"{request.path}: the error repeats the request")
                record.runs += 1
            before = len(facts.metric_page(url).splitlines())
            for i in range(paths):
                odd = f"/{CANARY}{i}/" + "".join(rng.choices("abc%+-_.~é", k=rng.randint(0, 12)))
                odd = odd.replace("%", "%2f").replace("é", "%c3%a9")
                await connection.request(rng.choice(["GET", "POST", "PUT", "DELETE"]), odd)
                record.runs += 1
            added = len(facts.metric_page(url).splitlines()) - before
            record.most(f"lines of /metrics added by {paths:,} odd paths", added, 60, "")

    with server("--log-level", "debug", "--access-log") as running:
        asyncio.run(send(running.url))
        page = facts.metric_page(running.url)
        record.must(CANARY not in running.log.read_text(), "the log contains a canary")
        record.must(CANARY not in page, "/metrics contains a canary")
    return record


def pages() -> Record:
    """Promise 35: requests of hostile web pages are refused on every route, and legitimate requests still work."""
    return run_tests(Record("test"), "tests/api/test_browser_attacks.py", "tests/api/test_foreign_pages.py")


def log_lines() -> Record:
    """Promise 36: clients can forge neither their address in the log nor lines of the log."""
    return run_tests(Record("test"), "tests/api/test_forwarded.py", "tests/api/test_access_log.py")


def roles() -> Record:
    """Promise 37: text of a client never becomes a special token, in conversations and in texts that a model ranks."""
    return run_tests(
        Record("test"),
        "tests/operations/test_special_tokens.py",
        "tests/operations/test_special_tokens_in_rankings.py",
    )
