"""Function calls with the `openai` package: forced and chosen calls, streamed arguments, results, and reasoning.

The model was not trained to call functions, so every request forces a call. The demo weights choose the arguments,
within the schema.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.clients.openai_story import client
from tests.waiting import read_in_parts

__all__ = ["client"]

MESSAGES: list[Any] = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["sea", "hill"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "walk")]


def check_arguments(text: str) -> None:
    arguments = json.loads(text)
    assert arguments["place"] in ("sea", "hill") and len(arguments) == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "walk"}}], ids=str)
def test_a_forced_call(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model="caller", temperature=0, messages=MESSAGES, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False
    )
    (choice_made,) = answer.choices
    assert choice_made.finish_reason == "tool_calls" and choice_made.message.content is None
    (call,) = choice_made.message.tool_calls
    assert call.id and call.type == "function"
    assert call.function.name in (("look", "walk") if choice == "required" else ("walk",))
    check_arguments(call.function.arguments)


def test_streamed_arguments(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "caller",
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    (expected,) = client.chat.completions.create(**options).choices[0].message.tool_calls

    def deltas_of(chunks: list[Any]) -> list[Any]:
        return [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]

    chunks = read_in_parts(
        lambda: list(client.chat.completions.create(**options, stream=True)),
        lambda chunks: len([delta for delta in deltas_of(chunks) if delta.function.arguments]) > 1,
    )
    first, *rest = deltas = deltas_of(chunks)
    assert first.index == 0 and first.id and first.type == "function" and first.function.name == expected.function.name
    assert all(delta.id is None and delta.function.name is None for delta in rest)
    assert "".join(delta.function.arguments for delta in deltas) == expected.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_and_its_result_can_be_sent_back(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "caller", "temperature": 0, "tools": TOOLS}
    first = client.chat.completions.create(**options, messages=MESSAGES, tool_choice="required")
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "blue"} for call in message.tool_calls]
    second = client.chat.completions.create(
        **options, messages=[*MESSAGES, message, *results], tool_choice="none", max_tokens=8
    )
    assert second.choices[0].message.content and second.choices[0].message.tool_calls is None


class Walk(BaseModel):
    place: Literal["sea", "hill"]


def test_parsed_calls(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="caller",
        temperature=0,
        messages=MESSAGES,
        tools=[pydantic_function_tool(Walk)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Walk)


def test_reasoning(client: OpenAI) -> None:
    """The chat template starts the reasoning. If the model does not end it, the whole answer is reasoning."""
    options: dict[str, Any] = {
        "model": "thinker",
        "messages": MESSAGES,
        "max_tokens": 12,
        "temperature": 0,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}, "ignore_eos": True},
    }
    message = client.chat.completions.create(**options).choices[0].message
    assert message.reasoning_content and not message.content
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**options, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == message.reasoning_content


@pytest.mark.parametrize(
    ("tools", "choice", "problem"),
    [
        ([], "required", "`tool_choice` requires a call"),
        (TOOLS, {"type": "function", "function": {"name": "fly"}}, "`tool_choice` names a function"),
        (TOOLS, "sometimes", "`tool_choice` must be"),
        ([{"type": "custom", "custom": {"name": "x"}}], "required", "`tool_choice` asks for a tool"),
        ([{"type": "function", "function": {"name": "a b"}}], "auto", r"`tools\[0\].function.name`"),
        ([TOOLS[0], TOOLS[0]], "auto", r"`tools\[1\]"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}, "strict": True}}], "auto", "`f`"),
    ],
)
def test_bad_tools_are_refused_by_name(client: OpenAI, tools: Any, choice: Any, problem: str) -> None:
    with pytest.raises(openai.BadRequestError, match=problem) as caught:
        client.chat.completions.create(model="caller", messages=MESSAGES, tools=tools, tool_choice=choice)
    assert caught.value.param in ("tools", "tool_choice")


def test_a_model_without_a_tool_format(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="its chat template ignores them") as caught:
        client.chat.completions.create(model="story", messages=MESSAGES, tools=TOOLS)
    assert caught.value.param == "tools"


class TestResponses:
    TOOLS: Any = ({"type": "function", "name": "look", "parameters": SCHEMA, "strict": True},)

    def test_a_call_and_its_result(self, client: OpenAI) -> None:
        options: dict[str, Any] = {"model": "caller", "temperature": 0, "tools": self.TOOLS}
        first = client.responses.create(
            **options, input="Once upon a time", tool_choice="required", parallel_tool_calls=False
        )
        (call,) = first.output
        assert call.type == "function_call" and call.name == "look" and call.status == "completed"
        check_arguments(call.arguments)
        items = [
            {"role": "user", "content": "Once upon a time"},
            call,
            {"type": "function_call_output", "call_id": call.call_id, "output": "blue"},
        ]
        second = client.responses.create(**options, input=items, tool_choice="none", max_output_tokens=8)
        assert second.output_text

    def test_streamed_arguments(self, client: OpenAI) -> None:
        choice = {"type": "function", "name": "look"}

        def read() -> tuple[list[Any], Any]:
            with client.responses.stream(
                model="caller",
                temperature=0,
                tools=self.TOOLS,
                input="Once upon a time",
                tool_choice=choice,
                parallel_tool_calls=False,
            ) as stream:
                return list(stream), stream.get_final_response()

        def deltas_of(events: list[Any]) -> list[str]:
            return [event.delta for event in events if event.type == "response.function_call_arguments.delta"]

        events, answer = read_in_parts(read, lambda read: len(deltas_of(read[0])) > 1)
        kinds = [event.type for event in events]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert kinds[2] == "response.output_item.added" and kinds[-1] == "response.completed"
        assert kinds[-3:-1] == ["response.function_call_arguments.done", "response.output_item.done"]
        assert "".join(deltas_of(events)) == answer.output[0].arguments
        check_arguments(answer.output[0].arguments)

    def test_reasoning_is_an_item(self, client: OpenAI) -> None:
        extra = {"chat_template_kwargs": {"enable_thinking": True}, "ignore_eos": True}
        options: dict[str, Any] = {"model": "thinker", "input": "Once upon a time", "max_output_tokens": 12}
        options["temperature"] = 0
        answer = client.responses.create(**options, extra_body=extra)
        assert answer.output[0].type == "reasoning"
        events = list(client.responses.create(**options, extra_body=extra, stream=True))
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == answer.output[0].content[0].text
        assert events[-1].type == "response.incomplete" and answer.status == "incomplete"
