"""`/v1/responses` with the `openai` package: items, events, structured output, stored conversations, and refusals."""

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
    answer = client.responses.create(model="story", temperature=0, input=STORY)
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.model == "story"
    assert answer.output_text == told(400) and answer.status == "completed" and answer.incomplete_details is None
    (item,) = answer.output
    assert item.type == "message" and item.status == "completed" and answer.store is True
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_cut_answer_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(model="story", temperature=0, input=STORY, max_output_tokens=20)
    assert answer.output_text == told(20) and answer.status == "incomplete"
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 20


def test_the_answer_can_be_sent_back(client: OpenAI) -> None:
    first = client.responses.create(model="story", temperature=0, input=STORY, max_output_tokens=10)
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": STORY}]}, *first.output]
    second = client.responses.create(
        model="story",
        temperature=0,
        instructions="Tell a tale.",
        input=[*items, {"role": "user", "content": "One day"}],
    )
    written = client.chat.completions.create(
        model="story",
        temperature=0,
        messages=[
            {"role": "user", "content": STORY},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "One day"},
        ],
    )
    assert second.output_text == written.choices[0].message.content


def test_all_items_reach_the_template(client: OpenAI) -> None:
    """A conversation in items of every kind has as many prompt tokens as the same conversation in chat messages."""
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
    events = list(client.responses.create(model="story", temperature=0, input=STORY, stream=True, **options))
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


@pytest.mark.parametrize(
    "body",
    [
        {"model": "story", "include": ["message.output_text.logprobs"]},
        {
            "model": "thinker",
            "max_output_tokens": 12,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "high", "summary": "auto"},
            "chat_template_kwargs": {"enable_thinking": True},
            "ignore_eos": True,
        },
        {"model": "caller", "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
    ],
    ids=lambda body: body["model"],
)
def test_events_fit_the_types_of_the_package(server: ClientServer, body: dict[str, Any]) -> None:
    """Every event is valid for the package's type of this event.

    The package does not validate, but other clients do.
    """
    types = {
        kind.model_fields["type"].annotation.__args__[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
    }
    sent = {"input": STORY, "stream": True, "temperature": 0, "parallel_tool_calls": False, **body}
    for name, event in stream(f"{server.url}/v1/responses", sent, server.headers):
        assert event["type"] == name
        types[name].model_validate(event)


def test_reasoning_is_counted(client: OpenAI) -> None:
    answer = client.responses.create(
        model="thinker",
        input=STORY,
        max_output_tokens=12,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}, "ignore_eos": True},
    )
    assert [(item.type, item.status) for item in answer.output] == [("reasoning", "incomplete")]
    assert answer.usage.output_tokens_details.reasoning_tokens == answer.usage.output_tokens == 12


def test_the_stream_helper_of_the_package(client: OpenAI) -> None:
    with client.responses.stream(model="story", temperature=0, input=STORY) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        answer = events.get_final_response()
    assert answer.output_text == text == told(400)


def test_logprobs(client: OpenAI) -> None:
    answer = client.responses.create(
        model="story",
        temperature=0,
        input=STORY,
        max_output_tokens=6,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(token.token for token in logprobs) == answer.output_text
    assert all(len(token.top_logprobs) == 2 for token in logprobs)


class Hero(BaseModel):
    """Schema of an answer with a limited length, because a small model might not end a free text."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Rose", "Otto", "the fox"]
    friends: Annotated[list[Literal["Emma", "Hugo"]], Field(max_length=2)]


def test_structured_output(client: OpenAI) -> None:
    answer = client.responses.parse(model="story", temperature=0, input=STORY, text_format=Hero)
    assert isinstance(answer.output_parsed, Hero)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("moderation", {"model": "omni-moderation-latest"}),
        ("store", "yes"),
        ("tools", [{"name": "look"}]),
        ("tool_choice", {"type": "web_search_preview"}),
        ("tool_choice", {"type": "function", "name": "look"}),
        ("input", [{"type": "compaction", "encrypted_content": "x"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ("text", {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "no such type"}}}),
        ("max_output_tokens", 0),
        ("n", 2),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: OpenAI, field: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="story", temperature=0, input=STORY, extra_body={field: value})
    assert caught.value.param == field and f"`{field}" in caught.value.message


def test_errors_of_the_chat_name_the_input(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="story", input="fox " * 600)
    assert caught.value.param == "input" and caught.value.code == "context_length_exceeded"


def test_store_false_stores_nothing(client: OpenAI) -> None:
    answer = client.responses.create(
        model="story",
        temperature=0,
        input=STORY,
        max_output_tokens=2,
        store=False,
        background=False,
        truncation="disabled",
    )
    assert answer.output_text == told(2) and answer.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_a_conversation_is_continued(client: OpenAI) -> None:
    """With `previous_response_id`, the answer is the same as if the client sends all items. Stored responses are equal
    to the ones that were returned.
    """
    options: dict[str, Any] = {"model": "story", "max_output_tokens": 20, "temperature": 0}
    first = client.responses.create(input=STORY, instructions="Tell a tale.", **options)
    second = client.responses.create(input="One day", previous_response_id=first.id, **options)
    items: list[Any] = [{"role": "user", "content": STORY}, *first.output, {"role": "user", "content": "One day"}]
    assert second.output_text == client.responses.create(input=items, store=False, **options).output_text
    assert client.responses.retrieve(second.id) == second and second.previous_response_id == first.id
    references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    third = client.responses.create(input=[items[0], *references, items[-1]], **options)
    assert third.output_text == second.output_text


def test_stored_responses_are_listed_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(model="story", input=STORY, max_output_tokens=2)
    second = client.responses.create(model="story", input="One day", previous_response_id=first.id, max_output_tokens=2)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == [STORY, first.output_text, "One day"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="story", input="So?", previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(second.id)


def test_tools_that_the_server_does_not_have_are_named(client: OpenAI) -> None:
    answer = client.responses.with_raw_response.create(
        model="caller", input=STORY, max_output_tokens=2, tools=[{"type": "web_search"}, {"type": "local_shell"}]
    )
    assert answer.headers["x-ignored-parameters"] == "tools[0]:web_search, tools[1]:local_shell"
