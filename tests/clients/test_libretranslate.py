"""The `libretranslatepy` package, unchanged, and requests as in LibreTranslate's documentation."""

from __future__ import annotations

import json
import urllib.error
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from server.api.dialects.libretranslate import FrontendSettingsAnswer, LibreTranslateAnswer, LibreTranslateBody
from tests.clients.conftest import ClientServer
from tests.waiting import HANG_SECONDS

LANGUAGES = [
    {"code": "en", "name": "English", "targets": ["fr"]},
    {"code": "fr", "name": "French", "targets": []},
]
ENGLISH, FRENCH = "The garden is small.", "Le jardin est petit."


@pytest.fixture
def client(server: ClientServer) -> LibreTranslateAPI:
    return LibreTranslateAPI(server.url, server.key if server.needs_key else None)


def post(server: ClientServer, path: str = "/translate", form: bool = False, **fields: Any) -> httpx.Response:
    """Send fields as JSON or as a form, with the key in the field `api_key`, as LibreTranslate's clients do."""
    if server.needs_key:
        fields["api_key"] = server.key
    body: dict[str, Any] = {"data": fields} if form else {"json": fields}
    return httpx.post(server.url + path, timeout=HANG_SECONDS, **body)


def translate(server: ClientServer, **fields: Any) -> dict[str, Any]:
    answer = post(server, **{"source": "en", "target": "fr", **fields})
    assert answer.status_code == 200, answer.text
    return LibreTranslateAnswer.model_validate_json(answer.content).model_dump(exclude_none=True)


def test_the_package_translates_detects_and_lists(client: LibreTranslateAPI) -> None:
    assert client.translate(ENGLISH, "en", "fr") == FRENCH
    assert client.translate(ENGLISH, "auto", "fr") == FRENCH
    # The model reads English only, and writes French.
    for text, language in ((ENGLISH, "en"), (FRENCH, "fr")):
        likeliest = client.detect(text)[0]
        assert likeliest["language"] == language and 60 < likeliest["confidence"] <= 100
    assert client.languages() == LANGUAGES


def test_the_package_without_a_valid_key_is_refused(server: ClientServer) -> None:
    if not server.needs_key:
        assert LibreTranslateAPI(server.url, "any").translate(ENGLISH, "en", "fr") == FRENCH
        return
    for key in (None, "", "wrong"):
        client = LibreTranslateAPI(server.url, key)
        for call in (lambda c: c.translate("a", "xx", "fr"), lambda c: c.detect("a"), lambda c: c.languages()):
            with pytest.raises(urllib.error.HTTPError) as caught:
                call(client)
            assert caught.value.code == 403
            assert b'"error"' in (body := caught.value.read()) and b"en" not in body.replace(b"send", b"")


def test_a_list_alternatives_and_detection(server: ClientServer) -> None:
    answer = translate(server, q=[ENGLISH, "I am a student"], source="auto", alternatives=2)
    assert answer["translatedText"] == [FRENCH, "Je suis un étudiant"]
    assert [len(texts) for texts in answer["alternatives"]] == [2, 2]
    assert answer["detectedLanguage"] == [{"language": "en", "confidence": 100.0}] * 2
    assert translate(server, q=ENGLISH) == {"translatedText": FRENCH}


def test_a_text_in_a_language_that_is_only_read_is_copied(server: ClientServer) -> None:
    """The server has no model that translates to English, but an English text needs none."""
    assert translate(server, q=ENGLISH, source="auto", target="en")["translatedText"] == ENGLISH
    assert translate(server, q=["12:30", "😀"], source="auto", target="en")["translatedText"] == ["12:30", "😀"]
    refused = post(server, q=FRENCH, source="auto", target="en")
    assert refused.status_code == 400 and "no loaded model translates to `target`" in refused.json()["error"]


def test_html_keeps_its_tags(server: ClientServer) -> None:
    document = '<p class="a">We like the <b>red</b> house.</p><p>The garden is small.</p>'
    answer = translate(server, q=document, format="html")
    assert answer["translatedText"] == f'<p class="a">Nous aimons la maison <b>rouge</b>.</p><p>{FRENCH}</p>'


def test_fields_in_the_query(server: ClientServer) -> None:
    """A request may have all fields in its query and no body, as the package deep-translator sends them."""
    key = {"api_key": server.key} if server.needs_key else {}
    fields = {"q": ENGLISH, "source": "en", "target": "fr", "format": "text", **key}
    answer = httpx.post(f"{server.url}/translate", params=fields, timeout=HANG_SECONDS)
    assert answer.json() == {"translatedText": FRENCH}, answer.text
    found = httpx.post(f"{server.url}/detect", params={"q": ENGLISH, **key}, timeout=HANG_SECONDS).json()
    assert found[0]["language"] == "en" and found[0]["confidence"] > 60
    unknown = httpx.post(f"{server.url}/translate", params={**fields, "other": "1"}, timeout=HANG_SECONDS)
    assert unknown.status_code == 400 and "other" in unknown.json()["error"]
    in_body = httpx.post(f"{server.url}/translate?q=a", json={**fields, "q": ENGLISH}, timeout=HANG_SECONDS)
    assert in_body.json() == {"translatedText": FRENCH}, "a query beside a body is ignored"


