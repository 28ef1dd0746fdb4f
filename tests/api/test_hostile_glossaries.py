"""Hostile glossaries: bodies of any size and shape, ids, names, other API keys, full stores, requests at once."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import httpx
import pytest

from server.api.dialects.deepl.glossary_bodies import _LINE, MAX_LINE_CHARACTERS, DeeplDictionary
from server.errors import RequestError
from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis
from server.operations import glossary_store
from server.operations.generating.generation_options import GenerationOptions
from server.operations.glossary_store import GlossaryStore
from server.operations.pools import TOKENIZER_THREADS
from server.operations.translating import glossary as request_glossary
from server.operations.translating.translate import TranslateSpec
from server.settings.settings import Settings
from server.text.languages.glossary import Glossary
from tests.api.conftest import Bench

TSV = {"name": "mine", "source_lang": "en", "target_lang": "de", "entries_format": "tsv"}
CSV = TSV | {"entries_format": "csv"}
UNKNOWN = "def3a26b-3e84-45b3-84ae-0c0aaf3525f7"
SIZE = 2_000_000
"""Characters of large texts. In a multipart form, which escapes nothing, they are just below the limit of a body."""
SECRET = "Geheimnis"

LARGE: dict[str, tuple[dict[str, str], str, str]] = {
    "line breaks": (TSV, "\n" * SIZE, "`entries` has no entry"),
    "carriage returns": (TSV, "\r" * SIZE, "`entries` has no entry"),
    "spaces": (TSV, " " * SIZE, "`entries` has no entry"),
    "tabs": (TSV, "\t" * SIZE, "`entries` has no entry"),
    "tabs after a letter": (TSV, "a" + "\t" * SIZE, "2,000,001 characters in entry 1; the limit is 1,024"),
    "commas": (CSV, "," * SIZE, "2,000,000 characters in entry 1; the limit is 1,024"),
    "quotes": (CSV, '"' * SIZE, "2,000,000 characters in entry 1; the limit is 1,024"),
    "a quote that stays open": (CSV, '"' + "\n" * SIZE, "`entries` is not CSV in entry 1"),
    "a quote that closes in another line": (CSV, '"a\nb",c', "`entries` is not CSV in entry 1"),
    "equal lines": (TSV, "a\tb\n" * (SIZE // 4), "`entries` has the term of entry 2 twice"),
    "tiny lines": (TSV, "\n".join(f"{n:x}\tb" for n in range(200_000)), "10,001 or more entries; the limit is 10,000"),
    "tiny lines of CSV": (CSV, "\n".join(f"{n:x},b" for n in range(200_000)), "10,001 or more entries"),
    "lines of other languages": (CSV, "a,b,fr,de\n" * (SIZE // 10), "`entries` has no entry"),
    "lines of many languages": (
        CSV,
        "\n".join(f"a,b,{''.join(code)},fr" for code in product(ascii_lowercase, repeat=3)),
        "`entries` has no entry",
    ),
    "lines without a tab": (TSV, "a\n" * (SIZE // 2), "no term and translation in entry 1"),
    "a term of a megabyte": (TSV, "x" * SIZE + "\tb", "2,000,002 characters in entry 1; the limit is 1,024"),
    "a field of a megabyte": (CSV, "a,b\nc," + "x" * SIZE, "2,000,002 characters in entry 2; the limit is 1,024"),
    "a language of a thousand characters": (CSV, f"a,b,{'e' * 1000},de", "`entries` has no entry"),
}
"""Fields of the body, its entries, and the error."""
SMALL: dict[str, tuple[str, str]] = {
    "a term of 65 characters": ("a" * 65 + "\tb", "a term of 65 characters in entry 1; the limit is 64"),
    "a translation of 65 characters": ("a\tb\nc\t" + "語" * 65, "of 65 characters in entry 2; the limit is 64"),
    "NUL": ("a\x00b\tc", "control character in entry 1"),
    "escape": ("a\tb\nc\t\x1b[2J", "control character in entry 2"),
    "C1": ("a\x9bb\tc", "control character in entry 1"),
    "line separator": ("a\tb\u2028c\td", "no term and translation in entry 1"),
    "line separator in a translation": ("a\tb\u2028c", "control character in entry 1"),
    "next line": ("a\tb\x85c", "control character in entry 1"),
    "form feed": ("a\tb\fc", "control character in entry 1"),
    "one term in two forms": ("house\tHaus\n house \tHaus", "the term of entry 2 twice"),
    "three fields": ("a\tb\tc", "no term and translation in entry 1"),
    "a term of spaces": (" \u3000\tb", "empty term in entry 1"),
}
"""Entries in TSV, and the error."""
BODIES: dict[str, tuple[str, str]] = {
    "lone surrogate in a term": ('"entries": "a\\ud800\\tb"', "not valid JSON"),
    "lone surrogate in a name": ('"entries": "a\\tb", "name": "\\udfff"', "not valid JSON"),
    "name of 1,025 characters": (f'"entries": "a\\tb", "name": "{"x" * 1025}"', "`name`"),
    "name of a number": ('"entries": "a\\tb", "name": 1', "`name`"),
    "entries of a list": ('"entries": [["a", "b"]]', "`entries`"),
    "entries of 20,000 objects": (f'"entries": [{",".join(["{}"] * 20_000)}]', "lists and objects"),
    "nesting": (f'"entries": {"[" * 200}{"]" * 200}', "nesting"),
    "unknown field": ('"entries": "a\\tb", "path": "/etc/passwd"', "`path`"),
    "an id of the client": (f'"entries": "a\\tb", "glossary_id": "{UNKNOWN}"', "`glossary_id`"),
}
"""Members of a JSON body besides the languages and the format, and the error."""
IDS = (
    "..",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f" * 20,
    "%00",
    "a%00b",
    "a%0d%0aSet-Cookie:%20x=1",
    "%ed%a0%80",
    "%ff",
    "x" * 5000,
    "def3a26b-3e84-45b3-84ae-0c0aaf3525f7.json",
    "*",
    " ",
)


@pytest.fixture
async def two_keys(tmp_path: Path) -> AsyncIterator[tuple[Bench, httpx.AsyncClient]]:
    """An application with the API keys `one` and `two`, which keeps glossaries in the folder `stored`."""
    bench = Bench(tmp_path / "models", Settings(api_keys="one,two"))
    bench.runtime.glossaries = GlossaryStore(tmp_path / "stored")
    bench.state.use_keys(bench.state.keys)
    bench.become_ready()
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield bench, client
    bench.runtime.pools.close()


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"DeepL-Auth-Key {name}"}


async def create(http: httpx.AsyncClient, owner: str = "", **fields: Any) -> str:
    """Store a glossary, and return its id. owner: API key."""
    body = TSV | {"entries": "house\tHaus"} | fields
    answer = await http.post("/v2/glossaries", json=body, headers=key(owner) if owner else {})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["glossary_id"])


def refused(answer: httpx.Response, part: str) -> None:
    """Check a refusal. part: of its message. The message is short, and has no control characters."""
    message = answer.json()["message"]
    assert answer.status_code == 400 and part in message, message[:300]
    assert len(message) < 400 and message.isprintable()


@pytest.mark.parametrize("name", LARGE)
async def test_large_entries_are_refused(name: str, bench: Bench, http: httpx.AsyncClient) -> None:
    fields, entries, part = LARGE[name]
    form = {field: (None, text) for field, text in (fields | {"entries": entries}).items()}
    refused(await http.post("/v2/glossaries", files=form), part)
    assert bench.runtime.glossaries.all("") == []


@pytest.mark.parametrize("name", LARGE)
def test_large_entries_take_little_memory(name: str) -> None:
    """The entries are read line by line. A list of 500,000 lines would take 110 MB."""
    fields, entries, _ = LARGE[name]
    chosen = {name: value for name, value in fields.items() if name != "name"}
    body = DeeplDictionary.model_validate(chosen | {"entries": entries})
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            body.parsed()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", SMALL)
async def test_entries_that_are_refused(name: str, http: httpx.AsyncClient) -> None:
    entries, part = SMALL[name]
    refused(await http.post("/v2/glossaries", json=TSV | {"entries": entries}), part)
    refused(await http.post("/v2/glossaries", data=TSV | {"entries": entries}), part)


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_that_are_refused(name: str, http: httpx.AsyncClient) -> None:
    members, part = BODIES[name]
    start = '{"source_lang": "en", "target_lang": "de", "entries_format": "tsv", "name": "mine", '
    content = f"{start}{members}}}".encode()
    refused(await http.post("/v2/glossaries", content=content, headers={"Content-Type": "application/json"}), part)


ORDINARY: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    "TSV": (TSV, "Hello\tHallo\nartist\tMaler", {"Hello": "Hallo", "artist": "Maler"}),
    "TSV with CR LF": (TSV, "Hello\tHallo\r\nartist\tMaler\r\n", {"Hello": "Hallo", "artist": "Maler"}),
    "TSV with empty lines and spaces": (
        TSV,
        "\n Hello \t Hallo \n \t \n\nartist\tMaler",
        {"Hello": "Hallo", "artist": "Maler"},
    ),
    "TSV with quotes": (TSV, 'the "house"\tdas "Haus"', {'the "house"': 'das "Haus"'}),
    "CSV": (CSV, "Hello,Hallo\r\nartist,Maler", {"Hello": "Hallo", "artist": "Maler"}),
    "CSV with quoted fields": (CSV, '"Hello, you","Hallo ""du"""\nb,c\n', {"Hello, you": 'Hallo "du"', "b": "c"}),
    "CSV with languages": (CSV, '"a",b,EN,de\nc,d,en,fr\ne,f', {"a": "b", "e": "f"}),
    "no letters of ASCII": (
        CSV,
        "".join(f"{chr(0x4E00 + n) * 64},{'語' * 64}\n" for n in range(200)),
        {chr(0x4E00 + n) * 64: "語" * 64 for n in range(200)},
    ),
    "every character a quote": (CSV, f"""{'"' * 130},{'"' * 130},en,de""", {'"' * 64: '"' * 64}),
}
"""Fields of the body, its entries, and what is stored."""


