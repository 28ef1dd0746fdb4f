"""The `deepl` package, unchanged, and form requests as in DeepL's documentation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest
from deepl.api_data import MultilingualGlossaryDictionaryEntries

from server.api.dialects.deepl import DeeplTranslateAnswer
from tests.clients.conftest import ClientServer
from tests.waiting import HANG_SECONDS

ENGLISH, FRENCH = "The garden is small.", "Le jardin est petit."
HTML = '<p class="a">We like the <b>red</b> house.</p>'


@pytest.fixture
def client(server: ClientServer) -> Iterator[deepl.Translator]:
    translator = deepl.Translator(server.key, server_url=server.url)
    yield translator
    translator.close()


def test_the_quick_start_names_no_source_language(client: deepl.Translator) -> None:
    result = client.translate_text(ENGLISH, target_lang="FR")
    assert (result.text, result.detected_source_lang, result.billed_characters) == (FRENCH, "EN", len(ENGLISH))


def test_several_texts_with_languages(client: deepl.Translator) -> None:
    results = client.translate_text([ENGLISH, "I am a student"], source_lang="EN", target_lang="FR")
    assert [result.text for result in results] == [FRENCH, "Je suis un étudiant"]
    neutral = client.translate_text(
        ENGLISH,
        target_lang="fr",
        formality="prefer_more",
        split_sentences="nonewlines",
        preserve_formatting=True,
        model_type="prefer_quality_optimized",
        context="",
    )
    assert neutral.text == FRENCH


def test_tags(client: deepl.Translator) -> None:
    html = client.translate_text(HTML, target_lang="FR", tag_handling="html").text
    assert html == '<p class="a">Nous aimons la maison <b>rouge</b>.</p>'
    document = "<d><t>The garden is small.</t><k>The garden is small.</k><p>We like the <x>red</x> house.</p></d>"
    xml = client.translate_text(document, target_lang="FR", tag_handling="xml", ignore_tags=["k"]).text
    assert xml == f"<d><t>{FRENCH}</t><k>{ENGLISH}</k><p>Nous aimons la maison <x>rouge</x>.</p></d>"


def test_sentences_are_split_as_asked(client: deepl.Translator) -> None:
    text = "The garden\nis small."
    by_line = client.translate_text(text, target_lang="FR", split_sentences="1").text
    joined = client.translate_text(text, target_lang="FR", split_sentences="nonewlines").text
    assert "\n" in by_line and joined == FRENCH


def test_languages_and_usage(client: deepl.Translator) -> None:
    assert [(language.code, language.name) for language in client.get_source_languages()] == [("EN", "English")]
    assert [
        (language.code, language.name, language.supports_formality) for language in client.get_target_languages()
    ] == [("FR", "French", False)]
    usage = client.get_usage()
    assert usage.character.valid and not usage.any_limit_reached


def test_a_bad_key_is_an_authorization_error(server: ClientServer) -> None:
    client = deepl.Translator("a-wrong-key", server_url=server.url)
    if not server.needs_key:
        assert client.translate_text(ENGLISH, target_lang="FR").text == FRENCH
        return
    for call in (client.get_usage, client.get_source_languages, lambda: client.translate_text("a", target_lang="FR")):
        with pytest.raises(deepl.AuthorizationException, match="DeepL-Auth-Key"):
            call()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"formality": "more"}, "`formality`"),
        ({"context": "a letter"}, "`context`"),
        ({"glossary": "x", "source_lang": "EN"}, "`glossary_id`"),
        ({"model_type": "quality_optimized"}, "`model_type`"),
        ({"custom_instructions": ["be kind"]}, "`custom_instructions`"),
        ({"style_rule": "x"}, "`style_id`"),
        ({"splitting_tags": ["p"]}, "`splitting_tags` requires `tag_handling`"),
        ({"outline_detection": False, "tag_handling": "html"}, "`outline_detection` requires `tag_handling` xml"),
        ({"split_sentences": "2"}, "`split_sentences`"),
        ({"tag_handling": "xml"}, "not well-formed"),
        ({"source_lang": "DE"}, "en-fr"),
    ],
)
def test_an_unsupported_option_is_named(client: deepl.Translator, options: dict[str, Any], named: str) -> None:
    with pytest.raises(deepl.DeepLException, match="Bad request") as caught:
        client.translate_text("<a>text", target_lang="FR", **options)
    assert named in str(caught.value)


def test_forms_and_other_routes(server: ClientServer) -> None:
    headers = {"authorization": f"DeepL-Auth-Key {server.key}"}
    form = {
        "text": [ENGLISH, "I am a student"],
        "target_lang": "FR",
        "split_sentences": "0",
        "show_billed_characters": "1",
    }
    answer = httpx.post(f"{server.url}/v2/translate", data=form, headers=headers, timeout=HANG_SECONDS)
    translations = DeeplTranslateAnswer.model_validate_json(answer.content).translations
    assert [translation.text for translation in translations] == [FRENCH, "Je suis un étudiant"]
    assert translations[0].billed_characters == len(ENGLISH)
    posted = httpx.post(f"{server.url}/v2/languages", data={"type": "target"}, headers=headers, timeout=HANG_SECONDS)
    assert [target["language"] for target in posted.json()] == ["FR"]
    for path, wanted in (("/v2/languages?type=x", 400), ("/v2/glossaries/x", 404), ("/v2/document", 405)):
        refused = httpx.get(server.url + path, headers=headers, timeout=HANG_SECONDS)
        assert refused.status_code == wanted and list(refused.json()) == ["message"]


def test_a_document(server: ClientServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = time.sleep
    monkeypatch.setattr("deepl.translator.time.sleep", lambda seconds: sleep(0.05))
    client = deepl.DeepLClient(server.key, server_url=server.url)
    source, output = tmp_path / "a.html", tmp_path / "b.html"
    source.write_text(HTML)
    status = client.translate_document_from_filepath(source, output, target_lang="FR")
    assert status.done and status.billed_characters == len("We like the <b>red</b> house.")
    assert output.read_text() == '<p class="a">Nous aimons la maison <b>rouge</b>.</p>'
    (tmp_path / "a.exe").write_text("x")
    for wrong, other, message in ((source, "c.txt", "output_format"), (tmp_path / "a.exe", "b.exe", "docx")):
        with pytest.raises(deepl.DeepLException, match=message):
            client.translate_document_from_filepath(wrong, tmp_path / other, target_lang="FR")


def test_glossaries_of_both_versions(server: ClientServer) -> None:
    client = deepl.DeepLClient(server.key, server_url=server.url)
    glossary = client.create_glossary("mine", "EN", "FR", {"house": "villa", "garden": "jardin d'hiver"})
    assert glossary.ready and glossary.entry_count == 2
    assert client.get_glossary_entries(glossary) == {"house": "villa", "garden": "jardin d'hiver"}
    found = client.translate_text("The house is small.", source_lang="EN", target_lang="FR", glossary=glossary)
    assert "villa" in found.text
    assert glossary.glossary_id in [listed.glossary_id for listed in client.list_glossaries()]
    assert ("en", "fr") in [
        (language.source_lang, language.target_lang) for language in client.get_glossary_languages()
    ]
    client.delete_glossary(glossary)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_glossary(glossary.glossary_id)
    several = client.create_multilingual_glossary(
        "both", [MultilingualGlossaryDictionaryEntries("EN", "FR", {"house": "villa"})]
    )
    entries = client.get_multilingual_glossary_entries(several, "EN", "FR")
    assert entries.dictionaries[0].entries == "house\tvilla"
    client.update_multilingual_glossary_name(several, "new")
    assert client.get_multilingual_glossary(several.glossary_id).name == "new"
    client.delete_multilingual_glossary(several)
