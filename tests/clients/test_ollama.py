"""The `ollama` client package, unchanged, against a running server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import ollama
import pytest

from tests.clients.conftest import ClientServer
from tests.waiting import read_in_parts

MESSAGES = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"num_predict": 16, "temperature": 0}


@pytest.fixture
def client(server: ClientServer) -> ollama.Client:
    return ollama.Client(host=server.url, headers=server.headers)


def weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: The name of the city.
    """
    return f"rain in {city}"


def test_a_chat_and_its_stream_are_equal(client: ollama.Client) -> None:
    whole = client.chat("caller", MESSAGES, options=GREEDY)
    assert whole.model == "caller" and whole.done and whole.done_reason == "length"
    assert whole.message.role == "assistant" and whole.message.content
    assert whole.eval_count == 16 and whole.prompt_eval_count and whole.load_duration == 0
    assert whole.total_duration >= whole.eval_duration > 0 and whole.prompt_eval_duration > 0
    parts = read_in_parts(
        lambda: list(client.chat("caller", MESSAGES, options=GREEDY, stream=True)), lambda parts: len(parts) > 4
    )
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 16


def test_a_prompt_is_answered_as_chat_or_raw(client: ollama.Client) -> None:
    chat = client.chat("caller", [{"role": "system", "content": "Be brief."}, *MESSAGES], options=GREEDY)
    templated = client.generate("caller:latest", MESSAGES[0]["content"], system="Be brief.", options=GREEDY)
    assert templated.response == chat.message.content
    assert templated.prompt_eval_count == chat.prompt_eval_count
    raw = client.generate("caller", MESSAGES[0]["content"], raw=True, options=GREEDY)
    assert raw.prompt_eval_count < templated.prompt_eval_count
    streamed = client.generate("caller", MESSAGES[0]["content"], raw=True, options=GREEDY, stream=True)
    assert "".join(part.response for part in streamed) == raw.response


def test_an_encoder_decoder_answers_a_prompt(client: ollama.Client) -> None:
    answer = client.generate("translator-en-fr", "I am a student.")
    assert answer.response and answer.done_reason == "stop"


def test_without_a_question_the_model_is_loaded(client: ollama.Client) -> None:
    assert client.generate("caller").done_reason == "load"
    assert client.chat("caller").done_reason == "load"
    (part,) = client.generate("caller", stream=True)
    assert part.done and part.done_reason == "load"


