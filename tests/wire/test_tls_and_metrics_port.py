"""TLS with an encrypted key, a separate port for metrics, and CORS work together over real connections."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.waiting import HANG_SECONDS
from tests.wire.conftest import Process, parse_events

PAGE = "https://example.com"


def write_files(root: Path) -> tuple[str, str, ssl.SSLContext]:
    """Write a certificate for 127.0.0.1 and its encrypted key. Returns both paths, and a context that trusts them."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = root / "chain.pem", root / "key.pem"
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    private = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(b"key-password")
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return str(chain), str(key), context


def test_streams_errors_and_metrics(start: Callable[..., Process], tmp_path: Path) -> None:
    chain, key, context = write_files(tmp_path)
    arguments = ("--tls-certificate", chain, "--tls-key", key, "--metrics-port", "0", "--cors-origins", PAGE)
    secrets = {"TRIPTYCH_TLS_KEY_PASSWORD": "key-password", "TRIPTYCH_API_KEYS": "the-key"}
    server = start(*arguments, environment=secrets).wait_ready(r"ready on (https://\S+)")
    (monitoring,) = re.findall(r"Metrics and probes are on (http://127\.0\.0\.1:\d+)\n", server.output)
    headers = {"x-api-key": "the-key", "origin": PAGE}
    with httpx.Client(base_url=server.url, verify=context, headers=headers, timeout=HANG_SECONDS) as http:
        body = {"prompt": "one two three four", "model": "decoder", "max_new_tokens": 40}
        whole = http.post("/generate", json=body).json()
        answer = http.post("/generate", json=body | {"stream": True})
        events = parse_events(answer.text)
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert events[-1][0] == "done" and events[-1][1]["choices"] == whole["choices"]
        assert "".join(data["text"] for name, data in events[:-1]) == whole["choices"][0]["text"]
        missing = http.get("/metrics")
        assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, PAGE)
        assert "/metrics" not in http.get("/openapi.json").json()["paths"]
    assert httpx.get(f"{monitoring}/ready", timeout=HANG_SECONDS).status_code == 200
    page = httpx.get(f"{monitoring}/metrics", timeout=HANG_SECONDS).text
    assert 'triptych_generated_tokens_total{model="decoder"}' in page
    for path in ("/info", "/generate", "/docs", "/"):
        assert httpx.get(monitoring + path, timeout=HANG_SECONDS).status_code == 404
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), HANG_SECONDS) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP/1.1" not in plain.makefile("rb").read()
    assert server.stop() == 0