@pytest.mark.parametrize("name", ORDINARY)
async def test_ordinary_entries_are_stored(name: str, bench: Bench, http: httpx.AsyncClient) -> None:
    fields, entries, expected = ORDINARY[name]
    for body in ({"json": fields | {"entries": entries}}, {"data": fields | {"entries": entries}}):
        answer = await http.post("/v2/glossaries", **body)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["entry_count"]) == (201, len(expected)), answer.text
        assert bench.runtime.glossaries.get("", answer.json()["glossary_id"]).dictionaries == {("en", "de"): expected}


async def test_text_that_only_looks_dangerous_is_stored_as_it_is(http: httpx.AsyncClient) -> None:
    """Directions of writing, marks and prefixes are parts of languages: they are stored and returned unchanged."""
    entries = {f"{'ab' * length}": "x" for length in range(1, 33)}
    entries |= {"a\u202eb": "c\u2066d", "e\u0301" * 30: "\U0001f468\u200d\U0001f469", "=cmd|' /C calc'!A0": "%s{0}${x}"}
    tsv = "\n".join(map("\t".join, entries.items()))
    made = await create(http, entries=tsv)
    found = await http.get(f"/v2/glossaries/{made}/entries")
    assert found.text == tsv and found.headers["content-type"].startswith("text/tab-separated-values")


