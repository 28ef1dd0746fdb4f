"""Translation of texts whose language the request does not state, over a socket. The server has several languages.

The fake engine repeats what the model reads, so the answer shows which model and language were chosen.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

GERMAN, ENGLISH = "Der Garten hinter dem alten Haus ist klein.", "The garden behind the old house is small."
FRENCH = "Le jardin derrière la vieille maison est petit."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    root = tmp_path_factory.mktemp("models")
    pairs = {"translator-en-fr": ("en", "fr"), "translator-de-fr": ("de", "fr"), "translator-fr-en": ("fr", "en")}
    models = [f"{name}={write_translator(root / name, *pair)}" for name, pair in pairs.items()]
    process = Process(*models, "--pivot", "off", *LONG_LIMITS)
    try:
        yield process.wait_ready()
    finally:
        process.stop()


def test_each_text_has_its_own_language(server: Process) -> None:
    body = {"q": [GERMAN, "42", ENGLISH], "source": "auto", "target": "fr"}
    answer = server.post("/translate", json=body).json()
    assert answer["translatedText"] == body["q"]
    languages = [detected["language"] for detected in answer["detectedLanguage"]]
    assert (languages[0], languages[2]) == ("de", "en")
    assert answer["detectedLanguage"][0]["confidence"] > 50 > answer["detectedLanguage"][1]["confidence"] == 0


def test_markup_is_left_out_of_detection(server: Process) -> None:
    document = f'<p class="the garden is small"><b>{GERMAN}</b></p>'
    body = {"text": [document], "target_lang": "FR", "tag_handling": "html"}
    (translation,) = server.post("/v2/translate", json=body).json()["translations"]
    assert translation == {"detected_source_language": "DE", "text": document}


def test_only_languages_with_a_translation_to_the_target_are_considered(server: Process) -> None:
    answer = server.post("/translate", json={"q": GERMAN, "source": "auto", "target": "en"}).json()
    assert answer["detectedLanguage"] == {"language": "fr", "confidence": 100.0}
    refused = server.post("/translate", json={"q": GERMAN, "source": "auto", "target": "es"})
    assert refused.status_code == 400 and "`target`" in refused.json()["error"]


def test_a_text_in_the_target_language_is_returned(server: Process) -> None:
    """A text is returned unchanged if it is already in the target language, which may be detected or stated."""
    body = {"q": [ENGLISH, FRENCH, "42"], "source": "auto", "target": "en"}
    answer = server.post("/translate", json=body).json()
    assert answer["translatedText"] == body["q"]
    assert [detected["language"] for detected in answer["detectedLanguage"]] == ["en", "fr", "fr"]
    short = {"q": ["The garden is small.", "Where is it?", "Le chien court."], "source": "auto", "target": "en"}
    languages = [detected["language"] for detected in server.post("/translate", json=short).json()["detectedLanguage"]]
    assert languages == ["en", "en", "fr"]
    document = f"<p>{ENGLISH} <b>Yes.</b></p>"
    for text, more in ((ENGLISH, {}), (document, {"tag_handling": "html"})):
        body = {"text": [text], "target_lang": "EN-GB", **more}
        (translation,) = server.post("/v2/translate", json=body).json()["translations"]
        assert translation == {"detected_source_language": "EN", "text": text}
    for source, target in (("fr", "fr"), ("fra_Latn", "fr-CA"), ("en", "en-US")):
        body = {"inputs": ["<b>One. &", " "], "source_lang": source, "target_lang": target, "format": "html"}
        answer = server.post("/translate", json=body).json()
        assert [translated["text"] for translated in answer["translations"]] == body["inputs"]
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["completion_tokens"] == 0
    refused = server.post("/translate", json={"q": "a", "source": "es", "target": "es"})
    assert refused.status_code == 400


def test_detect_and_languages(server: Process) -> None:
    found = server.post("/detect", json={"q": GERMAN}).json()
    assert found[0]["language"] == "de" and sum(detected["confidence"] for detected in found) == pytest.approx(
        100, abs=0.3
    )
    assert server.post("/detect", data={"q": "42"}).json() == []
    # Also a language that the models only write, and one that they do not know.
    for text, language in ((FRENCH, "fr"), ("El perro duerme en la casa vieja.", "es")):
        assert server.post("/detect", json={"q": text}).json()[0]["language"] == language
    languages = {language["code"]: language["targets"] for language in server.get("/languages").json()}
    assert languages == {"de": ["fr"], "en": ["fr"], "fr": ["en"]}
    assert [language["language"] for language in server.get("/v2/languages").json()] == ["DE", "EN", "FR"]
    targets = server.get("/v2/languages", params={"type": "target"}).json()
    assert [target["language"] for target in targets] == ["EN-GB", "EN-US", "FR"]
    for code in ("EN-US", "EN-GB", "en"):
        body = {"text": "Le jardin est petit.", "source_lang": "FR", "target_lang": code}
        assert server.post("/v2/translate", json=body).status_code == 200


def test_native_html_and_what_cannot_be_combined_with_it(server: Process) -> None:
    body = {
        "inputs": "<p>A <b>b</b>.</p><script>x</script>",
        "source_lang": "en",
        "target_lang": "fr",
        "format": "html",
    }
    answer = server.post("/translate", json=body)
    assert answer.json()["translations"][0]["text"] == body["inputs"]
    for extra in (
        {"stream": True},
        {"stop": ["x"]},
        {"decoder_prefix": "x"},
        {"response_format": {"type": "json_object"}},
    ):
        refused = server.post("/translate", json=body | extra)
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, next(iter(extra)))
    long = {**body, "inputs": "<p>A <b>b</b> c.</p>" * 2500}  # its answers are bounded, so that it has little attention
    assert server.post("/translate", json=long).json()["translations"][0]["text"] == long["inputs"]
    many = {**body, "inputs": "<p>A <b>b</b> c.</p>" * 4000, "max_new_tokens": 256}
    refused = server.post("/translate", json=many)
    assert refused.status_code == 422 and "aligning the inline tags" in refused.json()["error"]["message"]


def test_without_languages_the_error_says_what_to_send(server: Process) -> None:
    error = server.post("/translate", json={"inputs": "a", "target_lang": "es"}).json()["error"]
    assert "translator-en-fr: this model translates en-fr" in error["message"] and error["param"] == "target_lang"
    error = server.post("/translate", json={"inputs": "a", "source_lang": "english", "target_lang": "fr"}).json()[
        "error"
    ]
    assert error["param"] == "source_lang" and error["message"].startswith("`source_lang` is not a language code")


def test_the_operator_states_the_languages_of_a_checkpoint(tmp_path: Path) -> None:
    unnamed = write_translator(tmp_path / "translator", "", "")
    other = shutil.copytree(unnamed, tmp_path / "translator-other")
    process = Process(
        f"translator={unnamed}", f"translator-b={other}", "--languages", "translator=en+de-fr", *LONG_LIMITS
    )
    try:
        process.wait_ready()
        body = {"source_lang": "de", "target_lang": "fr", "inputs": "a"}
        assert process.post("/translate", json=body).json()["model"] == "translator"
        refused = process.post("/translate", json={**body, "model": "translator-b"}).json()["error"]
        assert "does not answer /translate" in refused["message"]
        assert "translator-b: the checkpoint does not say which languages it translates" in process.output
        info = {model["name"]: model for model in process.get("/info").json()["models"]}
        assert info["translator"]["languages"] == ["en-fr", "de-fr"]
        assert "/translate" not in info["translator-b"]["routes"]
    finally:
        process.stop()


def test_a_key_is_required_before_anything_is_told(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("right\n")
    model = write_translator(tmp_path / "translator", "en", "fr")
    process = Process(f"translator={model}", "--api-key-file", str(tmp_path / "keys"), *LONG_LIMITS)
    try:
        url = process.wait_ready().url
        with httpx.Client(base_url=url, timeout=HANG_SECONDS) as client:
            for path in ("/translate", "/detect"):
                for body in (
                    {"q": "a", "source": "xx", "target": "yy"},
                    {"q": 1},
                    {"api_key": 7},
                    {"q": "a", "model": "m"},
                ):
                    answer = client.post(path, json=body)
                    assert answer.status_code in (401, 403) and "translator" not in answer.text, answer.text
                assert client.post(path, json={"q": "a", "api_key": "wrong"}).status_code == 403
                for content_type in ("application/json", "text/plain", "multipart/form-data"):
                    answer = client.post(path, content=b"{", headers={"content-type": content_type})
                    assert answer.status_code in (401, 403), answer.text
            for path in ("/languages", "/frontend/settings", "/languages?api_key=wrong", "/v2/languages", "/info"):
                assert client.get(path).status_code in (401, 403)
            assert client.get("/translate").status_code == 401
            wrong_header = {"authorization": "Bearer wrong"}
            body = {"q": "a", "source": "en", "target": "fr", "api_key": "right"}
            assert client.post("/translate", json=body, headers=wrong_header).status_code == 401
            assert client.post("/translate", json=body).json() == {"translatedText": "a"}
            assert client.post("/translate/", data=body).json() == {"translatedText": "a"}
            assert client.get("/languages", params={"api_key": "right"}).status_code == 200
    finally:
        process.stop()
