"""Each tab of the playground in Chromium: what it shows equals the answer of the server to the same request."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.audio.wavs import wav
from tests.page.conftest import Playground
from tests.parity.speech import recording


def test_generate(playground: Playground) -> None:
    panel = playground.tab("Generate")
    panel.get_by_text("More settings").click()
    panel.get_by_label("Seed").fill("9223372036854775807")
    panel.get_by_label("Token probabilities").check()
    output = playground.run(panel)
    expected = playground.server.post("/generate", playground.body(panel) | {"stream": False})
    (choice,) = expected["choices"]
    assert expected["seed"] == 9223372036854775807, "the seed must not be rounded"
    assert output.locator(".token-text").text_content() == choice["text"]
    tokens = [token["token"] for token in choice["logprobs"]]
    assert output.locator(".token").all_text_contents() == [token for token in tokens if token != "</s>"]
    numbers = playground.numbers(panel)
    assert numbers["first token"].endswith(" ms") and int(numbers["tokens/s"]) > 0
    assert (numbers["tokens"], numbers["seed"]) == (str(len(tokens)), "9223372036854775807")


def test_token_probabilities_on_hover_and_by_keyboard(playground: Playground) -> None:
    panel = playground.tab("Generate")
    panel.get_by_label("Temperature").fill("0")
    panel.get_by_label("Token probabilities").check()
    output = playground.run(panel)
    body = playground.body(panel) | {"stream": False}
    tokens = playground.server.post("/generate", body)["choices"][0]["logprobs"]
    inspector = playground.page.get_by_role("tooltip")
    for at in (3, 4):
        if at == 3:
            output.locator(".token").nth(at).hover()
        else:
            output.locator('.token[tabindex="0"]').focus()
            for _ in range(at):
                playground.page.keyboard.press("ArrowRight")
        expect(inspector).to_be_visible()
        expect(output.locator(".token").nth(at)).to_have_attribute("aria-describedby", "inspector")
        assert inspector.locator(".row").count() == 5
        shown = inspector.locator(".row.chosen").inner_text().split("\n")
        percent = 100 * np.exp(tokens[at]["logprob"])
        assert shown[0] == tokens[at]["token"].replace(" ", "␣")
        assert shown[-1] == ("100%" if percent >= 99.95 else f"{percent:.1f}%")
    playground.page.keyboard.press("Escape")
    expect(inspector).to_be_hidden()


def test_stop(playground: Playground) -> None:
    panel = playground.tab("Generate")
    panel.get_by_label("Length").fill("400")
    # The answer must not end before the button is pressed.
    playground.page.route(
        "**/generate",
        lambda route: route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True})),
    )
    before = _cancelled(playground)
    panel.evaluate(
        """(panel) => {
          new MutationObserver(() => panel.querySelector(".token") && panel.querySelector(".stop").click())
            .observe(panel, { childList: true, subtree: true });
          panel.querySelector(".primary").click();
        }"""
    )
    expect(panel.get_by_text("Stopped.", exact=True)).to_be_attached()
    playground.wait(panel)
    assert 1 <= panel.locator(".token").count() < 400, "the answer ended before its length"
    assert panel.locator(".error").is_hidden()
    expect(panel.locator(".primary")).to_be_visible()
    playground.page.wait_for_timeout(100)
    assert _cancelled(playground) == before + 1
    playground.page.unroute("**/generate")


def _cancelled(playground: Playground) -> float:
    text = playground.server.running.get("/metrics", headers=playground.server.headers).text
    lines = [line for line in text.splitlines() if line.startswith("triptych_requests_cancelled_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_chat(playground: Playground) -> None:
    panel = playground.tab("Chat")
    for title in ("Settings", "System message"):
        panel.locator("summary", has_text=title).click()
    panel.get_by_label("Seed").fill("7")
    panel.get_by_label("Token probabilities").check()
    panel.get_by_label("System message").fill("Be kind.")
    first = playground.body(panel) | {"stream": False, "stream_options": None}
    output = playground.run(panel)
    (expected,) = playground.server.post("/v1/chat/completions", first)["choices"]
    answer = expected["message"]["content"]
    assert output.locator(".message.assistant .token-text").text_content() == answer
    tokens = [token["token"] for token in expected["logprobs"]["content"]]
    assert output.locator(".token").all_text_contents() == [token for token in tokens if token != "</s>"]
    assert int(playground.numbers(panel)["tokens/s"]) > 0
    panel.get_by_label("Message", exact=True).fill("And then?")
    messages = playground.body(panel)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == answer
    panel.get_by_label("Message", exact=True).press("Enter")
    playground.wait(panel)
    assert output.locator(".message").count() == 4
    panel.get_by_role("button", name="New conversation").click()
    assert output.locator(".message").count() == 0
    playground.run(panel)
    assert panel.get_by_role("alert").inner_text() == "Write a message first."
    assert playground.body(panel)["messages"] == [{"role": "system", "content": "Be kind."}]


def test_a_refused_message_comes_back(playground: Playground) -> None:
    playground.expected = {400}
    panel = playground.tab("Chat")
    panel.locator("summary", has_text="Settings").click()
    panel.get_by_label("Length").fill("0")
    panel.get_by_label("Message", exact=True).fill("Hello")
    playground.run(panel)
    assert "max_tokens" in panel.get_by_role("alert").inner_text()
    assert panel.get_by_label("Message", exact=True).input_value() == "Hello"
    assert panel.locator(".message").count() == 0


def test_translate(playground: Playground) -> None:
    panel = playground.tab("Translate")
    output = playground.run(panel)
    (expected,) = playground.server.post("/translate", playground.body(panel))["translations"]
    assert output.locator(".translation").inner_text() == expected["text"]
    views = panel.locator(".alignment")
    assert views.count() == len(expected["attention"]) == 2
    assert views.nth(1).locator(".word-row").nth(0).locator(".word").all_inner_texts() == ["I", "am", "a", "student."]
    words = views.nth(1).locator(".word-row").nth(1).locator(".word")
    attention = expected["attention"][1]
    row = attention["matrix"][attention["target_tokens"].index("▁suis")]
    weight = round(100 * row[attention["source_tokens"].index("▁am")])
    assert f"am {weight}%" in (words.nth(1).get_attribute("title") or "")
    words.nth(1).focus()
    assert views.nth(1).locator("path.on").count() >= 1
    boxes = [views.nth(1).locator(".word-row").nth(side).bounding_box() for side in (0, 1)]
    line = views.nth(1).locator("svg").bounding_box()
    assert boxes[0] and boxes[1] and line and boxes[0]["y"] < line["y"] < boxes[1]["y"]


def test_translate_a_document(playground: Playground, tmp_path: Path) -> None:
    panel = playground.tab("Translate")
    file = tmp_path / "letter.md"
    file.write_text("# I am a student.\n")
    panel.get_by_label("Document", exact=True).set_input_files(file)
    link = panel.get_by_role("link", name="fr-letter.md")
    with playground.page.expect_download() as download:
        link.click()
    assert download.value.path().read_text() == "# Je suis un étudiant.\n"
    assert panel.get_by_role("button", name="Swap the languages").is_disabled(), "no model translates from French"


def test_a_dropped_document_is_translated(playground: Playground) -> None:
    panel = playground.tab("Translate")
    data = playground.page.evaluate_handle(
        "() => { const data = new DataTransfer();"
        " data.items.add(new File(['# I am a student.\\n'], 'dropped.md')); return data }"
    )
    drop = panel.locator(".drop")
    drop.dispatch_event("dragover", {"dataTransfer": data})
    expect(drop).to_have_class(re.compile(r"\bdropping\b"))
    drop.dispatch_event("drop", {"dataTransfer": data})
    expect(drop).not_to_have_class(re.compile(r"\bdropping\b"))
    with playground.page.expect_download() as download:
        panel.get_by_role("link", name="fr-dropped.md").click()
    assert download.value.path().read_text() == "# Je suis un étudiant.\n"


def test_swap_translates_back(closed_playground: Playground) -> None:
    """Swapping the languages selects the second model, which translates in the other direction."""
    server = closed_playground.server
    info = server.running.get("/info", headers=server.headers).json()
    (there,) = [model for model in info["models"] if model["name"] == "translator-en-fr"]
    info["models"].append(there | {"name": "translator-fr-en", "languages": ["fr-en"]})
    closed_playground.page.route("**/info", lambda route: route.fulfill(json=info))
    closed_playground.open()
    panel = closed_playground.tab("Translate")
    panel.get_by_label("Text", exact=True).fill("I am a student.")
    assert closed_playground.run(panel).locator(".translation").inner_text() == "Je suis un étudiant."
    panel.get_by_role("button", name="Swap the languages").click()
    body = closed_playground.body(panel)
    assert (body["model"], body["source_lang"], body["target_lang"]) == ("translator-fr-en", "fr", "en")
    assert body["inputs"] == "Je suis un étudiant."


def test_embed(playground: Playground) -> None:
    panel = playground.tab("Embed")
    output = playground.run(panel)
    vectors = np.array(playground.server.post("/embed", playground.body(panel)))
    shown = output.locator("tbody tr").all()
    cosines = [[float(text) for text in row.locator("td").all_inner_texts()] for row in shown]
    assert np.allclose(cosines, vectors @ vectors.T, atol=0.0051)
    assert playground.numbers(panel)["dimensions"] == str(vectors.shape[1])
    off_diagonal = vectors @ vectors.T - 2 * np.eye(len(vectors))
    pair = sorted(np.unravel_index(off_diagonal.argmax(), off_diagonal.shape))
    sentences = playground.body(panel)["inputs"]
    assert output.locator(".closest q").all_inner_texts() == [sentences[at] for at in pair]


def test_cut_inputs_are_told(playground: Playground) -> None:
    panel = playground.tab("Embed")
    assert "too long and cut" not in playground.numbers(panel)
    panel.get_by_label("Sentences").fill("The cat sleeps.\n" + "The dog sleeps. " * 100)
    playground.run(panel)
    assert playground.numbers(panel)["too long and cut"] == "1 of the inputs"


@pytest.mark.parametrize(
    ("tab", "path"),
    [
        ("Classify", "/classify"),
        ("Zero-shot", "/zero_shot_classify"),
        ("Fill mask", "/fill_mask"),
        ("Rerank", "/rerank"),
    ],
)
def test_bars(playground: Playground, tab: str, path: str) -> None:
    panel = playground.tab(tab)
    output = playground.run(panel)
    body = playground.body(panel)
    expected = playground.server.post(path, body)
    if path == "/zero_shot_classify":
        expected = [
            {"label": label, "score": score}
            for label, score in zip(expected["labels"], expected["scores"], strict=True)
        ]
    labels = {
        "/rerank": lambda answer: body["texts"][answer["index"]],
        "/fill_mask": lambda answer: answer["sequence"],
    }.get(path, lambda answer: answer["label"])
    assert output.locator(".bar-label").all_inner_texts() == [labels(answer) for answer in expected]
    scores = [f"{answer['score']:.3f}" if path == "/rerank" else f"{100 * answer['score']:.1f}%" for answer in expected]
    assert output.locator(".bar-score").all_inner_texts() == scores


def test_the_mask_follows_the_model(playground: Playground) -> None:
    panel = playground.tab("Fill mask")
    text = panel.get_by_label("Text with a mask")
    assert "[MASK]" in text.input_value()
    panel.get_by_label("Model").select_option("masked-roberta")
    assert "<mask>" in text.input_value() and "[MASK]" not in text.input_value()
    text.fill("Nobody counts ")
    panel.get_by_role("button", name="Insert the mask").click()
    assert text.input_value() == "Nobody counts <mask>"
    assert playground.run(panel).locator(".bar-label").count() == 5


def test_entities(playground: Playground) -> None:
    panel = playground.tab("Entities")
    output = playground.run(panel)
    body = playground.body(panel)
    expected = playground.server.post("/token_classify", body)
    assert len(expected) >= 2 and "🎩" in body["inputs"]
    marks = output.locator("mark").all()
    for mark, entity in zip(marks, expected, strict=True):
        text = body["inputs"][entity["start"] : entity["end"]]
        assert mark.text_content() == text + entity["entity_group"]
    labels = output.locator("mark .label").all_inner_texts()
    whole = output.locator(".marked-text").text_content() or ""
    assert len(whole) == len(body["inputs"]) + sum(map(len, labels))


def test_question(playground: Playground) -> None:
    panel = playground.tab("Question")
    output = playground.run(panel)
    body = playground.body(panel)
    expected = playground.server.post("/question_answer", body)
    assert output.locator("mark").text_content() == body["context"][expected[0]["start"] : expected[0]["end"]]
    assert output.locator(".bar-label").all_text_contents() == [answer["answer"] for answer in expected]


def test_speech(playground: Playground, tmp_path: Path) -> None:
    file = tmp_path / "recording.wav"
    file.write_bytes(wav(recording(2.0, seed=1)))
    panel = playground.tab("Speech")
    assert "Choose a file" in _error_of(playground, panel)
    panel.get_by_label("Recording").set_input_files(file)
    panel.get_by_label("Language", exact=True).fill("de")
    output = playground.run(panel)
    answer = playground.server.running.post(
        "/v1/audio/transcriptions",
        files={"file": file.read_bytes()},
        data={
            "model": "speech",
            "language": "de",
            "response_format": "verbose_json",
            "timestamp_granularities[]": ["segment", "word"],
        },
        headers=playground.server.headers,
    ).json()
    assert answer["words"] and len(answer["segments"]) == output.locator(".transcript li").count()
    shown = output.locator(".spoken-word").all_text_contents()
    assert [word.strip() for word in shown] == [word["word"].strip() for word in answer["words"]]
    first = answer["words"][0]
    panel.locator("audio").evaluate("(player, at) => { player.currentTime = at }", (first["start"] + first["end"]) / 2)
    expect(output.locator(".spoken-word.now").first).to_be_attached()
    for title, start in [("SRT", "1\n00:00:"), ("VTT", "WEBVTT\n\n00:00:")]:
        with playground.page.expect_download() as download:
            output.get_by_role("button", name=title, exact=True).click()
        assert download.value.path().read_text().startswith(start)
    panel.get_by_label("Write").select_option(label="Translation into English")
    assert panel.get_by_label("Language", exact=True).is_hidden()
    playground.run(panel)
    assert panel.locator(".transcript").is_visible()


def test_a_dropped_recording_is_taken(playground: Playground) -> None:
    panel = playground.tab("Speech")
    data = playground.page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.items.add(new File(['RIFF'], 'dropped.wav')); return data }"
    )
    panel.locator(".drop").dispatch_event("drop", {"dataTransfer": data})
    expect(panel.get_by_text("dropped.wav, 0.0 MB")).to_be_visible()
    expect(panel.locator("audio")).to_be_visible()
    assert "dropped.wav" in panel.locator(".code code").inner_text()


def _error_of(playground: Playground, panel) -> str:
    playground.run(panel)
    return panel.get_by_role("alert").inner_text()


def test_an_error_names_its_field(playground: Playground) -> None:
    playground.expected = {422}
    panel = playground.tab("Generate")
    panel.get_by_label("Temperature").fill("-2")
    error = _error_of(playground, panel)
    assert "temperature" in error and "field temperature" in error and "status 422" in error
    assert panel.get_by_label("Temperature").get_attribute("aria-invalid") == "true"
    panel.get_by_label("Temperature").fill("0.5")
    playground.run(panel)
    assert panel.get_by_role("alert").is_hidden()
    assert panel.get_by_label("Temperature").get_attribute("aria-invalid") is None


def test_answers_are_never_html(playground: Playground) -> None:
    hostile = '<img src="x" onerror="document.title = 1"><b>bold</b>'
    panel = playground.tab("Rerank")
    panel.get_by_label("Texts").fill(hostile)
    output = playground.run(panel)
    assert output.locator(".bar-label").inner_text() == hostile
    assert output.locator("img, b").count() == 0
    refused = "() => { try { document.body.innerHTML = '<p>'; return false } catch { return true } }"
    playground.expected = set()
    assert playground.page.evaluate(refused), "the security policy refuses markup from strings"
    playground.problems = [text for text in playground.problems if "TrustedHTML" not in text]
