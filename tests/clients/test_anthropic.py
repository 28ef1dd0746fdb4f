"""The `anthropic` client package, unchanged, against a running server."""

from __future__ import annotations

import anthropic
import pytest

from tests.clients.conftest import ClientServer

MESSAGES = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0}
"""Field for greedy decoding. It is sent as an extra field, because the package no longer has an argument for it."""
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client(server: ClientServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)


def test_a_message_and_its_stream_are_equal(client: anthropic.Anthropic) -> None:
    arguments = {"model": "caller", "max_tokens": 24, "messages": MESSAGES, "system": "Tell stories."}
    arguments["extra_body"] = GREEDY
    message = client.messages.create(**arguments)
    assert message.type == "message" and message.role == "assistant" and message.model == "caller"
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason == "max_tokens" and message.stop_sequence is None
    assert message.usage.output_tokens == 24
    with client.messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text
    assert [part.text for part in final.content] == [block.text] and final.stop_reason == "max_tokens"
    prompt = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == prompt
    counted = client.messages.count_tokens(model="caller", messages=MESSAGES, system="Tell stories.")
    assert counted.input_tokens == prompt


def test_the_events_of_a_stream(client: anthropic.Anthropic) -> None:
    arguments = {"model": "caller", "max_tokens": 8, "messages": MESSAGES, "extra_body": GREEDY}
    events = list(client.messages.create(**arguments, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0].message.usage.input_tokens > 0 and events[0].message.content == []
    assert events[-2].usage.output_tokens == 8


def test_a_stop_sequence_is_reported(client: anthropic.Anthropic) -> None:
    arguments = {"model": "caller", "max_tokens": 24, "messages": MESSAGES, "extra_body": GREEDY}
    whole = client.messages.create(**arguments).content[0].text
    stop = whole.split()[3]
    message = client.messages.create(**arguments, stop_sequences=[stop, "@@"])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert message.content[0].text == whole[: whole.index(stop)]


def test_sampling_options_and_hints_are_accepted(client: anthropic.Anthropic) -> None:
    hint = {"type": "ephemeral", "ttl": "1h"}
    message = client.messages.create(
        model="caller",
        max_tokens=4,
        system=[{"type": "text", "text": "Tell stories.", "cache_control": hint}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": hint}]}],
        cache_control=hint,
        metadata={"user_id": "someone"},
        service_tier="auto",
        extra_body={"temperature": 0.7, "top_p": 0.9, "top_k": 5},
        extra_headers={"anthropic-beta": "prompt-caching-2024-07-31"},
    )
    assert message.usage.output_tokens <= 4


def test_fields_of_newer_models_are_accepted(client: anthropic.Anthropic) -> None:
    """Fields for features that the server lacks are accepted, and named in the header `X-Ignored-Parameters`."""
    answer = client.beta.messages.with_raw_response.create(
        model="caller",
        max_tokens=4,
        messages=[*MESSAGES, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}],
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high"},
        context_management={
            "edits": [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
        },
        tools=[
            WEATHER | {"defer_loading": True, "eager_input_streaming": True, "input_examples": [{"city": "Rome"}]},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        mcp_servers=[{"type": "url", "name": "m", "url": "https://a.example"}],
        betas=["context-management-2025-06-27"],
        speed="fast",
        diagnostics={"previous_message_id": None},
        cache_control={"type": "ephemeral", "scope": "global"},
    )
    assert answer.parse().usage.output_tokens <= 4
    names = "tools[0].input_examples, context_management.edits[1], mcp_servers, tools[1]"
    assert answer.headers["x-ignored-parameters"] == names


def test_zero_tokens_fill_the_prefix_cache(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "A prompt that is read before anybody asks about it. " * 8}]
    first = client.messages.create(model="caller", max_tokens=0, messages=messages)
    assert first.content == [] and first.stop_reason == "max_tokens" and first.usage.output_tokens == 0
    usage = client.messages.create(model="caller", max_tokens=1, messages=messages).usage
    assert usage.cache_read_input_tokens and usage.cache_read_input_tokens > usage.input_tokens


def test_the_prefix_cache_is_reported(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "A long story that many requests share. " * 8}]
    client.messages.create(model="caller", max_tokens=1, messages=messages)
    usage = client.messages.create(model="caller", max_tokens=1, messages=messages).usage
    assert usage.cache_read_input_tokens and usage.cache_read_input_tokens > usage.input_tokens > 0


def test_the_last_assistant_message_is_continued(client: anthropic.Anthropic) -> None:
    first = client.messages.create(model="caller", max_tokens=12, messages=MESSAGES, extra_body=GREEDY)
    start = first.content[0].text.rsplit(" ", 2)[0]
    assert start
    longer = [*MESSAGES, {"role": "assistant", "content": start}]
    second = client.messages.create(model="caller", max_tokens=4, messages=longer)
    prompts = [
        client.messages.count_tokens(model="caller", messages=messages).input_tokens for messages in (MESSAGES, longer)
    ]
    assert prompts[1] > prompts[0] and second.content[0].text


def test_structured_output(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    output = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(
        model="caller", max_tokens=64, messages=MESSAGES, output_config=output, extra_body=GREEDY
    )
    assert message.content[0].text.replace(" ", "") in ('{"ok":true}', '{"ok":false}')


def test_a_conversation_with_tool_results_is_rendered(client: anthropic.Anthropic) -> None:
    tools = {"tools": [WEATHER], "model": "caller"}
    asked = [{"role": "user", "content": "Weather in Paris?"}]
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    thought = {"type": "thinking", "thinking": "I need the weather.", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
    answered = [*asked, {"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
    lengths = [client.messages.count_tokens(messages=messages, **tools).input_tokens for messages in (asked, answered)]
    assert lengths[1] > lengths[0] + 10
    without = client.messages.count_tokens(messages=asked, model="caller").input_tokens
    assert lengths[0] > without


def test_a_call_is_forced_and_streamed(client: anthropic.Anthropic) -> None:
    cities = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    tool = WEATHER | {"input_schema": cities | {"additionalProperties": False}}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        arguments = {"model": "caller", "max_tokens": 100, "messages": MESSAGES, "tools": [tool], "extra_body": GREEDY}
        arguments["thinking"] = {"type": "disabled"}
        arguments["tool_choice"] = choice | {"disable_parallel_tool_use": True}
        message = client.messages.create(**arguments)
        (block,) = message.content
        assert message.stop_reason == "tool_use" and block.type == "tool_use"
        assert block.name == "weather" and block.input["city"] in ("Paris", "Rome") and block.id
        with client.messages.stream(**arguments) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use" and final.content[0].input == block.input
        answered = [
            *MESSAGES,
            message.to_param(),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"}]},
        ]
        assert client.messages.create(model="caller", max_tokens=4, messages=answered, tools=[tool]).content
        cut = client.messages.create(**arguments | {"max_tokens": message.usage.output_tokens // 2})
        assert cut.stop_reason == "max_tokens" and all(block.type == "tool_use" for block in cut.content)


def test_thinking_is_a_switch_of_the_template(client: anthropic.Anthropic) -> None:
    counted = [
        client.messages.count_tokens(model="thinker", messages=MESSAGES, thinking=thinking).input_tokens
        for thinking in ({"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024})
    ]
    assert counted[0] == counted[1] < counted[2]


REFUSED = {
    "`max_tokens`": {"max_tokens": -1},
    "`temperature`": {"extra_body": {"temperature": 1.5}},
    "`messages`": {"messages": []},
    "`messages[1].role`": {"messages": [*MESSAGES, {"role": "tool", "content": "x"}]},
    "`messages[0].content[0].text`": {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
    "`tool_result`": {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
    "`tool_use`": {
        "messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}]
    },
    "`tool_choice` asks for": {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
    "`tool_choice`": {"tools": [WEATHER], "tool_choice": {"type": "tool"}},
    "`compaction`": {"extra_body": {"compaction": {"type": "summarize"}}},
    "`thread.type`": {"extra_body": {"thread": {"type": "continue", "previous_message_id": "msg_1"}}},
}


@pytest.mark.parametrize("named", REFUSED)
def test_a_wrong_field_is_named(client: anthropic.Anthropic, named: str) -> None:
    arguments = {"model": "caller", "max_tokens": 4, "messages": MESSAGES} | REFUSED[named]
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**arguments)
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and body["request_id"]
    assert named in body["error"]["message"]


def test_errors_have_the_classes_of_the_client(client: anthropic.Anthropic, server: ClientServer) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="no-such-model", max_tokens=4, messages=MESSAGES)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="chat template"):
        client.messages.create(model="translator-en-fr", max_tokens=4, messages=MESSAGES)
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum; `messages` has"
    ):
        client.messages.create(model="caller", max_tokens=4, messages=[{"role": "user", "content": "word " * 600}])
    with pytest.raises(anthropic.ContentTooLargeError) as large:
        client.messages.create(model="caller", max_tokens=4, messages=[{"role": "user", "content": "x" * (33 << 20)}])
    assert large.value.body["error"]["type"] == "request_too_large"
    with pytest.raises(anthropic.BadRequestError, match="`max_tokens` is required"):
        client.post("/v1/messages", cast_to=object, body={"model": "caller", "messages": MESSAGES})
    if server.needs_key:
        stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            stranger.messages.create(model="caller", max_tokens=4, messages=MESSAGES)
        assert refused.value.body["error"]["type"] == "authentication_error"