def test_forms(server: ClientServer) -> None:
    fields = {"q": ENGLISH, "source": "en", "target": "fr", "alternatives": "1", "format": "text"}
    assert post(server, form=True, **fields).json()["translatedText"] == FRENCH
    key = {"api_key": (None, server.key)} if server.needs_key else {}
    parts = {name: (None, value) for name, value in fields.items()} | key
    answer = httpx.post(f"{server.url}/translate", files=parts, timeout=HANG_SECONDS)
    assert answer.json()["translatedText"] == FRENCH and len(answer.json()["alternatives"]) == 1


def test_languages_with_the_key_in_the_query_and_settings(server: ClientServer) -> None:
    query = {"api_key": server.key} if server.needs_key else {}
    languages = httpx.get(f"{server.url}/languages", params=query, timeout=HANG_SECONDS)
    assert languages.json() == LANGUAGES
    settings = httpx.get(f"{server.url}/frontend/settings", params=query, timeout=HANG_SECONDS)
    assert FrontendSettingsAnswer.model_validate_json(settings.content).keyRequired is server.needs_key
    unknown = httpx.get(f"{server.url}/languages", params={**query, "zz": "1"}, timeout=HANG_SECONDS)
    assert unknown.status_code == 400 and "`api_key`" in unknown.json()["error"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"source": "xx!"}, "`source`"),
        ({"target": "de"}, "en-fr"),
        ({"format": "markdown"}, "`format`"),
        ({"alternatives": 99}, "`alternatives` must be at most 15"),
        ({"q": 7}, "`q`"),
        ({"zz": 1}, "`zz`"),
        ({"q": "<b>" * 300, "format": "html"}, "deeper than 256"),
    ],
)
def test_a_wrong_field_is_named_in_the_dialects_shape(server: ClientServer, fields: dict[str, Any], named: str) -> None:
    answer = post(server, **{"q": "a", "source": "en", "target": "fr", **fields})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"] and named in answer.json()["error"]


def test_two_dialects_in_one_body_and_native_bodies(server: ClientServer) -> None:
    native = {"inputs": ENGLISH, "source_lang": "en", "target_lang": "fr"}
    both = httpx.post(
        f"{server.url}/translate", json={**native, "q": "a"}, headers=server.headers, timeout=HANG_SECONDS
    )
    assert both.status_code == 422 and "different dialects" in both.json()["error"]["message"]
    with_header = httpx.post(f"{server.url}/translate", json=native, headers=server.headers, timeout=HANG_SECONDS)
    assert with_header.json()["translations"][0]["text"] == FRENCH
    if server.needs_key:
        in_field = post(server, **native)
        assert in_field.status_code == 401 and in_field.json()["error"]["code"] == "unauthorized"
        assert post(server, q="a", **native).status_code in (401, 403)


def test_emoji_and_placeholders_stay_between_their_neighbours(server: ClientServer) -> None:
    text = f"😀 {ENGLISH} 👍🏽\n{{name}} {ENGLISH}\n42 — 😀"
    expected = f"😀 {FRENCH} 👍🏽\n{{name}} {FRENCH}\n42 — 😀"
    assert translate(server, q=text) == {"translatedText": expected}
    inside = translate(server, q="The {size} garden is small.")["translatedText"]
    assert sorted(inside.replace(" {size}", "").split()) == sorted(FRENCH.split()) and " {size} " in inside
    body = {"inputs": [text, "The {size} garden is small."], "source_lang": "en", "target_lang": "fr", "stream": True}
    headers = {"authorization": f"Bearer {server.key}"} if server.needs_key else {}
    answer = httpx.post(server.url + "/translate", json=body, headers=headers, timeout=HANG_SECONDS)
    deltas = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    joined = ["".join(delta["text"] for delta in deltas if delta.get("index") == index) for index in (0, 1)]
    assert joined == [expected, inside]


def test_a_link_of_markdown_stays_around_its_words(server: ClientServer) -> None:
    answer = translate(server, q="We like [the red house](https://example.com/a_b).")["translatedText"]
    assert answer == "Nous aimons [la maison rouge](https://example.com/a_b)."


def test_its_own_codes_of_chinese_and_portuguese() -> None:
    options = LibreTranslateBody(q="a", source="pb", target="zt").spec().options
    assert (options.source_lang, options.target_lang) == ("pt-BR", "zh-Hant")
    assert LibreTranslateBody(q="a", source="auto", target="zh").spec().options.target_lang == "zh"


def test_a_file_as_the_documentation_sends_it(server: ClientServer) -> None:
    """A file can be sent as by `curl -F file=@a.txt -F source=en -F target=fr`. The package has no method for files."""
    form = {"source": "en", "target": "fr"} | ({"api_key": server.key} if server.needs_key else {})
    files = {"file": ("a.txt", f"{ENGLISH}\n")}
    answer = httpx.post(f"{server.url}/translate_file", data=form, files=files, timeout=HANG_SECONDS)
    url = answer.json()["translatedFileUrl"]
    assert httpx.get(url).text == f"{FRENCH}\n"
    assert httpx.get(url).status_code == 404
