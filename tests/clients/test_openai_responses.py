"""`/v1/responses` with the `openai` package: items, events, structured output, and refusals of what needs a store."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.conftest import ClientServer
from tests.clients.openai_story import STORY, client, told
from tests.e2e.sse import stream

__all__ = ["client"]


def test_a_text(client: OpenAI) -> None:
    answer = client.responses.create(model="story", input=STORY)
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.model == "story"
    assert answer.output_text == told(400) and answer.status == "completed" and answer.incomplete_details is None
    (item,) = answer.output
    assert item.type == "message" and item.status == "completed" and answer.store is False
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_cut_answer_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(model="story", input=STORY, max_output_tokens=20)
    assert answer.output_text == told(20) and answer.status == "incomplete"
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 20


def test_the_answer_can_be_sent_back(client: OpenAI) -> None:
    first = client.responses.create(model="story", input=STORY, max_output_tokens=10)
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": STORY}]}, *first.output]
    second = client.responses.create(
        model="story", instructions="Tell a tale.", input=[*items, {"role": "user", "content": "One day"}]
    )
    written = client.chat.completions.create(
        model="story",
        messages=[
            {"role": "user", "content": STORY},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "One day"},
        ],
    )
    assert second.output_text == written.choices[0].message.content


def test_all_items_reach_the_template(client: OpenAI) -> None:
    """The prompt has as many tokens as that of the same conversation in chat messages."""
    call = {"name": "look", "arguments": '{"at": "sea"}'}
    answer = client.responses.create(
        model="caller",
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "In English."},
            {"role": "user", "content": "What color is it?", "type": "message"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "call_1", "id": "fc_1", "status": "completed", **call},
            {"type": "function_call_output", "call_id": "call_1", "output": "blue"},
        ],
        max_output_tokens=1,
    )
    written = client.chat.completions.create(
        model="caller",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "In English."},
            {"role": "user", "content": "What color is it?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "blue"},
        ],
        max_tokens=1,
    )
    assert answer.usage.input_tokens == written.usage.prompt_tokens


def test_reasoning_reaches_the_template(client: OpenAI) -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    answer = client.responses.create(
        model="thinker", input=[reasoning, {"role": "assistant", "content": "Yes."}], max_output_tokens=1
    )
    written = client.chat.completions.create(
        model="thinker", messages=[{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}], max_tokens=1
    )
    assert answer.usage.input_tokens == written.usage.prompt_tokens > 20


@pytest.mark.parametrize("limit", [16, None], ids=["cut", "whole"])
def test_stream(client: OpenAI, limit: int | None) -> None:
    options: dict[str, Any] = {} if limit is None else {"max_output_tokens": limit}
    events = list(client.responses.create(model="story", input=STORY, stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed" if limit is None else "response.incomplete",
    ]
    text = told(limit or 400)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    last = events[-1].response
    assert last.output_text == text and last.usage is not None
    assert last.output[0] == events[-2].item and last.id == events[0].response.id


def test_events_fit_the_types_of_the_package(server: ClientServer) -> None:
    """The package itself checks nothing: it builds its objects from any JSON."""
    body = {"model": "story", "input": STORY, "stream": True, "include": ["message.output_text.logprobs"]}
    types = {one.model_fields["type"].annotation.__args__[0]: one for one in get_args(get_args(ResponseStreamEvent)[0])}
    for name, event in stream(f"{server.url}/v1/responses", body, server.headers):
        assert event["type"] == name
        if "response" in event:
            # The type of the usage asks for numbers that the server does not have.
            assert (event["response"].pop("usage") is None) is (name != "response.completed")
        types[name].model_validate(event)


def test_the_stream_helper_of_the_package(client: OpenAI) -> None:
    with client.responses.stream(model="story", input=STORY) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        answer = events.get_final_response()
    assert answer.output_text == text == told(400)


def test_logprobs(client: OpenAI) -> None:
    answer = client.responses.create(
        model="story", input=STORY, max_output_tokens=6, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(token.token for token in logprobs) == answer.output_text
    assert all(len(token.top_logprobs) == 2 for token in logprobs)


class Hero(BaseModel):
    """An answer whose length has a limit, since a small model may not end a text."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Rose", "Otto", "the fox"]
    friends: Annotated[list[Literal["Emma", "Hugo"]], Field(max_length=2)]


def test_structured_output(client: OpenAI) -> None:
    answer = client.responses.parse(model="story", input=STORY, text_format=Hero)
    assert isinstance(answer.output_parsed, Hero)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("background", True),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("reasoning", {"effort": "high"}),
        ("include", ["reasoning.encrypted_content"]),
        ("truncation", "auto"),
        ("max_tool_calls", 1),
        ("tools", [{"type": "web_search"}]),
        ("tool_choice", {"type": "function", "name": "look"}),
        ("input", [{"type": "item_reference", "id": "msg_1"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no such type"}}}),
        ("max_output_tokens", 0),
        ("n", 2),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: OpenAI, field: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="story", input=STORY, extra_body={field: value})
    assert caught.value.param == field and f"`{field}" in caught.value.message


def test_errors_of_the_chat_name_the_input(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="story", input="fox " * 600)
    assert caught.value.param == "input" and caught.value.code == "context_length_exceeded"


def test_store_false_is_accepted(client: OpenAI) -> None:
    answer = client.responses.create(
        model="story", input=STORY, max_output_tokens=2, store=False, background=False, truncation="disabled"
    )
    assert answer.output_text == told(2)
