"""Requests that exploit published vulnerabilities (2025, 2026) of other inference servers. See docs/advisories.md."""

from __future__ import annotations

import hmac
import socket
from typing import Any

import httpx
import pytest

from server.api_keys import load_keys
from tests.api.conftest import Bench

NAMES = ("../../etc/passwd", "/etc/passwd", "..%2f..%2fetc", "decoder/../../x", "C:\\x", "file:///etc/passwd", "a\0b")


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_of_a_model_is_no_path(bench: Bench, http: httpx.AsyncClient, name: str) -> None:
    bench.become_ready()
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"prompt": "a"},
        "/tokenize": {"inputs": "a"},
        "/api/show": {},
        "/api/pull": {},
        "/models/load": {},
        "/api/v1/models/load": {},
    }
    for path, body in bodies.items():
        answer = await http.post(path, json=body | {"model": name})
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert "passwd" not in answer.text and "root:" not in answer.text
    for path in (f"/models/{name}/load", f"/v1/models/{name}", f"/models/{name}"):
        answer = await http.post(path.replace("\0", "%00"), json={"source": name})
        assert 400 <= answer.status_code < 500, path
    assert not bench.sent


async def test_no_address_of_a_request_is_fetched(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/secret"
        image = {"type": "image_url", "image_url": {"url": url}}
        source = {"type": "image", "source": {"type": "url", "url": url}}
        contents = [image, source, {"type": "input_image", "image_url": url}, {"type": "input_audio", "url": url}]
        for content in contents:
            messages = [{"role": "user", "content": [content]}]
            for path, body in (
                ("/v1/chat/completions", {"messages": messages}),
                ("/v1/messages", {"messages": messages, "max_tokens": 1}),
                ("/v1/responses", {"input": messages}),
                ("/v2/chat", {"messages": messages}),
            ):
                answer = await http.post(path, json={"model": "decoder", **body})
                assert 400 <= answer.status_code < 500, (path, answer.text)
        for path, body in (
            ("/api/pull", {"model": url}),
            ("/api/generate", {"model": "decoder", "prompt": "a", "images": [url]}),
            ("/models/load", {"model": url}),
            ("/models/x/load", {"source": url}),
        ):
            answer = await http.post(path, json=body)
            assert 400 <= answer.status_code < 500, (path, answer.text)
        answer = await http.post("/v1/audio/transcriptions", data={"url": url, "file": url, "model": "decoder"})
        assert 400 <= answer.status_code < 500
        with pytest.raises(TimeoutError):
            listener.accept()
    assert not bench.sent


def test_keys_are_found_by_digests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a sent key is compared with the digest of every known key, in constant time, even after a match."""
    keys = load_keys(["first-key-of-three", "second-key-of-three", "third-key-of-three"], None)
    compared: list[tuple[int, int]] = []

    def counted(sent: bytes, known: bytes) -> bool:
        compared.append((len(sent), len(known)))
        return sent == known

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for sent, is_known in ((b"first-key-of-three", True), (b"first-key-of-thref", False), (b"x" * 9999, False)):
        compared.clear()
        assert (keys.find(sent) is not None) is is_known
        assert compared == [(32, 32)] * 3
