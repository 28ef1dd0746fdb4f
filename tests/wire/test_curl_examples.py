"""The `curl` commands in the documentation of LibreTranslate and DeepL work with our host and key.

The fake engine repeats texts instead of translating them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import HANG_SECONDS, eventually
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

KEY = "279a2e9d-83b3-c416-7e2d-f721593e42a0:fx"
AUTH = "--header 'Authorization: DeepL-Auth-Key KEY'"
TYPE = "--header 'Content-Type: application/json'"
_LINES = Path(__file__).with_name("curl_examples.txt").read_text().splitlines()
EXAMPLES = list(zip(_LINES[::2], _LINES[1::2], strict=True))
"""Pairs of a command and of what its answer must contain: members of an object, or items of a list."""
Curl = Callable[..., str]


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curl]:
    """A function that runs a command in a folder with two documents. It first replaces HOST, KEY and similar names."""
    root = tmp_path_factory.mktemp("curl")
    (root / "keys").write_text(KEY + "\n")
    (root / "document.txt").write_text("Hello, world!\n")
    (root / "document.md").write_text("# Hello, **world**!\n")
    models = [
        f"translator-{source}-{target}={write_translator(root / f'{source}-{target}', source, target)}"
        for source, target in (("en", "de"), ("en", "es"), ("fr", "en"))
    ]
    suggestions = ("--suggestions", str(root / "suggestions"))
    server = Process(
        *models,
        "--api-key-file",
        str(root / "keys"),
        *suggestions,
        *LONG_LIMITS,
        environment={"FAKE_WORKER_BLOCKS": "640"},
    )

    def run(command: str, **names: str) -> str:
        for name, value in {"HOST": server.url, "KEY": KEY, **names}.items():
            command = command.replace(name, value)
        done = subprocess.run(
            ["bash", "-c", f"curl -sS --fail-with-body --noproxy '*' {command}"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    try:
        server.wait_ready()
        yield run
    finally:
        server.stop()


@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_an_example(curl: Curl, command: str, expected: str) -> None:
    answer, members = json.loads(curl(command)), json.loads(expected.removeprefix("= "))
    assert answer and type(answer) is type(members)
    if isinstance(members, dict):
        assert members.items() <= answer.items(), answer
    else:
        assert all(member in answer for member in members), answer


def test_libretranslate_files(curl: Curl) -> None:
    form = "-H 'accept: application/json' -H 'Content-Type: multipart/form-data'"
    fields = "-F 'file=@document.txt;type=text/plain' -F 'source=en' -F 'target=es' -F 'api_key=KEY'"
    url = json.loads(curl(f"-X 'POST' 'HOST/translate_file' {form} {fields}"))["translatedFileUrl"]
    assert curl(f"'{url}'") == "Hello, world!\n"


@pytest.mark.parametrize("name", ["document.txt", "document.md"])
@pytest.mark.parametrize(
    "fields", ["--data-raw 'document_key=SECRET'", f'{TYPE} --data \'{{"document_key": "SECRET"}}\'']
)
def test_deepl_documents(curl: Curl, name: str, fields: str) -> None:
    form = f"--form 'target_lang=DE' --form 'file=@{name}'"
    handle = json.loads(curl(f"-X POST 'HOST/v2/document' {AUTH} {form}"))
    names = {"ID": handle["document_id"], "SECRET": handle["document_key"]}
    status = f"-X POST 'HOST/v2/document/ID' {AUTH} {fields}"
    eventually(lambda: json.loads(curl(status, **names))["status"] == "done")
    result = curl(f"-X POST 'HOST/v2/document/ID/result' {AUTH} {fields}", **names)
    assert result == ("Hello, world!\n" if name.endswith("txt") else "# Hello, **world**!\n")


def test_deepl_glossaries(curl: Curl) -> None:
    pair = '"source_lang": "en", "target_lang": "de"'
    entries = f'{pair}, "entries": "Hello\\tGuten Tag", "entries_format": "tsv"'
    body = f'{{"name": "My Glossary", {entries}}}'
    made = json.loads(curl(f"-X POST 'HOST/v2/glossaries' {AUTH} {TYPE} --data '{body}'"))
    names = {"ID": made["glossary_id"]}
    assert made["entry_count"] == 1
    assert made in json.loads(curl(f"-X GET 'HOST/v2/glossaries' {AUTH}"))["glossaries"]
    accept = "--header 'Accept: text/tab-separated-values'"
    assert curl(f"-X GET 'HOST/v2/glossaries/ID/entries' {AUTH} {accept}", **names) == "Hello\tGuten Tag"
    text = f'{{"text": ["A world!"], {pair}, "glossary_id": "ID"}}'
    assert json.loads(curl(f"-X POST 'HOST/v2/translate' {AUTH} {TYPE} --data '{text}'", **names))["translations"]
    curl(f"-X DELETE 'HOST/v2/glossaries/ID' {AUTH}", **names)


def test_deepl_glossaries_of_version_3(curl: Curl) -> None:
    """The commands of DeepL's page, in the page's order, without the one whose JSON is invalid."""
    back = '{"source_lang": "de", "target_lang": "en", "entries": "Guten Tag\\tHello", "entries_format": "tsv"}'
    there = '{"source_lang": "en", "target_lang": "de", "entries": "Hello\\tGuten Tag", "entries_format": "tsv"}'
    body = f'{{"name": "My Glossary", "dictionaries": [{there}, {back}]}}'
    made = json.loads(curl(f"-X POST 'HOST/v3/glossaries' {AUTH} {TYPE} --data '{body}'"))
    names = {"ID": made["glossary_id"]}
    both = [
        {"source_lang": "en", "target_lang": "de", "entry_count": 1},
        {"source_lang": "de", "target_lang": "en", "entry_count": 1},
    ]
    assert (made["name"], made["dictionaries"]) == ("My Glossary", both)
    text = '{"text": ["Hello"], "source_lang": "EN", "target_lang": "DE", "glossary_id": "ID"}'
    assert json.loads(curl(f"-X POST 'HOST/v2/translate' {AUTH} {TYPE} --data '{text}'", **names))["translations"]
    assert made in json.loads(curl(f"-X GET 'HOST/v3/glossaries' {AUTH}"))["glossaries"]
    assert json.loads(curl(f"-X GET 'HOST/v3/glossaries/ID' {AUTH}", **names)) == made
    query = "source_lang=en&target_lang=de"
    found = json.loads(curl(f"-X GET 'HOST/v3/glossaries/ID/entries?{query}' {AUTH} {TYPE}", **names))
    assert found == {"dictionaries": [json.loads(there)]}
    put = json.loads(curl(f"-X PUT 'HOST/v3/glossaries/ID/dictionaries' {AUTH} {TYPE} --data '{there}'", **names))
    assert put == both[0]
    renamed = curl(
        f"-X PATCH 'HOST/v3/glossaries/ID' {AUTH} {TYPE} --data '{{\"name\": \"Gus the glossary\"}}'", **names
    )
    assert json.loads(renamed)["name"] == "Gus the glossary"
    more = '{"source_lang": "en", "target_lang": "de", "entries": "Goodbye\\tTschüß", "entries_format": "tsv"}'
    body = f'{{"name": "Gertrude the glossary", "dictionaries": [{more}]}}'
    changed = json.loads(curl(f"-X PATCH 'HOST/v3/glossaries/ID' {AUTH} {TYPE} --data '{body}'", **names))
    assert changed["dictionaries"] == [{**both[0], "entry_count": 2}, both[1]]
    for pair in (query, "source_lang=de&target_lang=en"):
        assert curl(f"-X DELETE 'HOST/v3/glossaries/ID/dictionaries?{pair}' {AUTH}", **names) == ""
    assert json.loads(curl(f"-X GET 'HOST/v3/glossaries/ID' {AUTH}", **names))["dictionaries"] == []
    assert curl(f"-X DELETE 'HOST/v3/glossaries/ID' {AUTH}", **names) == ""
