"""LibreTranslate's `/suggest` over a socket adds a line to a file, or gives 403 if no file is configured."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

FIELDS = {"q": "The house.", "s": "Das Haus.", "source": "en", "target": "de"}


def test_without_a_file(client: httpx.Client) -> None:
    refused = client.post("/suggest", json=FIELDS)
    assert refused.status_code == 403 and "--suggestions" in refused.json()["error"]
    assert client.get("/frontend/settings").json()["suggestions"] is False


def test_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n")
    file = tmp_path / "suggestions.jsonl"
    model = write_translator(tmp_path / "translator", "en", "de")
    files = ("--api-key-file", str(tmp_path / "keys"), "--suggestions", str(file))
    server = Process(f"translator={model}", *files, *LONG_LIMITS)
    try:
        server.wait_ready()
        assert server.post("/suggest", json=FIELDS).status_code == 403
        assert server.post("/suggest", json=FIELDS | {"api_key": "one"}).json() == {"success": True}
        assert server.post("/suggest", data=FIELDS | {"api_key": "one", "s": "Ein \n Haus"}).json() == {"success": True}
        assert server.post("/suggest", json=FIELDS | {"api_key": "one", "s": ""}).status_code == 400
        settings = server.get("/frontend/settings", params={"api_key": "one"}).json()
        assert settings["suggestions"] is True
    finally:
        server.stop()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["suggestion"] for line in lines] == ["Das Haus.", "Ein \n Haus"]
    assert (lines[0]["source"], lines[0]["target"], lines[0]["text"]) == ("en", "de", "The house.")
