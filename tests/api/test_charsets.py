"""A form with another charset than UTF-8 in its content type is refused before any of it is decoded."""

from __future__ import annotations

import encodings
from pathlib import Path

import httpx
import pytest

from server.settings.settings import Settings
from tests.api.conftest import Bench

CODECS = ("punycode", "idna", "undefined", "unicode_escape", "utf-7", "zlib", "latin-1", "no-such-codec")
"""Codecs of Python that raise unusual errors, decode to surrogates, or do not encode text, and an unknown name.

Python would keep each unknown name in a cache for ever."""
FORM = b'--x\r\ncontent-disposition: form-data; name="q"\r\n\r\n%b\r\n--x--\r\n'


@pytest.mark.parametrize(
    "path", ["/translate", "/detect", "/v2/translate", "/translate_file", "/v1/audio/transcriptions"]
)
@pytest.mark.parametrize("codec", CODECS)
async def test_another_charset_is_refused(path: str, codec: str, bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    known = len(encodings._cache)  # type: ignore[attr-defined]
    for kind in ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        if kind.startswith("app") and path in ("/translate_file", "/v1/audio/transcriptions"):
            continue
        headers = {"content-type": f'{kind}; charset="{codec}"'}
        answer = await http.post(path, content=FORM % b"a-b\\ud800", headers=headers)
        assert answer.status_code == 415 and "utf-8" in answer.text and codec not in answer.text, answer.text
    assert len(encodings._cache) == known  # type: ignore[attr-defined]


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", "; charset=UTF-8", '; charset="utf8"'])
async def test_a_form_is_utf8(charset: str, http: httpx.AsyncClient) -> None:
    """A form that is declared as UTF-8 but contains other bytes is refused. Decoding would replace characters."""
    headers = {"content-type": f"multipart/form-data; boundary=x{charset}"}
    for path in ("/detect", "/translate_file"):
        answer = await http.post(path, content=FORM % b"caf\xe9", headers=headers)
        assert answer.status_code == 400 and "not UTF-8" in answer.text, answer.text


async def test_a_form_without_a_key_does_not_tell_its_fault(tmp_path: Path) -> None:
    """Without an API key, every form gets 401 or 403, so a client cannot find out which routes exist.

    This holds also for wrong content types and for bodies that are too large.
    """
    bench = Bench(tmp_path, Settings(api_keys="the-key", max_body_bytes=1000, max_document_bytes=1000))
    bench.become_ready()
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/translate", "/detect", "/translate_file", "/suggest"):
            for kind in ("multipart/form-data; boundary=x; charset=idna", "multipart/form-data; boundary=x", "a/b"):
                for size in (1, 2000):
                    answer = await client.post(path, content=FORM % (b"a" * size), headers={"content-type": kind})
                    assert answer.status_code in (401, 403), (path, kind, size, answer.text)
    bench.runtime.pools.close()
