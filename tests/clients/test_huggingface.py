"""`huggingface_hub.InferenceClient`, unchanged, with the URL of a model: every task of the hub that Triptych serves."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError

from tests.audio.compressed import encode
from tests.clients.conftest import ClientServer
from tests.clients.models import T5_TASKS, write_summarizing_t5
from tests.e2e.conftest import RunningServer, serving
from tests.parity.speech import recording

PROMPT = "Once upon a time"


@pytest.fixture
def client(server: ClientServer):
    """A function that creates a client for the named model, or for the default model."""

    def create(model: str | None = None) -> InferenceClient:
        return InferenceClient(model=f"{server.url}/models/{model}" if model else server.url, token=server.key)

    return create


def test_text_generation(client) -> None:
    story = client("story")
    text = story.text_generation(PROMPT, max_new_tokens=12)
    assert isinstance(text, str) and text
    assert story.text_generation(PROMPT, max_new_tokens=12, return_full_text=True) == PROMPT + text
    output = story.text_generation(PROMPT, max_new_tokens=12, details=True, decoder_input_details=True, top_n_tokens=2)
    assert output.generated_text == text
    details = output.details
    assert details.finish_reason == "length" and details.generated_tokens == 12 == len(details.tokens)
    assert "".join(token.text for token in details.tokens if not token.special) == text
    assert details.prefill[0].logprob is None and all(token.logprob < 0 for token in details.prefill[1:])
    assert "".join(token.text for token in details.prefill) == "<s>" + PROMPT
    for token, top in zip(details.tokens, details.top_tokens, strict=True):
        assert len(top) == 2 and token.id == top[0]["id"]  # greedy search takes the likeliest token
        assert top[0]["logprob"] >= top[1]["logprob"]


def test_text_generation_as_a_stream(client) -> None:
    story = client("story")
    text = story.text_generation(PROMPT, max_new_tokens=12)
    assert "".join(story.text_generation(PROMPT, max_new_tokens=12, stream=True)) == text
    events = list(story.text_generation(PROMPT, max_new_tokens=12, stream=True, details=True))
    assert [event.index for event in events] == list(range(1, 13))
    assert [event.generated_text for event in events] == [None] * 11 + [text]
    assert events[-1].details.generated_tokens == 12 and events[-1].details.input_length > 0
    assert "".join(event.token.text for event in events) == text


def test_sampling_and_best_of(client) -> None:
    story = client("story")
    settings = {"max_new_tokens": 10, "do_sample": True, "temperature": 0.9, "top_k": 30, "top_p": 0.9, "seed": 7}
    assert story.text_generation(PROMPT, **settings) == story.text_generation(PROMPT, **settings)
    best = story.text_generation(PROMPT, best_of=3, details=True, **settings)
    others = best.details.best_of_sequences
    assert len(others) == 2

    def mean(tokens) -> float:
        return sum(token.logprob for token in tokens) / len(tokens)

    assert mean(best.details.tokens) >= max(mean(other.tokens) for other in others)
    assert {best.details.seed, *(other.seed for other in others)} == {7, 8, 9}


def test_stop_strings_stay_in_the_text(client) -> None:
    story = client("story")
    text = story.text_generation(PROMPT, max_new_tokens=20)
    stop = text[4:8]
    output = story.text_generation(PROMPT, max_new_tokens=20, stop=[stop], details=True)
    assert output.generated_text == text[: text.index(stop) + len(stop)]
    assert output.details.finish_reason == "stop_sequence"


def test_grammars(client) -> None:
    story = client("story")
    schema = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}
    schema["additionalProperties"] = False
    text = story.text_generation(PROMPT, grammar={"type": "json", "value": schema})
    assert text.replace(" ", "") in ('{"animal":"cat"}', '{"animal":"dog"}')
    assert story.text_generation(PROMPT, grammar={"type": "regex", "value": "(red|blue) hats"}).endswith(" hats")


def test_text_generation_errors(client) -> None:
    story = client("story")
    for field, value in (("watermark", True), ("temperature", -1.0), ("best_of", 2)):
        with pytest.raises(ValidationError, match=field):
            story.text_generation(PROMPT, **{field: value})
    with pytest.raises(ValidationError, match="best_of"):
        list(story.text_generation(PROMPT, best_of=2, do_sample=True, stream=True))
    with pytest.raises(HfHubHTTPError, match="no model"):
        client("nothing").text_generation(PROMPT)


def test_feature_extraction(client) -> None:
    encoder = client("sentence-encoder")
    (vector,) = encoder.feature_extraction("The cat sleeps.")
    assert vector.ndim == 1 and np.linalg.norm(vector) == pytest.approx(1, rel=1e-5)
    raw = encoder.feature_extraction("The cat sleeps.", normalize=False)[0]
    np.testing.assert_allclose(raw / np.linalg.norm(raw), vector, rtol=1e-4, atol=1e-6)
    short = encoder.feature_extraction("The cat sleeps.", dimensions=8, truncate=True, truncation_direction="left")
    assert short.shape == (1, 8)
    with pytest.raises(HfHubHTTPError, match="encoding_format"):
        encoder.feature_extraction("The cat sleeps.", encoding_format="base64")


def test_sentence_similarity(client) -> None:
    sentences = ["The cat was chased by the dog.", "The king bought a red boat."]
    found = client("sentence-encoder").sentence_similarity("The dog chased the cat.", other_sentences=sentences)
    assert len(found) == 2 and all(-1 <= number <= 1 for number in found)


def test_text_classification(client) -> None:
    labels = client("sentiment").text_classification("I loved this wonderful film")
    assert [label.label for label in labels] == ["POSITIVE", "NEGATIVE"]
    assert sum(label.score for label in labels) == pytest.approx(1)
    (only,) = client("sentiment").text_classification("I loved this film", top_k=1, function_to_apply="sigmoid")
    assert only.label == "POSITIVE"


def test_zero_shot_classification(client) -> None:
    labels = ["music", "sport", "law"]
    found = client("nli").zero_shot_classification("The band played until midnight.", labels)
    assert {label.label for label in found} == set(labels) and sum(label.score for label in found) == pytest.approx(1)
    assert [label.score for label in found] == sorted((label.score for label in found), reverse=True)
    each = client("nli").zero_shot_classification("A band.", labels, multi_label=True, hypothesis_template="On {}.")
    assert len(each) == 3


def test_fill_mask(client) -> None:
    words = client("mlm").fill_mask("the old [MASK] slept.", top_k=3)
    assert len(words) == 3 and words[0].score >= words[1].score and words[0].token_str in words[0].sequence


def test_token_classification(client) -> None:
    found = client("ner").token_classification("The old sailor slept.")
    assert all(0 <= entity.start < entity.end and entity.entity_group for entity in found)
    tokens = client("ner").token_classification("The old sailor slept.", aggregation_strategy="none", stride=2)
    assert tokens and all(token.entity for token in tokens)
    label = tokens[0].entity
    kept = client("ner").token_classification(
        "The old sailor slept.", aggregation_strategy="none", ignore_labels=[label]
    )
    assert [token.entity for token in kept] == [token.entity for token in tokens if token.entity != label]


def test_question_answering(client) -> None:
    context = "the old sailor slept in a blue house."
    answer = client("qa").question_answering("who slept?", context)
    assert context[answer.start : answer.end] == answer.answer
    several = client("qa").question_answering("who slept?", context, top_k=3)
    assert len(several) == 3 and several[0].score == pytest.approx(answer.score)
    (first, *_) = client("qa").question_answering("who slept?", context, top_k=2, max_answer_len=1)
    assert " " not in first.answer
    with pytest.raises(HfHubHTTPError, match="handle_impossible_answer"):
        client("qa").question_answering("who slept?", context, handle_impossible_answer=True)


def test_translation(client) -> None:
    translator = client("translator-en-fr")
    assert translator.translation("I am a student").translation_text == "Je suis un étudiant"
    named = translator.translation("I am a student", src_lang="en", tgt_lang="fr", generate_parameters={"num_beams": 2})
    assert named.translation_text == "Je suis un étudiant"
    with pytest.raises(HfHubHTTPError, match="tgt_lang"):
        translator.translation("I am a student", src_lang="en", tgt_lang="ja")
    with pytest.raises(HfHubHTTPError, match="max_lenght"):
        translator.translation("I am a student", generate_parameters={"max_lenght": 2})


def test_summarization(client) -> None:
    summarizer = client("summarizer")
    text = "The old sailor slept in a blue house."
    summary = summarizer.summarization(text)
    assert summary.summary_text
    short = summarizer.summarization(
        text, generate_parameters={"max_new_tokens": 2}, clean_up_tokenization_spaces=False
    )
    assert summary.summary_text.startswith(short.summary_text)
    with pytest.raises(HfHubHTTPError, match="truncation"):
        summarizer.summarization(text, truncation="only_second")
    assert summarizer.text_generation(text) == summary.summary_text
    assert summarizer.text_generation(text, max_new_tokens=2)


@pytest.fixture(scope="module")
def t5_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a T5 only. On the shared server, its languages would change the lists in other tests."""
    directory = tmp_path_factory.mktemp("t5")
    with serving(directory / "log", f"t5={write_summarizing_t5(directory / 't5')}") as running:
        yield running


