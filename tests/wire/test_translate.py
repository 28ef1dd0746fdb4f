"""`/translate` over a socket.

The fake engine repeats the source; hypothesis k of a beam search is rotated by k bytes.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from server.api.dialects.native.answers import TranslateAnswer
from tests.waiting import HANG_SECONDS
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process, parse_events

TEXT = "The garden is small. The house, however, is big!\n\n  It stands by Dr. Miller's lake."


def translate(client: httpx.Client, **body: object) -> dict:
    response = client.post("/translate", json={"model": "translator", **body})
    assert response.status_code == 200, response.text
    return TranslateAnswer.model_validate_json(response.content, strict=True).model_dump()


def refused(client: httpx.Client, param: str, code: str = "invalid_request", **body: object) -> str:
    response = client.post("/translate", json={"inputs": "a", **body})
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    return str(error["message"])


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("text", [TEXT, "one", "  spaced  ", "", " \n ", "日本語。これは文。", "a\nb\n"])
def test_echoed_texts_are_complete(client: httpx.Client, text: str, split: bool) -> None:
    answer = translate(client, inputs=[text, "x"], split_sentences=split, target_lang="de")
    expected = "日本語。 これは文。" if split and text.startswith("日") else text
    assert [t["text"] for t in answer["translations"]] == [expected, "x"]
    assert answer["translations"][0]["source_lang"] == "en" and answer["translations"][0]["target_lang"] == "de"


@pytest.mark.parametrize("text", ["42", "😀 👍🏽!", "— … —", "3.5 / 7", "१२३ ३", "  \n 1.\n2.\n"])
def test_text_without_letters_is_copied(client: httpx.Client, text: str) -> None:
    for document, more in ((text, {}), (f"<td><b>{text}</b> 7</td>", {"format": "html"})):
        answer = translate(client, inputs=document, target_lang="de", num_alternatives=1, **more)
        assert answer["translations"][0]["text"] == document
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["completion_tokens"] == 0


def test_copied_parts_are_streamed_in_order(client: httpx.Client) -> None:
    text = "42. Ab cd.\n\n7!\nEf."
    response = client.post("/translate", json={"model": "translator", "stream": True, "inputs": text})
    events = parse_events(response.text)
    assert "".join(data["text"] for name, data in events if name == "token") == text
    assert events[-1][1]["translations"][0]["text"] == text
    for copied in ("12", "en to en"):
        body = {"stream": True, "inputs": copied, "source_lang": "en", "target_lang": "en"}
        events = parse_events(client.post("/translate", json=body).text)
        assert "".join(data["text"] for name, data in events if name == "token") == copied
        assert events[-1][1]["translations"][0]["text"] == copied


MESSAGE = "Hi {name}, you have %1$s new. 😀 See https://example.com/a!\n\nBye 👋 #tag."


def test_placeholders_and_emoji_are_kept_out_of_the_model(client: httpx.Client) -> None:
    read = len("Hi, you have new.") + len("See!") + len("Bye.") + 3
    answer = translate(client, inputs=MESSAGE, target_lang="de")
    assert (answer["translations"][0]["text"], answer["usage"]["prompt_tokens"]) == (MESSAGE, read)
    without = translate(client, inputs=MESSAGE, target_lang="de", protect=False)["usage"]["prompt_tokens"]
    terms = translate(client, inputs=MESSAGE, target_lang="de", protect=["you have"])["usage"]["prompt_tokens"]
    assert terms == read - len(" you have") < read < without
    html = translate(client, inputs=f"<p>{MESSAGE}</p>", target_lang="de", format="html")
    assert html["translations"][0]["text"] == f"<p>{MESSAGE}</p>" and html["usage"]["prompt_tokens"] == read
    for body in ({"q": MESSAGE, "source": "en", "target": "de"}, {"text": [MESSAGE], "target_lang": "DE"}):
        answered = client.post("/translate" if "q" in body else "/v2/translate", json=body).json()
        assert MESSAGE in (answered.get("translatedText"), answered.get("translations", [{}])[0].get("text"))


def test_a_stream_with_placeholders_is_that_of_whole_sentences(client: httpx.Client) -> None:
    response = client.post("/translate", json={"model": "translator", "stream": True, "inputs": MESSAGE})
    events = parse_events(response.text)
    assert "".join(data["text"] for name, data in events if name == "token") == MESSAGE
    assert events[-1][1]["translations"][0]["text"] == MESSAGE


def test_a_part_that_the_model_never_saw_is_put_back_without_attention(client: httpx.Client) -> None:
    """A protected part is put back even if the hypothesis differs from the source and has no attention weights."""
    answer = translate(client, inputs="Ab {x} cd 😀", target_lang="de", num_alternatives=1)["translations"][0]
    assert answer["text"] == "Ab {x} cd 😀"
    (other,) = answer["alternatives"]
    assert other["text"].count("{x}") == other["text"].count("😀") == 1


def test_a_percentage_before_its_number_is_translated(tmp_path: Path) -> None:
    """In Turkish, %50 is a percentage, which the model reads. The placeholder in the same text stays outside."""
    process = Process(f"translator={write_translator(tmp_path / 'tr', 'tr', 'en')}", *LONG_LIMITS)
    try:
        client = httpx.Client(base_url=process.wait_ready().url, timeout=HANG_SECONDS)
        for text, read in (
            ("Fiyatlar %50 arttı {name}.", "Fiyatlar %50 arttı."),
            ("Fiyatlar %1 arttı {name}.", "Fiyatlar %1 arttı."),
            ("Bugün %1 dosya {name}.", "Bugün dosya."),
        ):
            answer = translate(client, inputs=text, source_lang="tr", target_lang="en")
            assert answer["translations"][0]["text"] == text
            assert answer["usage"]["prompt_tokens"] == len(read.encode()) + 1, text
    finally:
        process.stop()


def test_numbers_that_the_translation_changes_are_flagged(client: httpx.Client) -> None:
    kept, cut = translate(client, inputs=["Ab 12 cd 34.", "Ab 12 cd 34."])["translations"], None
    assert [translation["flags"] for translation in kept] == [None, None]
    cut = translate(client, inputs="Ab 12 cd 34.", max_new_tokens=4)["translations"][0]
    assert cut["flags"] == ["numbers"]


def test_protect_is_refused_with_options_for_the_whole_text(client: httpx.Client) -> None:
    for more in ({"stop": ["x"]}, {"decoder_prefix": "x"}, {"response_format": {"type": "regex", "pattern": ".+"}}):
        assert translate(client, inputs="a {x}", **more)
        assert next(iter(more)) in refused(client, "protect", inputs="a {x}", protect=True, **more)
        assert translate(client, inputs="a {x}", protect=False, **more)
    refused(client, "protect", inputs="a", protect=["a" * 65])
    refused(client, "protect", inputs="a", protect="a")


def test_many_sentences_with_placeholders_need_no_attention_limit(client: httpx.Client) -> None:
    text = "Hello {name}, it is a small house.\n" * 1500
    assert translate(client, inputs=text, target_lang="de")["translations"][0]["text"] == text


def test_wrapped_lines_are_joined(client: httpx.Client) -> None:
    text = "The garden\nis small. It\nis old.\n\nThe end."
    expected = "The garden is small. It is old.\n\nThe end."
    answer = translate(client, inputs=text, split_sentences="nonewlines", target_lang="de")
    assert answer["translations"][0]["text"] == expected
    refused(client, "split_sentences", inputs=text, split_sentences="lines")
    for mode, translated in (("nonewlines", expected), ("1", text), (False, text)):
        body = {"q": text, "source": "en", "target": "de", "split_sentences": mode}
        assert client.post("/translate", json=body).json() == {"translatedText": translated}, mode
        assert client.post("/translate", data=body).json() == {"translatedText": translated}, mode


def test_each_sentence_is_a_sequence(client: httpx.Client) -> None:
    together = translate(client, inputs=TEXT, split_sentences=False)["usage"]["prompt_tokens"]
    apart = translate(client, inputs=TEXT)["usage"]["prompt_tokens"]
    assert together == len(TEXT) + 1
    assert apart < together + 3 and apart != together


def test_streamed_text_equals_the_whole_answer_and_is_in_order(client: httpx.Client) -> None:
    for num_beams in (1, 2, 4):
        body = {"inputs": [TEXT, "Short. Text."], "num_beams": num_beams, "max_new_tokens": 64}
        response = client.post("/translate", json={"model": "translator", "stream": True, **body})
        events = parse_events(response.text)
        assert events[-1][0] == "done"
        joined, last = {0: "", 1: ""}, {0: 0, 1: 0}
        for name, data in events[:-1]:
            assert name == "token"
            assert data["segment"] >= last[data["index"]]
            last[data["index"]] = data["segment"]
            joined[data["index"]] += data["text"]
        whole = [t["text"] for t in translate(client, **body)["translations"]]
        assert (
            [joined[0], joined[1]]
            == whole
            == [t["text"] for t in events[-1][1]["translations"]]
            == [TEXT, "Short. Text."]
        )


def test_alternatives_increase_the_number_of_beams(client: httpx.Client) -> None:
    translation = translate(client, inputs="abc", num_alternatives=3, max_new_tokens=16)["translations"][0]
    assert (translation["text"], translation["score"]) == ("abc", 0.0)
    assert [(a["text"], a["score"]) for a in translation["alternatives"]] == [
        ("bca", -1.0),
        ("cab", -2.0),
        ("abc", -3.0),
    ]
    assert "num_alternatives" in refused(client, "num_alternatives", num_alternatives=3, num_beams=2)
    two = translate(client, inputs="Ab. Cd.", num_alternatives=1)["translations"][0]
    assert (two["alternatives"][0]["text"], two["alternatives"][0]["score"]) == ("b.A d.C", -2.0)


def test_the_language_pair_selects_the_model(client: httpx.Client) -> None:
    def model_for(**body: object) -> str:
        response = client.post("/translate", json={"inputs": "a", **body})
        assert response.status_code == 200, response.text
        return str(response.json()["model"])

    assert model_for(source_lang="en", target_lang="de") == "translator"
    assert model_for(source_lang="en", target_lang="fr") == "translator-fr"
    assert model_for(target_lang="fra_Latn") == "translator-fr"
    assert (
        model_for(target_lang="de-AT") == model_for(target_lang="deu") == model_for(target_lang="de_DE") == "translator"
    )


def test_an_unknown_pair_lists_the_pairs_on_offer(client: httpx.Client) -> None:
    message = refused(client, "target_lang", source_lang="en", target_lang="fi")
    assert "en-de" in message and "en-fr" in message
    assert "en-de" in refused(client, "target_lang", model="translator", target_lang="fr")
    refused(client, "source_lang", source_lang="de", target_lang="en")
    assert refused(client, "source_lang", source_lang="english").startswith("`source_lang` is not a language code; ")
    refused(client, "target_lang", target_lang="?!")


def test_sentences_longer_than_the_model_reads_are_cut(client: httpx.Client) -> None:
    sentence = "word, " * 100 + "end."
    assert translate(client, inputs=sentence, max_new_tokens=300)["translations"][0]["text"] == sentence
    endless = "x" * 1000
    assert translate(client, inputs=endless, max_new_tokens=300)["translations"][0]["text"] == endless
    message = refused(client, "inputs", "context_length_exceeded", inputs=sentence, split_sentences=False)
    assert "256" in message and str(len(sentence) + 1) in message


def test_the_translation_begins_with_the_decoder_prefix(client: httpx.Client) -> None:
    body = {"inputs": "Ab. Cd.", "decoder_prefix": "So: "}
    assert translate(client, **body)["translations"][0]["text"] == "So: Ab. Cd."
    response = client.post("/translate", json={"stream": True, "model": "translator", **body})
    joined = "".join(data["text"] for name, data in parse_events(response.text) if name == "token")
    assert joined == "So: Ab. Cd."


def test_token_ids_logprobs_and_finish_reasons(client: httpx.Client) -> None:
    body = {"num_beams": 1, "return_token_ids": True, "logprobs": True}
    translation = translate(client, inputs="Ab. Cd.", **body)["translations"][0]
    assert translation["token_ids"] == [68, 101, 49, 1, 70, 103, 49, 1]
    assert [entry["id"] for entry in translation["logprobs"]] == translation["token_ids"]
    assert translation["finish_reason"] == "stop" and translation["score"] is None
    cut = translate(client, inputs="Abc. D.", max_new_tokens=3)["translations"][0]
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"best_of": 2},
        {"num_return_sequences": 2},
        {"echo": True},
        {"prompt_logprobs": True},
        {"inputs": [1, 2]},
        {"prompt": "x"},
    ],
)
def test_options_without_meaning_for_translations_are_refused(client: httpx.Client, body: dict) -> None:
    refused(client, next(iter(body)), **body)


def test_too_many_sentences_are_refused(client: httpx.Client) -> None:
    message = refused(client, "inputs", "request_too_large", inputs=["a.\n" * 4097, "b.\n" * 4096])
    assert "8,193" in message and "8,192" in message


def test_a_decoder_cannot_translate(client: httpx.Client) -> None:
    assert "/generate" in refused(client, "model", model="decoder")


def test_generate_accepts_languages(client: httpx.Client) -> None:
    body = {"model": "translator", "prompt": "ab", "num_beams": 1}
    assert client.post("/generate", json=body | {"target_lang": "de"}).json()["choices"][0]["text"] == "ab"
    assert client.post("/generate", json=body | {"target_lang": "fi"}).json()["error"]["param"] == "target_lang"


def test_a_format_applies_to_the_whole_text(client: httpx.Client) -> None:
    """With a format, a text is not divided into sentences. `split_sentences` together with a format is refused."""
    wanted = {"type": "regex", "pattern": ".+"}
    split, whole = (translate(client, inputs=TEXT, **more) for more in ({}, {"response_format": wanted}))
    assert whole["translations"][0]["text"] == TEXT
    unsplit = translate(client, inputs=TEXT, split_sentences=False)
    assert whole["usage"]["prompt_tokens"] == unsplit["usage"]["prompt_tokens"] != split["usage"]["prompt_tokens"]
    assert translate(client, inputs=TEXT, split_sentences=True, response_format={"type": "text"}) is not None
    assert "whole" in refused(client, "split_sentences", split_sentences=True, response_format=wanted)
    refused(client, "response_format", response_format={"type": "regex", "pattern": "("})
