"""DeepL's routes for stored glossaries over a socket: versions 2 and 3, API keys, and files that outlive the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

BODY = {"name": "mine", "source_lang": "EN", "target_lang": "DE", "entries": "house\tHaus\nred\trot"}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("glossaries")
    (root / "keys").write_text("one\ntwo\n")
    model = write_translator(root / "translator", "en", "de")
    files = ("--api-key-file", str(root / "keys"), "--glossaries", str(root / "stored"))
    return [f"translator={model}", *files, *LONG_LIMITS]


@pytest.fixture
def http(arguments: list[str]) -> Iterator[httpx.Client]:
    server = Process(*arguments)
    try:
        server.wait_ready()
        headers = {"Authorization": "DeepL-Auth-Key one"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=HANG_SECONDS) as client:
            yield client
    finally:
        server.stop()


def create(client: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = client.post("/v2/glossaries", json={**BODY, "entries_format": "tsv", **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_version_2(http: httpx.Client) -> None:
    made = create(http)
    assert (made["name"], made["ready"], made["entry_count"]) == ("mine", True, 2)
    assert (made["source_lang"], made["target_lang"]) == ("en", "de")
    path = f"/v2/glossaries/{made['glossary_id']}"
    assert http.get(path).json() == made and made in http.get("/v2/glossaries").json()["glossaries"]
    entries = http.get(f"{path}/entries", headers={"Accept": "text/tab-separated-values"})
    assert entries.text == BODY["entries"] and entries.headers["content-type"].startswith("text/tab-separated-values")
    form = {**BODY, "entries": '"a, b",c,en,de\n\nd,e', "entries_format": "csv"}
    other = http.post("/v2/glossaries", data=form).json()
    assert http.get(f"/v2/glossaries/{other['glossary_id']}/entries").text == "a, b\tc\nd\te"
    pairs = http.get("/v2/glossary-language-pairs").json()
    assert pairs == {"supported_languages": [{"source_lang": "en", "target_lang": "de"}]}
    stranger = {"Authorization": "DeepL-Auth-Key two"}
    assert http.get(path, headers=stranger).status_code == http.delete(path, headers=stranger).status_code == 404
    assert http.get("/v2/glossaries", headers=stranger).json() == {"glossaries": []}
    deleted = http.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"") and http.get(path).status_code == 404


def test_version_3(http: httpx.Client) -> None:
    one = {"source_lang": "en", "target_lang": "de", "entries": "a\tb", "entries_format": "tsv"}
    two = {"source_lang": "de", "target_lang": "en-US", "entries": "b\ta", "entries_format": "tsv"}
    answer = http.post("/v3/glossaries", json={"name": "both", "dictionaries": [one, two]})
    assert answer.status_code == 201
    made = answer.json()
    assert [(d["source_lang"], d["target_lang"], d["entry_count"]) for d in made["dictionaries"]] == [
        ("en", "de", 1),
        ("de", "en", 1),
    ]
    path = f"/v3/glossaries/{made['glossary_id']}"
    changed = http.patch(path, json={"name": "new", "dictionaries": [{**one, "entries": "c\td\na\tx"}]}).json()
    assert (changed["name"], changed["dictionaries"][0]["entry_count"]) == ("new", 2)
    pair = {"source_lang": "EN", "target_lang": "DE"}
    (found,) = http.get(f"{path}/entries", params=pair).json()["dictionaries"]
    assert (found["entries"], found["entries_format"]) == ("a\tx\nc\td", "tsv")
    assert http.put(f"{path}/dictionaries", json={**one, "entries": "e\tf"}).json()["entry_count"] == 1
    assert http.get(f"{path}/entries", params={"source_lang": "fr", "target_lang": "de"}).status_code == 404
    assert http.delete(f"{path}/dictionaries", params=pair).status_code == 204
    assert len(http.get(path).json()["dictionaries"]) == 1
    assert http.delete(f"{path}/dictionaries", params={"source_lang": "de", "target_lang": "en"}).status_code == 204
    assert http.get(path).json()["dictionaries"] == []
    for shown in ("", "/entries"):
        assert http.get(f"/v2/glossaries/{made['glossary_id']}{shown}").status_code == 404
    listed = [glossary["glossary_id"] for glossary in http.get("/v2/glossaries").json()["glossaries"]]
    assert made["glossary_id"] not in listed
    body = {"text": ["a"], "source_lang": "EN", "target_lang": "DE", "glossary_id": made["glossary_id"]}
    refused = http.post("/v2/translate", json=body)
    assert refused.status_code == 400 and "no dictionary for en-de" in refused.json()["message"]
    added = http.put(
        f"{path}/dictionaries", data={**one, "entries": "g,h\ni,j,en,de\nk,l,en,fr\nm,n,??,", "entries_format": "csv"}
    )
    assert added.json()["entry_count"] == 2, "DeepL ignores lines of CSV that name another pair"
    assert http.get(f"/v2/glossaries/{made['glossary_id']}/entries").text == "g\th\ni\tj"
    assert made["glossary_id"] in [
        glossary["glossary_id"] for glossary in http.get("/v3/glossaries").json()["glossaries"]
    ]
    assert http.delete(path).status_code == 204


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"entries": "a"}, "entry 1"),
        ({"entries": "a\tb\nc\t"}, "empty translation in entry 2"),
        ({"entries": "a\tb\na\tc"}, "twice"),
        ({"entries": " "}, "no entry"),
        ({"entries": f"a\t{'b' * 65}"}, "65 characters"),
        ({"entries": "a\x01\tb"}, "control character"),
        ({"source_lang": "de"}, "have to differ"),
        ({"source_lang": "??"}, "`source_lang`"),
        ({"entries_format": "xml"}, "entries_format"),
        ({"name": ""}, "name"),
    ],
)
def test_what_is_refused(client: httpx.Client, fields: dict[str, str], message: str) -> None:
    answer = client.post("/v2/glossaries", json={**BODY, "entries_format": "tsv", **fields})
    assert answer.status_code == 400 and message in answer.json()["message"], answer.text


def test_requests_that_name_a_glossary(client: httpx.Client) -> None:
    """The fake engine ignores terms. `tests/clients/test_deepl.py` tests their effect on translations."""
    made = create(client)["glossary_id"]
    body = {"text": ["The house."], "target_lang": "DE", "glossary_id": made}
    refused = client.post("/v2/translate", json=body)
    assert refused.status_code == 400 and "source_lang" in refused.json()["message"]
    body["source_lang"] = "EN"
    assert client.post("/v2/translate", json={**body, "glossary_id": "none"}).status_code == 400
    both = client.post("/v2/translate", json={**body, "glossary_ids": [made]})
    assert both.status_code == 400 and "glossary_ids" in both.json()["message"]
    other = client.post("/v2/translate", json={**body, "target_lang": "FR"})
    assert other.status_code == 400 and "en-fr" in other.json()["message"]
    files = {"file": ("a.txt", "The house.")}
    form = {"target_lang": "DE", "source_lang": "EN", "glossary_id": "none"}
    assert client.post("/v2/document", data=form, files=files).status_code == 400


def test_glossaries_in_a_directory_outlive_the_server(arguments: list[str]) -> None:
    directory = Path(arguments[arguments.index("--glossaries") + 1])
    headers = {"Authorization": "DeepL-Auth-Key one"}
    for attempt in range(2):
        server = Process(*arguments)
        try:
            url = f"{server.wait_ready().url}/v2/glossaries"
            if not attempt:
                made = httpx.post(url, json={**BODY, "entries_format": "tsv"}, headers=headers).json()
            else:
                assert httpx.get(f"{url}/{made['glossary_id']}", headers=headers).json() == made
                stranger = {"Authorization": "DeepL-Auth-Key two"}
                assert httpx.get(f"{url}/{made['glossary_id']}", headers=stranger).status_code == 404
        finally:
            server.stop()
    file = directory / f"{made['glossary_id']}.json"
    assert json.loads(file.read_text())["dictionaries"][0]["entries"] == {"house": "Haus", "red": "rot"}
    assert "one" not in json.loads(file.read_text())["owner"]
    file.write_text("{}")
    server = Process(*arguments)
    assert server.wait() == 2 and "is no glossary" in server.output
    file.unlink()