def test_tasks_of_a_t5_have_their_prefixes_and_settings(t5_server: RunningServer) -> None:
    text = "The old sailor slept in a blue house."

    def client(path: str) -> InferenceClient:
        return InferenceClient(model=f"{t5_server.url}/models/{path}")

    t5 = client("t5")

    def written(task: str) -> str:
        """The answer of `/generate` to a request with the prefix and the settings of a task."""
        given = T5_TASKS[task]
        body = {"model": "t5", "prompt": given["prefix"] + text, "num_beams": given["num_beams"]}
        body |= {"max_new_tokens": given["max_length"] - 1, "min_new_tokens": max(given.get("min_length", 1) - 1, 0)}
        if "length_penalty" in given:
            body["length_penalty"] = given["length_penalty"]
        return t5_server.post("/generate", json=body).json()["choices"][0]["text"]

    summary, german = written("summarization"), written("translation_en_to_de")
    assert len({summary, german, written("translation_en_to_fr")}) == 3
    assert t5.summarization(text).summary_text == summary
    assert t5.translation(text, src_lang="en", tgt_lang="de").translation_text == german
    shorter = t5.summarization(text, generate_parameters={"max_new_tokens": 6}).summary_text
    assert shorter and shorter != summary
    # Lengths count the start token, as in transformers.
    assert t5.summarization(text, generate_parameters={"max_length": 7}).summary_text == shorter
    both = {"max_length": 30, "max_new_tokens": 6, "min_length": 2}
    assert t5.summarization(text, generate_parameters=both).summary_text == shorter
    with pytest.raises(HfHubHTTPError, match="`min_length` 9 is more than `max_length` 8"):
        t5.summarization(text, generate_parameters={"max_length": 8, "min_length": 9})
    assert t5.summarization(text, generate_parameters={"do_sample": True}).summary_text
    for task, expected in (("summarization", summary), ("translation", german)):
        if task == "summarization":
            assert client("t5/pipeline/summarization").summarization(text).summary_text == expected
        else:
            named = client("t5/pipeline/translation").translation(text, src_lang="en", tgt_lang="de")
            assert named.translation_text == expected
    with pytest.raises(HfHubHTTPError, match="tgt_lang"):
        client("t5/pipeline/translation").translation(text)
    with pytest.raises(HfHubHTTPError, match="the task in the path is not one of text-generation"):
        client("t5/pipeline/depth-estimation").translation(text)
    with pytest.raises(HfHubHTTPError, match="does not support the task fill-mask"):
        client("t5/pipeline/fill-mask").fill_mask(text)


