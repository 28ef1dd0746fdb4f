"""The `cohere` client package, unchanged, and Jina's request bodies, against a running server."""

from __future__ import annotations

import base64
import json
from typing import Any

import cohere
import httpx
import numpy as np
import pytest
from cohere.core.api_error import ApiError
from cohere.core.request_options import RequestOptions
from sentence_transformers.util import quantize_embeddings

from tests.clients.conftest import ClientServer

TEXTS = ["The cat sat on the mat.", "A dog ran away."]
DOCUMENTS = ["The fox is a small wild animal.", "Paris is in France.", "Foxes live in forests."]
ONCE = RequestOptions(max_retries=0)


@pytest.fixture
def client(server: ClientServer) -> cohere.ClientV2:
    return cohere.ClientV2(base_url=server.url, api_key=server.key)


def native(server: ClientServer, path: str, **body: Any) -> Any:
    return httpx.post(server.url + path, json=body, headers=server.headers).json()


def test_embeddings_in_every_encoding(client: cohere.ClientV2, server: ClientServer) -> None:
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = client.embed(
        model="sentence-encoder", texts=TEXTS, input_type="search_document", embedding_types=kinds, truncate="END"
    )
    vectors = np.array(answer.embeddings.float_, dtype=np.float32)
    expected = native(server, "/embed", model="sentence-encoder", inputs=TEXTS)
    np.testing.assert_allclose(vectors, expected, rtol=1e-5, atol=1e-6)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in answer.embeddings.base64]
    np.testing.assert_array_equal(decoded, vectors)
    for kind in ("binary", "ubinary"):
        assert getattr(answer.embeddings, kind) == quantize_embeddings(vectors, kind).tolist()
    assert answer.texts == TEXTS and answer.id and answer.meta.billed_units.input_tokens > 8
    only = client.embed(model="sentence-encoder", texts=TEXTS, input_type="classification")
    assert only.embeddings.float_ == answer.embeddings.float_ and only.embeddings.base64 is None


def test_the_input_type_chooses_the_prompt(client: cohere.ClientV2, server: ClientServer) -> None:
    names = {"search_query": "query", "search_document": "passage", "clustering": None}
    for input_type, name in names.items():
        answer = client.embed(model="prompted-encoder", texts=TEXTS, input_type=input_type)
        expected = native(server, "/embed", model="prompted-encoder", inputs=TEXTS, prompt_name=name)
        np.testing.assert_allclose(answer.embeddings.float_, expected, rtol=1e-4, atol=1e-6)


def test_inputs_dimensions_and_truncation(client: cohere.ClientV2, server: ClientServer) -> None:
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    answer = client.embed(model="sentence-encoder", inputs=inputs, input_type="clustering", output_dimension=8)
    expected = native(server, "/embed", model="sentence-encoder", inputs=TEXTS, dimensions=8)
    np.testing.assert_allclose(answer.embeddings.float_, expected, rtol=1e-4, atol=1e-6)
    text = "cat " * 400 + "dog " * 400
    start, end = (
        client.embed(
            model="sentence-encoder", texts=[text], input_type="clustering", truncate=truncate
        ).embeddings.float_[0]
        for truncate in ("START", "END")
    )
    assert np.dot(start, end) < 0.99
    with pytest.raises(cohere.BadRequestError, match="`texts` contains a text of"):
        client.embed(model="sentence-encoder", texts=[text], input_type="clustering", truncate="NONE")


def test_embedded_texts_are_cut_at_a_number_of_tokens(client: cohere.ClientV2, server: ClientServer) -> None:
    asked = {"model": "sentence-encoder", "input_type": "clustering", "max_tokens": 5}
    cut = {side: client.embed(**asked, texts=TEXTS[:1], truncate=side).embeddings.float_ for side in ("START", "END")}
    (tokens,) = native(server, "/tokenize", model="sentence-encoder", inputs=TEXTS[0])
    words = [token for token in tokens if not token["special"]]
    kept = 5 - (len(tokens) - len(words))
    beginning, end = TEXTS[0][: words[kept - 1]["end"]], TEXTS[0][words[-kept]["start"] :]
    for side, text in (("END", beginning), ("START", end)):
        np.testing.assert_allclose(cut[side], native(server, "/embed", inputs=[text]), rtol=1e-4, atol=1e-6)