def test_options_work(client: ollama.Client) -> None:
    text = client.chat("caller", MESSAGES, options=GREEDY).message.content
    stop = text.split()[2]
    stopped = client.chat("caller", MESSAGES, options=GREEDY | {"stop": [stop]})
    assert stopped.message.content == text[: text.index(stop)] and stopped.done_reason == "stop"
    seeds = [
        client.chat("caller", MESSAGES, options={"seed": seed, "temperature": 1.5, "num_predict": 16}).message.content
        for seed in (1, 1, 2)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    hints = {"num_ctx": 64, "num_thread": 2, "num_gpu": 0, "use_mmap": True, "mirostat": 0, "tfs_z": 1.0}
    hinted = client.chat("caller", MESSAGES, options=GREEDY | hints, keep_alive="5m")
    assert hinted.message.content == text
    longer = {"num_predict": 48, "temperature": 0}
    ignored = {"repeat_penalty": 3.0, "repeat_last_n": 0}
    plain, penalized, unpenalized = (
        client.chat("caller", MESSAGES, options=longer | more).message.content
        for more in ({}, {"repeat_penalty": 3.0}, ignored)
    )
    assert penalized != plain == unpenalized


def test_without_num_predict_the_answer_may_fill_the_context(client: ollama.Client) -> None:
    answer = client.generate("caller", "a", raw=True, options={"temperature": 0, "repeat_penalty": 0.5})
    assert answer.done_reason == "stop" or answer.eval_count + answer.prompt_eval_count == 512


def test_formats_constrain_the_answer(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    content = client.chat("caller", MESSAGES, format=schema, options={"temperature": 0}).message.content
    assert content.replace(" ", "") in ('{"ok":true}', '{"ok":false}')
    answer = client.generate("caller", "Hello", format="json", options=GREEDY)
    assert answer.response.lstrip().startswith("{")


def test_log_probabilities(client: ollama.Client) -> None:
    whole = client.chat("caller", MESSAGES, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(whole.logprobs) == 16 and all(len(token.top_logprobs) == 2 for token in whole.logprobs)
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in whole.logprobs)
    parts = client.generate("caller", "Hello", raw=True, options=GREEDY, logprobs=True, stream=True)
    assert sum(len(part.logprobs or ()) for part in parts) == 16


def test_tools_and_their_results_are_rendered(client: ollama.Client) -> None:
    def prompt_tokens(messages: list[Any], **more: Any) -> int:
        return client.chat("caller", messages, options={"num_predict": 1}, **more).prompt_eval_count

    asked = [{"role": "user", "content": "Weather in Paris?"}]
    call = ollama.Message.ToolCall(
        function=ollama.Message.ToolCall.Function(name="weather", arguments={"city": "Paris"})
    )
    answered = [
        *asked,
        ollama.Message(role="assistant", tool_calls=[call]),
        {"role": "tool", "tool_name": "weather", "content": weather("Paris")},
    ]
    assert prompt_tokens(asked) < prompt_tokens(asked, tools=[weather]) < prompt_tokens(answered, tools=[weather])


def test_thinking_is_a_switch_of_the_template(client: ollama.Client) -> None:
    lengths = [
        client.chat("thinker", MESSAGES, think=think, options={"num_predict": 1}).prompt_eval_count
        for think in (None, False, True, "low", "high")
    ]
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3] == lengths[4]


def test_embeddings(client: ollama.Client, server: ClientServer) -> None:
    texts = ["The cat sat.", "A dog ran away."]
    answer = client.embed("sentence-encoder:latest", texts)
    vectors = np.array(answer.embeddings)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    native = httpx.post(f"{server.url}/embed", json={"inputs": texts}, headers=server.headers).json()
    np.testing.assert_allclose(vectors, native, rtol=1e-5)
    assert answer.model == "sentence-encoder" and answer.prompt_eval_count > 6 and answer.total_duration > 0
    (short,) = client.embed("sentence-encoder", texts[0], dimensions=8).embeddings
    np.testing.assert_allclose(short, vectors[0, :8] / np.linalg.norm(vectors[0, :8]), rtol=1e-4)
    old = np.array(client.embeddings("sentence-encoder", texts[0]).embedding)
    np.testing.assert_allclose(old / np.linalg.norm(old), vectors[0], rtol=1e-4)


def test_models_are_described(client: ollama.Client, server: ClientServer) -> None:
    names = [model.model for model in client.list().models]
    assert "caller:latest" in names and "sentence-encoder:latest" in names
    assert [model.model for model in client.ps().models] == names
    model = next(model for model in client.list().models if model.model == "caller:latest")
    assert model.size > 1_000_000 and len(model.digest) == 64 and model.modified_at.year > 2000
    assert model.details.family == "llama" and model.details.parameter_size == "1.1M"
    shown = client.show("caller:latest")
    assert shown.modelinfo["llama.context_length"] == 512 and "<tool_call>" in shown.template
    assert shown.capabilities == ["completion", "tools"]
    assert client.show("thinker").capabilities == ["completion", "thinking"]
    assert client.show("sentence-encoder").capabilities == ["embedding"]
    assert httpx.get(f"{server.url}/api/version", headers=server.headers).json()["version"].count(".") == 2


def test_wishes_and_content_types(server: ClientServer) -> None:
    """Options that the server lacks are dropped and named. These routes read any body as JSON, as Ollama does."""
    options = GREEDY | {"num_ctx": 1 << 20, "repeat_last_n": 64, "num_predictions": 3, "top_k": -1}
    body = {"model": "caller", "messages": MESSAGES, "options": options, "truncate": True, "think": None}
    plain = httpx.post(
        f"{server.url}/api/chat",
        json={"model": "caller", "messages": MESSAGES, "options": GREEDY, "stream": False},
        headers=server.headers,
    )
    assert "x-ignored-parameters" not in plain.headers
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        for stream in (False, True):
            answer = httpx.post(
                f"{server.url}/api/chat", content=json.dumps(body | {"stream": stream}), headers=server.headers | kind
            )
            lines = [json.loads(line)["message"]["content"] for line in answer.text.splitlines()]
            assert "".join(lines) == plain.json()["message"]["content"]
            assert set(answer.headers["x-ignored-parameters"].split(", ")) == {
                *("options.num_ctx", "options.repeat_last_n", "options:unknown", "truncate"),
            }
        for path, more in {
            "/api/generate": {"model": "caller", "prompt": "a", "stream": False, "options": {"num_predict": 1}},
            "/api/embed": {"model": "sentence-encoder", "input": "a"},
            "/api/embeddings": {"model": "sentence-encoder", "prompt": "a"},
            "/api/show": {"name": "caller"},
        }.items():
            url = f"{server.url}{path}"
            assert httpx.post(url, content=json.dumps(more), headers=server.headers | kind).status_code == 200, path
    other = httpx.post(f"{server.url}/generate", content='{"prompt": "a"}', headers=server.headers)
    assert other.status_code == 415, "the other routes still demand JSON"


def test_a_context_above_that_of_an_encoder_is_named(server: ClientServer) -> None:
    body = {"model": "sentence-encoder", "input": "a", "options": {"num_ctx": 1 << 20, "temperature": 0}}
    answer = httpx.post(f"{server.url}/api/embed", json=body, headers=server.headers)
    assert answer.status_code == 200 and answer.headers["x-ignored-parameters"] == "options.num_ctx"


def test_without_a_text_there_is_no_vector(client: ollama.Client) -> None:
    assert client.embed("sentence-encoder", []).embeddings == client.embed("sentence-encoder", "").embeddings == []
    assert client.embeddings("sentence-encoder", "").embedding == []


def test_a_tool_loop_with_ids_of_the_client(client: ollama.Client) -> None:
    """A tool result may name its call by an id that the client made up, by the function, or not at all."""
    asked = [{"role": "user", "content": "Weather in Paris?"}]
    limit = {"num_predict": 64, "temperature": 0}
    tokens = []
    for result in ({"tool_call_id": "of-the-client"}, {"name": "weather"}, {"tool_name": "weather"}, {}):
        call = {"function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        messages = [
            *asked,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": weather("Paris")} | result,
        ]
        body = {"model": "caller", "messages": messages, "options": limit, "stream": False, "tools": [TOOL]}
        answer = client._client.post("/api/chat", json=body)
        assert answer.status_code == 200, answer.text
        tokens.append(answer.json()["prompt_eval_count"])
    assert len(set(tokens)) == 1


def test_a_call_can_be_forced(client: ollama.Client) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        body = {"model": "caller", "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "stream": False}
        answer = client._client.post("/api/chat", json=body | {"options": {"num_predict": 128, "temperature": 0}})
        message = answer.json()["message"]
        assert answer.json()["done_reason"] == "length" or message["tool_calls"][0]["function"]["name"] == "weather"
        assert message["content"] == ""


TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "`options.mirostat` is not supported, except as 0": {"options": {"mirostat": 2}},
    "`options.temperature`": {"options": {"temperature": "hot"}},
    "`think` must be": {"think": "x" * 20},
    "`options.num_predict`": {"options": {"num_predict": -3}},
    "`logprobs`": {"top_logprobs": 2},
    "`messages[0].images` is not supported": {"messages": [{"role": "user", "content": "a", "images": [b"x"]}]},
    "`messages` has a message of the role tool": {"messages": [{"role": "tool", "content": "a"}]},
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_wrong_field_of_a_chat_is_named(client: ollama.Client, named: str) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(**({"model": "caller", "messages": MESSAGES} | REFUSED[named]))
    assert caught.value.status_code == 400 and named in caught.value.error


@pytest.mark.parametrize(
    "field", [{"suffix": "x"}, {"template": "x"}, {"context": [1]}, {"images": [b"x"]}, {"width": 8}]
)
def test_a_field_that_generate_lacks_is_named(client: ollama.Client, field: dict[str, Any]) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("caller", "Hello", **field)
    assert caught.value.status_code == 400 and caught.value.error.startswith(f"`{next(iter(field))}` is not supported")
    with pytest.raises(ollama.ResponseError, match="`system` cannot be combined with `raw`"):
        client.generate("caller", "Hello", system="x", raw=True)


def test_errors_have_the_shape_of_the_client(client: ollama.Client, server: ClientServer) -> None:
    for call in (lambda: client.chat("no-such-model", MESSAGES), lambda: client.show("no-such-model")):
        with pytest.raises(ollama.ResponseError) as unknown:
            call()
        assert unknown.value.status_code == 404 and "model" in unknown.value.error
    with pytest.raises(ollama.ResponseError, match="does not answer /api/chat") as wrong:
        client.chat("sentence-encoder", MESSAGES)
    assert wrong.value.status_code == 400
    body = {"model": "caller", "messages": MESSAGES, "format": "yaml"}
    answer = httpx.post(f"{server.url}/api/chat", json=body, headers=server.headers)
    assert answer.status_code == 400 and answer.json()["error"].startswith("`format` must be")
    with pytest.raises(ollama.ResponseError) as pulled:
        client.pull("caller")
    assert pulled.value.status_code == 404 and pulled.value.error == "there is no such route"
    streamed = client.chat("caller", [{"role": "user", "content": "word " * 600}], stream=True)
    with pytest.raises(ollama.ResponseError, match="`messages` has"):
        next(streamed)
    if server.needs_key:
        with pytest.raises(ollama.ResponseError) as refused:
            ollama.Client(host=server.url).chat("caller", MESSAGES)
        assert refused.value.status_code == 401