async def test_a_name_stays_in_the_body_of_the_answer(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"a\r\nSet-Cookie: {SECRET}=1\r\n\r\n<script>\x1b[2J\x00\u202e/../.."
    with caplog.at_level(logging.DEBUG):
        made = await create(http, name=name)
        answers = [await http.get(path) for path in (f"/v2/glossaries/{made}", "/v2/glossaries", "/v3/glossaries")]
    for answer in answers:
        assert answer.status_code == 200 and SECRET not in str(answer.headers)
        assert answer.headers["content-type"].startswith("application/json")
    assert answers[0].json()["name"] == name and SECRET not in caplog.text


@pytest.mark.parametrize("glossary_id", IDS)
async def test_an_id_is_no_path(glossary_id: str, two_keys: tuple[Bench, httpx.AsyncClient], tmp_path: Path) -> None:
    bench, http = two_keys
    made = await create(http, "one")
    before = sorted(tmp_path.rglob("*"))
    for version, method in (("v2", "GET"), ("v2", "DELETE"), ("v3", "GET"), ("v3", "PATCH"), ("v3", "DELETE")):
        changes = {"name": "new"} if method == "PATCH" else None
        answer = await http.request(method, f"/{version}/glossaries/{glossary_id}", headers=key("one"), json=changes)
        assert answer.status_code in (404, 405), answer.text
        assert str(tmp_path) not in answer.text and "passwd" not in answer.text and "xxx" not in answer.text
        assert "set-cookie" not in answer.headers
    texts = {"text": ["The house."], "source_lang": "EN", "target_lang": "DE", "glossary_id": glossary_id}
    refused(await http.post("/v2/translate", json=texts, headers=key("one")), "`glossary_id`")
    assert sorted(tmp_path.rglob("*")) == before and [own.id for own in bench.runtime.glossaries.all("")] == []
    assert (await http.get(f"/v2/glossaries/{made}", headers=key("one"))).status_code == 200


async def test_another_key_learns_nothing(two_keys: tuple[Bench, httpx.AsyncClient]) -> None:
    """For another API key, each route answers as if the glossary did not exist, and changes nothing."""
    _, http = two_keys
    made = await create(http, "one", name=SECRET, entries=f"house\t{SECRET}")
    one = {"source_lang": "en", "target_lang": "de", "entries": "a\tb", "entries_format": "tsv"}
    pair = {"source_lang": "en", "target_lang": "de"}
    texts = {"text": ["The house."], "source_lang": "EN", "target_lang": "DE"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/v2/glossaries/{}", {}),
        ("GET", "/v2/glossaries/{}/entries", {}),
        ("DELETE", "/v2/glossaries/{}", {}),
        ("GET", "/v3/glossaries/{}", {}),
        ("GET", "/v3/glossaries/{}/entries", {"params": pair}),
        ("PATCH", "/v3/glossaries/{}", {"json": {"name": "stolen"}}),
        ("PUT", "/v3/glossaries/{}/dictionaries", {"json": one}),
        ("DELETE", "/v3/glossaries/{}/dictionaries", {"params": pair}),
        ("DELETE", "/v3/glossaries/{}", {}),
        ("POST", "/v2/translate", {"json": texts | {"glossary_id": "ID"}}),
        ("POST", "/v2/translate", {"json": texts | {"glossary_ids": ["ID"]}}),
    ]
    for method, path, more in requests:
        answers = []
        for glossary_id in (made, UNKNOWN):
            filled = json.loads(json.dumps(more).replace("ID", glossary_id))
            answers.append(await http.request(method, path.format(glossary_id), headers=key("two"), **filled))
        assert answers[0].status_code == answers[1].status_code in (400, 404), (method, path)
        assert answers[0].json() == answers[1].json() and SECRET not in answers[0].text
    for path in ("/v2/glossaries", "/v3/glossaries"):
        assert (await http.get(path, headers=key("two"))).json() == {"glossaries": []}
        assert (await http.get(path)).status_code == 403
    kept = await http.get(f"/v2/glossaries/{made}/entries", headers=key("one"))
    assert kept.text == f"house\t{SECRET}"


async def test_many_glossaries(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossary_store, "MAX_GLOSSARIES", 2)
    made = [await create(http) for _ in range(2)]
    refused(await http.post("/v2/glossaries", json=TSV | {"entries": "a\tb"}), "2 glossaries, which is the limit")
    assert (await http.delete(f"/v2/glossaries/{made[0]}")).status_code == 204
    await create(http)


async def test_many_dictionaries(http: httpx.AsyncClient) -> None:
    """No route adds more than 100 dictionaries. A list of all glossaries would become too long."""
    codes = ["".join(code) for code in product("xyz", repeat=3)]
    pairs = [(a, b) for a, b in product(codes, codes) if a != b][:101]
    bodies = [{"source_lang": a, "target_lang": b, "entries": "a\tb", "entries_format": "tsv"} for a, b in pairs]
    answer = await http.post("/v3/glossaries", json={"name": "a", "dictionaries": bodies[:100]})
    assert answer.status_code == 201
    path = f"/v3/glossaries/{answer.json()['glossary_id']}"
    refused(await http.put(f"{path}/dictionaries", json=bodies[100]), "101 dictionaries; the limit is 100")
    refused(await http.patch(path, json={"dictionaries": bodies[100:]}), "101 dictionaries; the limit is 100")
    refused(await http.post("/v3/glossaries", json={"name": "a", "dictionaries": bodies}), "`dictionaries`")
    assert (await http.put(f"{path}/dictionaries", json=bodies[0])).status_code == 200


async def test_names_and_empty_glossaries_take_room(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names count for the memory of the API key, and so do glossaries whose last dictionary was deleted."""
    monkeypatch.setattr(glossary_store, "MAX_BYTES", 100_000)
    pair = {"source_lang": "en", "target_lang": "de"}
    name = "\U0001f600" * 1000
    stored = 0
    for _ in range(30):
        body = TSV | {"name": name, "entries": "a\tb"}
        answer = await http.post("/v2/glossaries", json=body)
        if answer.status_code != 201:
            break
        stored += 1
        path = f"/v3/glossaries/{answer.json()['glossary_id']}/dictionaries"
        assert (await http.delete(path, params=pair)).status_code == 204
    refused(answer, "MiB of memory; the limit is 0.1 MiB")
    # CPython may keep the UTF-8 of a string beside its characters, and then counts it.
    most, least = (glossary_store.GLOSSARY_BYTES + size for size in (2 * sys.getsizeof(name), 4 * len(name)))
    dictionary = glossary_store.DICTIONARY_BYTES + glossary_store.TERM_BYTES + 2
    assert (100_000 - dictionary) // most <= stored <= (100_000 - dictionary) // least


async def test_large_answers_are_sent_in_pieces(bench: Bench, http: httpx.AsyncClient) -> None:
    """A client that reads slowly would otherwise keep 5 MB of entries, or 10 MB of a list, in memory."""
    entries = {f"{number:\u8a9e>64}": "語" * 63 + '"' for number in range(10_000)}
    store = bench.runtime.glossaries
    made = store.create("", "large", {("en", "de"): entries, ("en", "fr"): {"a": "b"}})
    tsv = "\n".join(map("\t".join, entries.items()))
    found = await http.get(f"/v2/glossaries/{made.id}/entries")
    assert found.text == tsv and "content-length" not in found.headers
    assert found.headers["content-type"] == "text/tab-separated-values; charset=utf-8"
    path = f"/v3/glossaries/{made.id}/entries"
    found = await http.get(path, params={"source_lang": "en", "target_lang": "de"})
    assert found.json()["dictionaries"] == [
        {"source_lang": "en", "target_lang": "de", "entries": tsv, "entries_format": "tsv"}
    ]
    assert "content-length" not in found.headers and found.headers["content-type"] == "application/json"
    small = await http.get(path, params={"source_lang": "en", "target_lang": "fr"})
    assert small.json()["dictionaries"][0]["entries"] == "a\tb" and "content-length" in small.headers
    names = [f"{number}" + "\U0001f600" * 1000 for number in range(200)]
    for name in names:
        store.create("", name, {("en", "de"): {"a": "b"}})
    for path in ("/v2/glossaries", "/v3/glossaries"):
        found = await http.get(path)
        assert [glossary["name"] for glossary in found.json()["glossaries"]] == ["large", *names]
        assert "content-length" not in found.headers


async def test_a_growing_dictionary_is_refused_as_a_whole(http: httpx.AsyncClient) -> None:
    made = await create(http, entries="\n".join(f"t{number}\tx" for number in range(9_999)))
    path = f"/v3/glossaries/{made}"
    more = {"source_lang": "en", "target_lang": "de", "entries_format": "tsv", "entries": "u\tx\nv\tx"}
    refused(await http.patch(path, json={"dictionaries": [more]}), "10,001 entries; the limit is 10,000")
    assert (await http.get(path)).json()["dictionaries"][0]["entry_count"] == 9_999


async def test_a_glossary_may_be_deleted_while_a_request_uses_it(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready(max_new_tokens=16)  # 10 beams of 256 tokens exceed the cache of the model
    made = await create(http)
    body = {"text": ["The house."], "source_lang": "EN", "target_lang": "DE", "glossary_id": made}
    posted = asyncio.create_task(http.post("/v2/translate", json=body))
    while not any(isinstance(message, Generate) for message in bench.sent):
        assert not posted.done(), posted.result().text
        await asyncio.sleep(0)
    message = await bench.sent_generate()
    assert (await http.delete(f"/v2/glossaries/{made}")).status_code == 204
    assert [bytes(token - 3 for token in ids) for _, ids in message.terms[0].spellings] == [b"Haus", b" Haus"]
    count = message.params_of(message.rows[0]).num_return_sequences
    hypotheses = [Hypothesis([1], "stop", 1, -1.0)] * count
    bench.output(finished=[Finished(message.rows[0].sequence_id, hypotheses, 0.0, 0.0, 0.0)])
    assert (await posted).status_code == 200
    refused(await http.post("/v2/translate", json=body), "names no stored glossary")


async def test_changes_at_once_leave_a_store_that_is_consistent(
    two_keys: tuple[Bench, httpx.AsyncClient], tmp_path: Path
) -> None:
    bench, http = two_keys
    made = [await create(http, "one") for _ in range(4)]
    one = {"source_lang": "en", "target_lang": "de", "entries": "a\tb", "entries_format": "tsv"}
    texts = {"text": [""], "source_lang": "EN", "target_lang": "DE"}
    requests = []
    for glossary_id in made:
        path = f"/v3/glossaries/{glossary_id}"
        requests += [
            http.patch(path, json={"name": "new"}, headers=key("one")),
            http.delete(path, headers=key("one")),
            http.put(f"{path}/dictionaries", json=one, headers=key("one")),
            http.delete(path, headers=key("two")),
            http.get("/v3/glossaries", headers=key("one")),
            http.post("/v2/translate", json=texts | {"glossary_id": glossary_id}, headers=key("one")),
        ]
    statuses = {answer.status_code for answer in await asyncio.gather(*requests)}
    assert statuses <= {200, 204, 400, 404}, statuses
    store = bench.runtime.glossaries
    assert not store._glossaries and not store._sizes and not list((tmp_path / "stored").iterdir())


async def test_few_indexes_exist_at_once(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of 50,000 terms takes up to 55 MB. Requests that wait for a thread have none."""
    alive = most = 0

    class Counted(Glossary):
        def __init__(self, entries: Any) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            super().__init__(entries)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(request_glossary, "Glossary", Counted)
    monkeypatch.setattr(request_glossary, "_TEXTS_AT_ONCE", 2)
    bench.become_ready()
    made = await create(http)
    body = {"text": ["The garden."] * 4, "source_lang": "EN", "target_lang": "DE", "glossary_id": made}
    posted = [asyncio.create_task(http.post("/v2/translate", json=body)) for _ in range(8)]
    while len(bench.sent) < 8:
        for task in posted:
            assert not task.done(), task.result().text
        await asyncio.sleep(0)
    for task in posted:
        task.cancel()
    await asyncio.gather(*posted, return_exceptions=True)
    assert 1 <= most <= TOKENIZER_THREADS and alive == 0


def test_a_large_glossary_does_not_make_a_small_request_large(bench: Bench) -> None:
    """A sentence has at most 16 terms, so the cost of a request does not grow with all terms of a glossary."""
    bench.become_ready()
    model = bench.runtime.candidates("translator", "translate")[0]
    terms = {f"{number:064}": "x" * 64 for number in range(10_000)}
    cost = TranslateSpec(["A house."], GenerationOptions(source_lang="en", target_lang="de"), glossary=terms).cost(
        model
    )
    assert cost.memory_bytes < 2 << 20


def test_a_stored_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{UNKNOWN}.json")
    with pytest.raises(Exception, match="is no glossary of this server"):
        GlossaryStore(tmp_path)


def test_no_search_reads_a_line_that_is_far_too_long() -> None:
    """A search holds Python's lock to its end, and the event loop waits for it."""
    found = _LINE.match("," * SIZE)
    assert found is not None and found.end() == MAX_LINE_CHARACTERS + 1