def test_rerank(client: cohere.ClientV2, server: ClientServer) -> None:
    answer = client.rerank(model="cross-encoder", query="Where do foxes live?", documents=DOCUMENTS)
    expected = native(server, "/rerank", model="cross-encoder", query="Where do foxes live?", texts=DOCUMENTS)
    assert [(result.index, result.relevance_score) for result in answer.results] == [
        (document["index"], pytest.approx(document["score"])) for document in expected
    ]
    assert answer.id and answer.meta.billed_units.search_units == 1
    best = client.rerank(model="cross-encoder", query="Where do foxes live?", documents=DOCUMENTS, top_n=1)
    assert [result.index for result in best.results] == [answer.results[0].index]


def test_documents_are_cut_at_a_number_of_tokens(client: cohere.ClientV2, server: ClientServer) -> None:
    (tokens,) = native(server, "/tokenize", model="cross-encoder", inputs=DOCUMENTS[0], add_special_tokens=False)
    beginning = DOCUMENTS[0][: tokens[2]["end"]]
    cut = client.rerank(model="cross-encoder", query="A fox?", documents=DOCUMENTS[:1], max_tokens_per_doc=3)
    same = client.rerank(model="cross-encoder", query="A fox?", documents=[beginning])
    whole = client.rerank(model="cross-encoder", query="A fox?", documents=DOCUMENTS[:1], max_tokens_per_doc=500)
    assert cut.results[0].relevance_score == same.results[0].relevance_score != whole.results[0].relevance_score


def test_the_first_version_of_the_client(server: ClientServer) -> None:
    client = cohere.Client(base_url=server.url, api_key=server.key)
    answer = client.rerank(
        model="cross-encoder", query="A fox?", documents=[{"text": text} for text in DOCUMENTS], return_documents=True
    )
    assert (
        all(result.document.text == DOCUMENTS[result.index] for result in answer.results) and len(answer.results) == 3
    )


def test_fields_of_other_servers_are_accepted_or_named(server: ClientServer) -> None:
    plain = native(server, "/v1/rerank", **RERANK)["results"]
    hints = {"rank_fields": ["text"], "priority": 1, "request_id": "x", "user": "me", "max_chunks_per_doc": None}
    assert native(server, "/v1/rerank", **RERANK, **hints)["results"] == plain
    answer = httpx.post(server.url + "/v1/rerank", json=RERANK | {"max_chunks_per_doc": 10}, headers=server.headers)
    assert answer.json()["results"] == plain
    assert answer.headers["x-ignored-parameters"] == "max_chunks_per_doc"


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_jina(server: ClientServer, path: str) -> None:
    body = {"model": "cross-encoder", "query": "A fox?", "documents": DOCUMENTS, "top_n": 2}
    answer = native(server, path, **body)
    assert answer["model"] == "cross-encoder" and len(answer["results"]) == 2
    assert answer["usage"]["total_tokens"] > 12 and set(answer["results"][0]) == {"index", "relevance_score"}
    with_text = native(server, path, **body, return_documents=True)
    assert with_text["results"][0]["document"]["text"] == DOCUMENTS[with_text["results"][0]["index"]]


