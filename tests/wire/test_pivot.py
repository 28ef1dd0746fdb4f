"""Translations through a pivot language, over a socket. The fake engine repeats the input of both models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.api.dialects.native.answers import TranslateAnswer
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process, parse_events

MODELS = {
    "translator-de-en": ("de", "en"),
    "translator-en-fr": ("en", "fr"),
    "translator-es-it": ("es", "it"),
    "translator-it-fr": ("it", "fr"),
    "translator-es-pt": ("es", "pt"),
    "translator-pt-fr": ("pt", "fr"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("translators")
    return [f"{name}={write_translator(root / name, *pair)}" for name, pair in MODELS.items()]


@pytest.fixture(scope="module")
def server(models: list[str]) -> Iterator[Process]:
    process = Process(*models, *LONG_LIMITS)
    try:
        yield process.wait_ready()
    finally:
        process.stop()


def translate(server: Process, **body: object) -> dict:
    response = server.post("/translate", json={"source_lang": "de", "target_lang": "fr", **body})
    assert response.status_code == 200, response.text
    return TranslateAnswer.model_validate_json(response.content, strict=True).model_dump()


def test_two_models_translate_a_pair_that_no_model_knows(server: Process) -> None:
    answer = translate(server, inputs=["Ab cd. Ef!", "42", "x"], num_alternatives=1)
    first = answer["translations"][0]
    assert (first["text"], first["pivot"]) == ("Ab cd. Ef!", "en")
    assert (first["source_lang"], first["target_lang"]) == ("de", "fr")
    assert first["alternatives"][0]["text"] == "b cd.A f!E"  # the second model's own hypotheses
    assert first["score"] == 0 and first["alternatives"][0]["score"] == -2
    assert answer["model"] == "translator-en-fr"
    tokens = len("Ab cd.") + len("Ef!") + len("x") + 3
    assert answer["usage"]["prompt_tokens"] == 2 * tokens
    assert answer["usage"]["completion_tokens"] == 3 * tokens  # one pivot text and two translations
    direct = server.post("/translate", json={"inputs": "x", "source_lang": "de", "target_lang": "en"}).json()
    assert "pivot" not in direct["translations"][0]


def test_a_stream_has_the_text_of_the_second_model(server: Process) -> None:
    body = {"inputs": "Ab cd.\nHi {name}!", "source_lang": "de", "target_lang": "fr", "stream": True}
    events = parse_events(server.post("/translate", json=body).text)
    assert "".join(data["text"] for name, data in events if name == "token") == "Ab cd.\nHi {name}!"
    assert events[-1][1]["translations"][0]["pivot"] == "en"


@pytest.mark.parametrize(
    "more",
    [
        {"inputs": '<p>Ab <b>c</b> <i class="x"></i>d {n}. 7</p>', "format": "html"},
        {"inputs": "Hi {name}, 😀 see https://example.com/a!"},
        {"inputs": "Ab c", "decoder_prefix": "Ab"},
        {"inputs": "Ab c. De f", "split_sentences": False},
    ],
)
def test_markup_and_protected_parts_survive_both_models(server: Process, more: dict) -> None:
    found = translate(server, **more)["translations"][0]["text"]
    assert found.removeprefix(more.get("decoder_prefix", "")) == more["inputs"]


def test_a_failed_input_of_either_model_fails_alone(server: Process) -> None:
    answers = translate(server, inputs=["ab", "%uvw", "d"])["translations"]
    assert [answer["text"] for answer in answers] == ["ab", "", "d"]
    assert [answer["error"] and answer["error"]["code"] for answer in answers] == [None, "engine_error", None]
    body = {"inputs": ["%uvw", "%xyz"], "source_lang": "de", "target_lang": "fr"}
    assert server.post("/translate", json=body).status_code == 500


def test_a_text_that_the_second_model_cannot_read_loses_its_end(server: Process) -> None:
    text = "a" * 255
    one = translate(server, inputs=text, truncate=200)["translations"][0]
    assert (one["text"], one["finish_reason"]) == ("a" * 199, "stop")


def test_a_language_with_a_pivot_is_detected(server: Process) -> None:
    body = {"q": "Der Garten hinter dem alten Haus ist klein.", "source": "auto", "target": "fr"}
    answer = server.post("/translate", json=body).json()
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (body["q"], "de")


def test_languages_say_which_pairs_are_direct(server: Process) -> None:
    languages = {
        language["code"]: (language["targets"], language.get("direct")) for language in server.get("/languages").json()
    }
    assert languages == {
        "de": (["en", "fr"], ["en"]),
        "en": (["fr"], None),
        "es": (["it", "pt"], None),  # two languages connect es and fr
        "fr": ([], None),
        "it": (["fr"], None),
        "pt": (["fr"], None),
    }
    assert server.get("/info").json()["pivoted"] == ["de-en-fr"]
    deepl = server.post("/v2/translate", json={"text": ["Ab c."], "source_lang": "DE", "target_lang": "FR"}).json()
    assert deepl["translations"][0]["text"] == "Ab c."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"source_lang": "es"}, "set --pivot to one of it, pt"),
        ({"source_lang": "fr"}, ""),
        ({"model": "translator-de-en"}, ""),
        ({"source_lang": "de", "num_beams": 1, "num_alternatives": 1}, ""),
    ],
)
def test_what_is_refused(server: Process, body: dict, message: str) -> None:
    target = "de" if body.get("source_lang") == "fr" else "fr"
    response = server.post("/translate", json={"inputs": "a", "source_lang": "de", "target_lang": target, **body})
    assert response.status_code == 422 and message in response.json()["error"]["message"], response.text


def test_the_setting_chooses_the_pivot_language(models: list[str]) -> None:
    server = Process(*models, "--pivot", "IT", *LONG_LIMITS)
    try:
        server.wait_ready()
        assert server.get("/info").json()["pivoted"] == ["es-it-fr"]
        assert translate(server, inputs="a", source_lang="es")["translations"][0]["pivot"] == "it"
        body = {"inputs": "a", "source_lang": "de", "target_lang": "fr"}
        assert server.post("/translate", json=body).status_code == 422
    finally:
        server.stop()
