"""`/translate` and its dialects with language models, which get a prompt with the languages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.scripted_model import Step, write_scripted

SPANISH = "El jardín es pequeño y muy bonito en verano."
SCRIPTS = {
    "de": [Step("\n Der Garten ist klein.\n")],
    "fr": [Step("Le jardin {name} est petit, 12 fois.")],
    "es": [Step(SPANISH)],
    "letter": [Step("With the letter in view.")],
    "tags-de": [Step("Im <s1>Sommer</s1> ist der <s2>rote <s3>Garten</s3></s2> klein.")],
    "tags-fr": [Step("<target>Le <s1>jardin</s1> est <s2></s2> petit & <s3>x</s3> beau.</target>")],
    "tags-es": [Step("El <s1>jardin</s1> de Madrid, 12 <s2>veces.")],
}
OWN = "Say this in {target}, not in {source}, please: {text} [[script:{target_code}]]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("language-models")
    own = write_scripted(directory / "own", SCRIPTS)
    published = write_scripted(directory / "Hy-MT2-0.1B", SCRIPTS)
    prompt = directory / "prompt.json"
    prompt.write_text(json.dumps({"text": OWN, "with_tags": OWN.replace("script:", "script:tags-")}))
    models = f"own={own}", f"tagging={own}", f"mt={published}", f"marian={REPOSITORY / 'weights/demo/translator-en-fr'}"
    prompts = "--translation-prompt", f"own={OWN}", "--translation-prompt", f"tagging={prompt}"
    with serving(directory / "log", *models, *prompts) as running:
        yield running


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return server.post(path, json=body)


def translated(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = post(server, "/translate", **{"model": "own", "source_lang": "en", "target_lang": "de", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_answer_is_the_text_without_white_space_around_it(server: RunningServer) -> None:
    answer = translated(server, inputs="The garden is small.\n\nThe garden is small.  ")
    (translation,) = answer["translations"]
    assert translation["text"] == "Der Garten ist klein.\n\nDer Garten ist klein.  "
    assert (translation["source_lang"], translation["target_lang"], translation["finish_reason"]) == (
        "en",
        "de",
        "stop",
    )


def test_a_stream_has_whole_sentences(server: RunningServer) -> None:
    body = {"model": "own", "source_lang": "en", "target_lang": "de", "inputs": "One day. Two days.", "stream": True}
    lines = post(server, "/translate", **body).text.splitlines()
    texts = [line for line in lines if line.startswith("data:") and '"text"' in line]
    assert sum("Der Garten ist klein." in line for line in texts[:-1]) == 2


def test_copies_and_texts_without_letters_need_no_model(server: RunningServer) -> None:
    for body in ({"inputs": "12 – 14"}, {"inputs": "Ein Garten.", "source_lang": "de"}):
        answer = translated(server, **body)
        assert answer["translations"][0]["text"] == body["inputs"] and answer["usage"]["completion_tokens"] == 0


def test_protected_parts_stay_once(server: RunningServer) -> None:
    (kept,) = translated(server, inputs="The garden {name} is small, 12 times.", target_lang="fr")["translations"]
    assert kept["text"] == "Le jardin {name} est petit, 12 fois."
    (put_back,) = translated(server, inputs="The {name} garden is %d small.")["translations"]
    assert put_back["text"].count("{name}") == put_back["text"].count("%d") == 1
    assert put_back["text"].replace("{name} ", "").replace("%d ", "") == "Der Garten ist klein."
    (others,) = translated(server, inputs="The garden is small, 12 times.", target_lang="fr")["translations"]
    assert others["text"] == "Le jardin {name} est petit, 12 fois."


def test_markup_keeps_its_tags(server: RunningServer) -> None:
    html = '<p>The <b>garden</b> is small.<br>7</p><a href="/x">Garden</a>'
    (translation,) = translated(server, inputs=html, format="html")["translations"]
    text = translation["text"]
    assert text.startswith("<p>Der <b>") and text.endswith('<br>7</p><a href="/x">Der Garten ist klein.</a>')


def test_a_model_with_a_prompt_for_tags_repeats_them(server: RunningServer) -> None:
    html = 'The <a href="/x">red <i>garden</i></a> is small in <b>summer</b>.'
    body = {"model": "tagging", "inputs": f"<p>{html}</p><p>12 – 14</p>", "format": "html"}
    # Tags are numbered in the order of the source. In this text, tag 1 is the link, but the fixed answer means another.
    (wrong,) = translated(server, **body)["translations"]
    assert wrong["flags"] == ["tags"]
    reordered = 'The <b>summer</b> garden is <a href="/x">red and <i>small</i></a>.'
    (right,) = translated(server, **body | {"inputs": f"<p>{reordered}</p>"})["translations"]
    assert right["text"] == '<p>Im <b>Sommer</b> ist der <a href="/x">rote <i>Garten</i></a> klein.</p>'
    assert "flags" not in right
    html = '<p>The <b>garden</b> is <img src="a.png"> small and <code>x &lt; y</code> nice.</p>'
    (kept,) = translated(server, **body | {"inputs": html, "target_lang": "fr", "quality": True})["translations"]
    assert kept["text"] == '<p>Le <b>jardin</b> est <img src="a.png"> petit &amp; <code>x &lt; y</code> beau.</p>'
    assert "flags" not in kept and kept["sentences"][0]["text"] == "Le jardin est petit & x beau."


def test_tags_that_are_not_repeated_are_placed_by_word_order(server: RunningServer) -> None:
    html = "The garden of <b>Madrid</b>, 12 <i>times</i>."
    body = {"inputs": html, "format": "html", "target_lang": "es", "quality": True}
    (mended,) = translated(server, model="tagging", **body)["translations"]
    assert mended["text"] == "El jardin de <b>Madrid</b>, 12 <i>veces</i>." and mended["flags"] == ["tags"]
    assert mended["sentences"][0]["text"] == "El jardin de Madrid, 12 veces."
    (without,) = translated(server, **body)["translations"]
    assert without["flags"] == ["numbers", "tags"] and without["text"].count("<b>") == 1
    (plain,) = translated(server, model="tagging", **body | {"inputs": "A small garden."})["translations"]
    assert plain["text"] == SPANISH and "flags" not in plain


def test_a_model_reads_the_placeholders_of_markup(server: RunningServer) -> None:
    body = {"format": "html", "target_lang": "fr"}
    (kept,) = translated(server, inputs="<p>The garden {name} is small, 12 times.</p>", **body)["translations"]
    assert kept["text"] == "<p>Le jardin {name} est petit, 12 fois.</p>" and "flags" not in kept
    (tagged,) = translated(server, inputs="<p>The <b>garden</b> {name} is small, 12 times.</p>", **body)["translations"]
    assert tagged["text"] == "<p>Le <b>jardin</b> {name} est petit, 12 fois.</p>" and tagged["flags"] == ["tags"]
    (lost,) = translated(server, inputs="<p>The garden {x} is small.</p>", format="html")["translations"]
    assert sorted(lost["text"].split()) == sorted(["<p>Der", "Garten", "{x}", "ist", "klein.</p>"])
    assert lost["flags"] == ["tags"]


def test_special_tokens_of_a_text_are_text(server: RunningServer) -> None:
    plain = translated(server, inputs="Say im_end now")["usage"]["prompt_tokens"]
    special = translated(server, inputs="Say <|im_end|> now")["usage"]["prompt_tokens"]
    assert special > plain + 1


def test_dialects_translate_with_language_models(server: RunningServer) -> None:
    libre = post(server, "/translate", q=["A garden.", "The end"], source="en", target="es").json()
    assert libre["translatedText"] == [SPANISH] * 2
    body = {"text": ["The garden is small."], "source_lang": "EN", "target_lang": "ES", "formality": "prefer_more"}
    deepl = post(server, "/v2/translate", **body).json()
    assert deepl["translations"] == [
        {"detected_source_language": "EN", "text": "El jardín es pequeño y muy bonito en verano."}
    ]
    languages = {own["code"]: own for own in server.get("/languages").json()}
    assert {"de", "zt", "yue"} <= set(languages["en"]["targets"]) and "mul" not in languages
    info = server.get("/info").json()
    assert all("/translate" in model["routes"] for model in info["models"])


def test_context_and_formality_need_a_prompt_with_a_place(server: RunningServer) -> None:
    more, less = (
        translated(server, model="mt", inputs="A garden.", formality=wish)["usage"]["prompt_tokens"]
        for wish in ("more", "less")
    )
    assert more < less  # formal, informal
    deepl = {
        "model": "mt",
        "text": "A garden.",
        "target_lang": "DE",
        "source_lang": "EN",
        "context": "[[script:letter]]",
    }
    assert post(server, "/v2/translate", **deepl).json()["translations"][0]["text"] == "With the letter in view."
    for body, field in (
        ({"model": "own", "context": "a"}, "context"),
        ({"model": "own", "formality": "less"}, "formality"),
        ({"model": "mt", "context": "a", "formality": "less"}, "formality"),
        ({"model": "mt", "truncate": 9}, "truncate"),
        ({"model": "mt", "return_attention": True}, "return_attention"),
    ):
        refused = post(server, "/translate", **{"inputs": "A", "source_lang": "en", "target_lang": "de", **body})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, field), refused.text
    assert translated(server, inputs="A garden.", formality="prefer_less")["translations"][0]["text"]


def test_glossary_terms_are_in_the_translation(server: RunningServer) -> None:
    (translation,) = translated(server, inputs="A garden.", glossary={"garden": "Parkanlage"})["translations"]
    assert "Parkanlage" in translation["text"]


def test_each_sentence_has_a_score(server: RunningServer) -> None:
    answer = translated(server, inputs="The garden is small. It is 12 years old.", quality=True)
    (translation,) = answer["translations"]
    assert translation["flags"] == ["numbers"]
    first, second = translation["sentences"]
    assert (first["source"], first["text"]) == ("The garden is small.", "Der Garten ist klein.")
    assert -1 < first["score"] <= 0 and "flags" not in first and second["flags"] == ["numbers"]
    plain = translated(server, inputs="The garden is small.")["translations"][0]
    assert "sentences" not in plain and "flags" not in plain


def test_a_translation_in_another_language_is_flagged(server: RunningServer) -> None:
    (right,) = translated(server, inputs="A.", target_lang="es", quality=True)["translations"]
    assert "flags" not in right
    body = {"model": "mt", "context": "[[script:es]]", "target_lang": "de", "quality": True}
    (wrong,) = translated(server, inputs="A.", **body)["translations"]
    assert wrong["flags"] == wrong["sentences"][0]["flags"] == ["language"]


def test_a_loop_is_translated_once_more_without_repetitions(server: RunningServer) -> None:
    """A translation that repeats itself without end is made once more, with repetitions forbidden.

    A bias makes the same token the most probable one in every step.
    """
    body = {"model": "marian", "inputs": "The garden is small.", "target_lang": "fr", "quality": True, "num_beams": 1}
    biased = body | {"logit_bias": {"300": 30}, "max_new_tokens": 30}
    again = translated(server, **biased)
    (sentence,) = again["translations"][0]["sentences"]
    assert sentence["second_attempt"] and "loop" not in sentence.get("flags", [])
    assert again["usage"]["completion_tokens"] > 30  # both attempts
    (kept,) = translated(server, **biased, no_repeat_ngram_size=20)["translations"]
    assert "loop" in kept["flags"] and "second_attempt" not in kept["sentences"][0]
    streamed = post(server, "/translate", **biased, source_lang="en", stream=True).text
    (last,) = json.loads(streamed.strip().rpartition("data: ")[2])["translations"]
    assert "loop" in last["flags"] and "second_attempt" not in last["sentences"][0]
    (right,) = translated(server, **body)["translations"]
    assert "flags" not in right and "second_attempt" not in right["sentences"][0]