EMBED = {"model": "sentence-encoder", "texts": TEXTS, "input_type": "search_query"}
RERANK = {"model": "cross-encoder", "query": "A fox?", "documents": DOCUMENTS}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v2/embed", EMBED | {"input_type": "image"}, "`input_type`"),
        ("/v2/embed", EMBED | {"embedding_types": ["int8"]}, "`embedding_types[0]`"),
        ("/v2/embed", EMBED | {"images": ["data:image/png;base64,AA=="]}, "`images` is not supported"),
        ("/v2/embed", EMBED | {"inputs": [{"content": "a"}]}, "either `texts` or `inputs`"),
        ("/v2/embed", EMBED | {"max_tokens": 0}, "`max_tokens` must be at least 1"),
        ("/v2/embed", EMBED | {"max_tokens": 3, "truncate": "NONE"}, "reads at most 3"),
        ("/v2/embed", EMBED | {"output_dimension": 100_000}, "`output_dimension` 100000"),
        ("/v2/embed", EMBED | {"texts": "a"}, "`texts`"),
        ("/v2/embed", {key: EMBED[key] for key in ("model", "texts")}, "`input_type` is required"),
        ("/v2/rerank", RERANK | {"documents": []}, "`documents`"),
        ("/v2/rerank", RERANK | {"return_documents": True}, "unknown field `return_documents`"),
        ("/v2/rerank", RERANK | {"relevant_spans": {"enabled": True}}, "`relevant_spans` is not supported"),
        ("/v1/rerank", RERANK | {"documents": [{"title": "a"}]}, "`documents"),
        ("/v1/rerank", RERANK | {"rank_fields": ["title"]}, "`rank_fields` is not supported"),
        ("/rerank", RERANK | {"top_n": 0}, "`top_n`"),
        ("/rerank", RERANK | {"texts": ["a"]}, "unknown field `texts`"),
        ("/v2/rerank", RERANK | {"model": "sentence-encoder"}, "does not answer /v2/rerank"),
    ],
)
def test_a_wrong_field_is_named(server: ClientServer, path: str, body: dict[str, Any], named: str) -> None:
    answer = httpx.post(server.url + path, json=body, headers=server.headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert set(error) == {"id", "message"} and named in error["message"]


CHAT: dict[str, Any] = {"model": "caller", "messages": [{"role": "user", "content": "Once upon a time"}]}


def test_a_chat_and_its_stream_are_equal(client: cohere.ClientV2) -> None:
    whole = client.chat(**CHAT, max_tokens=16, temperature=0, logprobs=True)
    assert whole.finish_reason == "MAX_TOKENS" and whole.usage.tokens.output_tokens == 16
    assert len(whole.logprobs) == 16 and all(logprob.logprobs[0] <= 0 for logprob in whole.logprobs)
    events = list(client.chat_stream(**CHAT, max_tokens=16, temperature=0))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message-start", "content-start"] and kinds[-2:] == ["content-end", "message-end"]
    text = "".join(event.delta.message.content.text for event in events if event.type == "content-delta")
    assert text == whole.message.content[0].text
    assert events[-1].delta.finish_reason == "MAX_TOKENS"
    assert events[-1].delta.usage.tokens.input_tokens == whole.usage.tokens.input_tokens


def test_options_of_a_chat(client: cohere.ClientV2) -> None:
    text = client.chat(**CHAT, max_tokens=16, temperature=0).message.content[0].text
    stop = text.split()[2]
    stopped = client.chat(**CHAT, max_tokens=16, temperature=0, stop_sequences=[stop])
    assert stopped.finish_reason == "STOP_SEQUENCE" and stopped.message.content[0].text == text[: text.index(stop)]
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    answer = client.chat(**CHAT, temperature=0, response_format={"type": "json_object", "json_schema": schema})
    assert answer.message.content[0].text.replace(" ", "") in ('{"ok":true}', '{"ok":false}')
    seeds = [
        client.chat(**CHAT, max_tokens=16, temperature=1.5, k=50, p=0.99, seed=seed).message.content[0].text
        for seed in (1, 1, 2)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    lengths = [
        client.chat(**CHAT | {"model": "thinker"}, max_tokens=1, thinking={"type": kind}).usage.tokens.input_tokens
        for kind in ("disabled", "enabled")
    ]
    assert lengths[0] < lengths[1]


def test_a_call_is_forced_and_streamed(client: cohere.ClientV2) -> None:
    cities = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    function = {"name": "weather", "parameters": cities | {"additionalProperties": False}}
    arguments = CHAT | {"tools": [{"type": "function", "function": function}], "tool_choice": "REQUIRED"}
    arguments["temperature"] = 0
    arguments["thinking"] = {"type": "disabled"}
    answer = client.chat(**arguments, max_tokens=200)
    assert answer.finish_reason in ("TOOL_CALL", "MAX_TOKENS")
    call = answer.message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    events = list(client.chat_stream(**arguments, max_tokens=200))
    deltas = [event for event in events if event.type == "tool-call-delta" and event.index == 0]
    streamed = "".join(event.delta.message.tool_calls.function.arguments for event in deltas)
    assert streamed == call.function.arguments


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ({"documents": ["a"]}, "`documents` is not supported"),
        ({"safety_mode": "STRICT"}, "`safety_mode` is not supported"),
        ({"thinking": {"type": "sometimes"}}, "`thinking.type` must be"),
        ({"tool_choice": "REQUIRED"}, "`tool_choice`"),
        ({"k": -1}, "`k`"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "`json_schema`"),
    ],
)
def test_a_wrong_field_of_a_chat_is_named(client: cohere.ClientV2, field: dict[str, Any], named: str) -> None:
    with pytest.raises(cohere.BadRequestError) as caught:
        client.chat(**CHAT, **field)
    assert named in caught.value.body["message"]


def test_errors_have_the_classes_of_the_client(client: cohere.ClientV2, server: ClientServer) -> None:
    with pytest.raises(cohere.NotFoundError) as unknown:
        client.embed(model="no-such-model", texts=TEXTS, input_type="clustering", request_options=ONCE)
    assert "model" in unknown.value.body["message"]
    if server.needs_key:
        stranger = cohere.ClientV2(base_url=server.url, api_key="wrong")
        with pytest.raises(ApiError) as refused:
            stranger.rerank(**RERANK, request_options=ONCE)
        assert refused.value.status_code == 401 and "API key" in refused.value.body["message"]