def test_an_answer_without_a_stated_task_has_the_text_under_every_name(client) -> None:
    """Bodies of summarization and translation look the same. Without a task in the path, the answer has both fields."""
    text = "The old sailor slept in a blue house."
    summary = client("summarizer").summarization(text).summary_text
    assert client("summarizer").translation(text).translation_text == summary
    assert client("translator-en-fr").summarization("I am a student").summary_text == "Je suis un étudiant"


def test_chat(client) -> None:
    messages = [{"role": "user", "content": "Tell me about a fox."}]
    for chatter in (client("caller"), client()):
        answer = chatter.chat_completion(messages, max_tokens=12, seed=1, temperature=0.5)
        assert answer.choices[0].message.role == "assistant" and answer.usage.completion_tokens <= 12
        chunks = chatter.chat_completion(messages, max_tokens=12, seed=1, temperature=0.5, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer.choices[0].message.content
    schema = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}
    format = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema | _CLOSED}}
    answer = client("caller").chat_completion(messages, max_tokens=40, temperature=0, response_format=format)
    assert json.loads(answer.choices[0].message.content)["animal"] in ("cat", "dog")


_CLOSED = {"additionalProperties": False}


def test_tables_and_files_are_refused(client) -> None:
    with pytest.raises(HfHubHTTPError, match="tables"):
        client("qa").table_question_answering({"a": ["1"]}, "how many?")
    with pytest.raises(HfHubHTTPError, match="415"):
        client("sentiment").image_classification(b"GIF89a")


