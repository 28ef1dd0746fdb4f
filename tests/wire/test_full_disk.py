"""Glossaries and suggestions cannot be stored on a full disk: status 503, one line in the log, no partial file.

All else continues to work. Instead of a full disk, there is a limit on file size (RLIMIT_FSIZE): the system writes the
first bytes and then refuses.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

LIMIT_BYTES = 512
GLOSSARY = {"name": "mine", "source_lang": "en", "target_lang": "de", "entries_format": "tsv"}
SUGGESTION = {"s": "Das Haus.", "source": "en", "target": "de"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    model = write_translator(tmp_path / "translator", "en", "de")
    files = ("--glossaries", str(tmp_path / "stored"), "--suggestions", str(tmp_path / "suggestions"))
    process = Process(f"translator={model}", *files, *LONG_LIMITS)
    try:
        yield process.wait_ready()
    finally:
        process.stop()


def store(server: Process, terms: int) -> httpx.Response:
    entries = "\n".join(f"term {number}\tWort {number}" for number in range(terms))
    return server.post("/v2/glossaries", json=GLOSSARY | {"entries": entries})


def suggest(server: Process, text: str) -> httpx.Response:
    return server.post("/suggest", json=SUGGESTION | {"q": text})


def fill_disk(server: Process, is_full: bool = True) -> None:
    limit = LIMIT_BYTES if is_full else resource.RLIM_INFINITY
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def test_a_full_disk_is_503_and_leaves_no_part_of_a_file(server: Process, tmp_path: Path) -> None:
    small = store(server, 1)
    assert small.status_code == 201 and suggest(server, "a").status_code == 200
    path = f"/v3/glossaries/{small.json()['glossary_id']}"
    fill_disk(server)
    entries = "\n".join(f"word {number}\tb" for number in range(99))
    large = [{"source_lang": "en", "target_lang": "de", "entries_format": "tsv", "entries": entries}]
    for refused in (
        store(server, 99),
        httpx.patch(server.url + path, json={"dictionaries": large}, timeout=HANG_SECONDS),
    ):
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0, refused.text
        assert refused.json() == {"message": "the server cannot store glossaries now"}
    assert len(server.get("/v2/glossaries").json()["glossaries"]) == 1
    assert server.get(path).json()["dictionaries"][0]["entry_count"] == 1
    assert [file.suffix for file in (tmp_path / "stored").iterdir()] == [".json"]
    assert suggest(server, "b" * 600).status_code == 503
    assert server.get("/health").status_code == 200
    fill_disk(server, False)
    assert store(server, 99).status_code == 201 and suggest(server, "c").status_code == 200
    lines = [json.loads(line)["text"] for line in (tmp_path / "suggestions").read_text().splitlines()]
    assert lines == ["a", "c"]
    assert server.output.count("cannot be stored: ") == 3 and "Traceback" not in server.output
    assert str(tmp_path) not in refused.text


def test_a_directory_that_is_gone_is_503(server: Process, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "stored")
    refused = store(server, 1)
    assert refused.status_code == 503 and server.get("/v2/glossaries").json() == {"glossaries": []}