def test_the_default_model_answers_what_the_body_asks(client) -> None:
    """A request without a model is answered by the first model that supports the task that its fields imply."""
    first = client()
    assert first.text_generation(PROMPT, max_new_tokens=4)
    assert len(first.zero_shot_classification("A band.", ["music", "law"])) == 2
    assert first.question_answering("who slept?", "the old sailor slept.").answer
    assert len(first.sentence_similarity("a cat", other_sentences=["a dog"])) == 1
    assert first.translation("I am a student", src_lang="en", tgt_lang="fr").translation_text == "Je suis un étudiant"


def test_a_task_that_the_model_does_not_do(client) -> None:
    with pytest.raises(HfHubHTTPError, match="does not support the task zero-shot-classification"):
        client("story").zero_shot_classification("text", ["a", "b"])


def test_endpoint_info(server: ClientServer) -> None:
    info = InferenceClient(
        model=f"{server.url}/models/sentence-encoder", token=server.key, provider="hf-inference"
    ).get_endpoint_info()
    assert info["model_id"] == "sentence-encoder" and info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] > 0 and info["max_client_batch_size"] == 1024
    default = InferenceClient(model=server.url, token=server.key, provider="hf-inference").get_endpoint_info()
    assert default["model_id"] == "story" and default["max_total_tokens"] >= default["max_input_tokens"]


def test_a_wrong_key_is_refused(server: ClientServer) -> None:
    if not server.needs_key:
        pytest.skip("this server needs no key")
    wrong = InferenceClient(model=f"{server.url}/models/sentiment", token="wrong")
    with pytest.raises(HfHubHTTPError, match="401"):
        wrong.text_classification("text")


def test_automatic_speech_recognition(client) -> None:
    """The client gets a transcription.

    `tests/e2e/speech/test_other_clients.py` compares its text with our own route.
    """
    whisper, file = client("whisper"), encode("flac", recording(1.8, seed=2))
    answer = whisper.automatic_speech_recognition(file)
    assert answer.text and answer.chunks is None
    timed = whisper.automatic_speech_recognition(file, extra_body={"return_timestamps": True})
    assert timed.text == answer.text and all(start <= end <= 1.8 for start, end in (c.timestamp for c in timed.chunks))
    with pytest.raises(HfHubHTTPError, match="the MP3 file is damaged"):
        whisper.automatic_speech_recognition(b"ID3" + bytes(99))
