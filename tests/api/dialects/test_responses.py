"""`/v1/responses` as programs use it: fields that are dropped or refused, and the items and events of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
import pytest_asyncio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.api.dialects.openai.responses.answer import ResponsesAnswer
from server.api.dialects.openai.responses.built_in_items import BUILT_IN_ITEMS
from server.api.dialects.openai.responses.items import decoded_reasoning
from tests.api.dialects.response_bench import CALL, TOOLS, ResponseBench, error_of
from tests.api.dialects.test_response_bodies import READABLE

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = {"role": "user", "content": "Hi"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ResponseBench]:
    made = ResponseBench(tmp_path_factory.mktemp("bench"))
    yield made
    await made.close()


@pytest.fixture
def bench(started: ResponseBench) -> ResponseBench:
    started.will_say("Hello.")
    return started


# ---------------------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", {"max_tokens": 5}, "`min_tokens` 9 is more than `max_tokens` 5"),
        ("chat/completions", {"max_completion_tokens": 5}, "`min_tokens` 9 is more than `max_completion_tokens` 5"),
        ("responses", {"max_output_tokens": 5}, "`min_tokens` 9 is more than `max_output_tokens` 5"),
        ("completions", {"max_tokens": 5}, "`min_tokens` 9 is more than `max_tokens` 5"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_name_the_fields_that_were_sent(
    bench: ResponseBench, path: str, body: dict[str, Any], message: str, stream: bool
) -> None:
    given = {"chat/completions": {"messages": [USER]}, "responses": {"input": "Hi"}, "completions": {"prompt": "Hi"}}
    sent = {**given[path], **body, "min_tokens": 9, "stream": stream}
    response = await bench._http.post(f"/v1/{path}", json=sent)
    assert response.status_code == 400 and error_of(response)["message"] == message
    assert error_of(response)["param"] == "min_tokens"
    renamed = {"min_new_tokens" if name == "min_tokens" else name: value for name, value in sent.items()}
    response = await bench._http.post(f"/v1/{path}", json=renamed)
    assert error_of(response)["param"] == "min_new_tokens" and "`min_new_tokens` 9" in error_of(response)["message"]


async def test_a_request_of_codex(bench: ResponseBench) -> None:
    response = await bench.post(
        model="llm",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "id": "msg_x", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "rs_x", "summary": [], "content": None, "encrypted_content": "gAAAAB=="},
            {"type": "message", "role": "assistant", "phase": "final_answer", "content": [
                {"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_x", "status": "completed", "call_id": "c1", "name": "get_weather",
             "arguments": "{}", "namespace": None},
            {"type": "function_call_output", "id": "fco_x", "call_id": "c1", "output": [
                {"type": "input_text", "text": "rain"}, {"type": "input_image", "image_url": "data:x"}]},
        ],
        tools=[{**TOOLS[0], "strict": False}, {"type": "namespace", "name": "crm", "tools": TOOLS},
               {"type": "web_search", "external_web_access": False}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        client_metadata={"turn_id": "t"},
        text={"verbosity": "low"},
    )  # fmt: skip
    assert response.status_code == 200, response.text
    assert bench.prompt == (
        "[get_weather]<system>Rules.<user>Hi<assistant>Yes."
        '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call><tool>rain\n'
        "[image left out: this model reads text only]<assistant>"
    )
    assert set(response.headers["x-ignored-parameters"].split(", ")) == {
        "input[2].encrypted_content",
        "input[5].output[1]:input_image",
        "tools[1]:namespace",
        "tools[2]:web_search",
        "reasoning.summary",
    }


# ------------------------------------------------------------------------------------------------- tools and choice


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search_preview"},
        {"type": "mcp", "server_label": "x", "name": "y"},
        {"type": "custom", "name": "apply_patch"},
        {"type": "shell"},
        {"type": "no such type"},
        {"type": "function"},
        {"type": "allowed_tools", "mode": "none", "tools": []},
        {"type": ["function"]},
        "sometimes",
        7,
    ],
    ids=str,
)
async def test_a_choice_that_forces_what_is_not_there_is_refused(bench: ResponseBench, choice: Any) -> None:
    tools = [*TOOLS, {"type": "web_search_preview"}, {"type": "custom", "name": "apply_patch"}]
    response = await bench.post(tools=tools, tool_choice=choice)
    assert response.status_code == 400 and error_of(response)["param"] == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
    ids=str,
)
async def test_a_call_is_required_and_no_function_is_left(bench: ResponseBench, choice: Any) -> None:
    response = await bench.post(tools=[{"type": "web_search"}], tool_choice=choice)
    assert response.status_code == 400 and error_of(response)["param"] == "tool_choice"


async def test_allowed_tools_restrict_the_calls(bench: ResponseBench) -> None:
    """The scripted model tries to call a forbidden function. The grammar forces the name of an allowed one."""
    bench.will_say('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>')
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    answer = await bench.ask(tools=TOOLS, tool_choice=allowed, max_output_tokens=200)
    assert {item["name"] for item in answer["output"]} == {"get_time"} and answer["tool_choice"] == allowed
    assert bench.prompt.startswith("[get_weather][get_time]"), "the model sees all functions"
    response = await bench.post(
        tools=TOOLS, tool_choice={**allowed, "mode": "auto", "tools": [{"type": "image_generation"}]}
    )
    assert response.json()["output"][0]["type"] == "message"
    assert response.headers["x-ignored-parameters"] == "tool_choice.tools[0]"


# ------------------------------------------------------------------------------------------------------------ items


@pytest.mark.parametrize("kind", sorted(BUILT_IN_ITEMS.keys() - READABLE.keys()))
async def test_an_item_that_cannot_be_shown_is_dropped_and_named(bench: ResponseBench, kind: str) -> None:
    item = {"type": kind, "id": "x_1", "call_id": "c", "action": {"type": "search"}, "output": {"type": "screenshot"}}
    response = await bench.post(input=[USER, item])
    assert response.status_code == 200 and bench.prompt == "<user>Hi<assistant>"
    assert response.headers["x-ignored-parameters"] == f"input[1]:{kind}"
    alone = await bench.post(input=[item])
    assert alone.status_code == 400 and error_of(alone)["param"] == "input"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "compaction_trigger"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "no_such_item"},
        {"type": 7},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
        {"type": "function_call_output", "call_id": "c", "output": {"a": 1}},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "no_such_part"}]},
        {"type": "function_call_output", "call_id": "c", "output": ["text"]},
        {"type": "mcp_call", "id": 7},
        "text",
    ],
    ids=str,
)
async def test_items_that_change_the_answer_are_refused(bench: ResponseBench, item: Any) -> None:
    response = await bench.post(input=[USER, item])
    assert response.status_code == 400 and error_of(response)["param"] == "input"
    assert error_of(response)["message"].startswith("`input[1]")


async def test_encrypted_content_brings_the_reasoning_back(bench: ResponseBench) -> None:
    bench.will_say("<think>Hm.</think>\n\nYes.")
    answer = await bench.ask(include=["reasoning.encrypted_content"])
    reasoning, message = answer["output"]
    assert decoded_reasoning(reasoning["encrypted_content"]) == "Hm." == reasoning["content"][0]["text"]
    kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    await bench.ask(input=[USER, kept, message, USER], store=False)
    assert bench.prompt == "<user>Hi<assistant><think>Hm.</think>Yes.<user>Hi<assistant>"
    assert "encrypted_content" not in (await bench.ask())["output"][0]


# ----------------------------------------------------------------------------------------------- answers and events

EVENTS = {
    event.model_fields["type"].annotation.__args__[0]: event for event in get_args(get_args(ResponseStreamEvent)[0])
}
ANSWERS = {
    "text": ("Hello.", {}),
    "reasoning": ("<think>Hm.</think>\n\nYes.", {}),
    "encrypted": ("<think>Hm.</think>\n\nYes.", {"include": ["reasoning.encrypted_content"]}),
    "reasoning alone": ("<think>Hm.</think>", {}),
    "calls": (f"<think>Hm.</think>\n\nI look.{CALL}\n{CALL}", {"tools": TOOLS}),
    "a call alone": (CALL, {"tools": TOOLS}),
    "logprobs": (
        f"<think>Hm.</think>\n\nI look.{CALL}",
        {"tools": TOOLS, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
    ),
    "nothing": ("", {}),
}


def without(answer: dict[str, Any], *names: str) -> dict[str, Any]:
    """An answer without ids and times, which differ between two requests."""
    left = {name: value for name, value in answer.items() if name not in ("id", "created_at", "completed_at", *names)}
    left["output"] = [{**item, "id": "", "call_id": ""} for item in answer["output"]]
    return left


@pytest.mark.parametrize("limit", [None, 3, 5, 9, 12, 20], ids=lambda limit: f"limit {limit}")
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_stream_adds_up_to_the_whole_answer(bench: ResponseBench, name: str, limit: int | None) -> None:
    text, fields = ANSWERS[name]
    bench.will_say(text)
    events = await bench.stream(**fields, max_output_tokens=limit)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENTS[event["type"]].model_validate(event, strict=False)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    ResponsesAnswer.model_validate(last)
    TypeAdapter(Response).validate_python(last)
    check_items(events, last["output"])
    bench.will_say(text)
    whole = await bench.ask(**fields, max_output_tokens=limit)
    assert without(whole, "usage") == without(last, "usage")
    assert whole["usage"]["output_tokens_details"] == last["usage"]["output_tokens_details"]
    if limit is None:
        assert last["status"] == "completed" and last["incomplete_details"] is None
        assert all(item["status"] == "completed" for item in last["output"])


def check_items(events: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    """Check the events of each output item: they are consecutive and have its id and index; deltas form its text.

    output: the items of the complete response.
    """
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places) and set(places) == set(range(len(output)))
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added" and own[0]["item"]["status"] == "in_progress"
        assert own[-1]["type"] == "response.output_item.done" and own[-1]["item"] == item
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]} == {own[0]["item"]["id"]}
        deltas = [event for event in own if event["type"].endswith(".delta")]
        kind = {"reasoning": "reasoning_text", "message": "output_text", "function_call": "function_call_arguments"}
        assert {event["type"] for event in deltas} <= {f"response.{kind[item['type']]}.delta"}
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(event["delta"] for event in deltas) == text
        if item["type"] == "message":
            assert [token for event in deltas for token in event["logprobs"]] == item["content"][0]["logprobs"]


@pytest.mark.parametrize(
    ("script", "statuses"),
    [
        (["<", "think>", "Let me"], ["reasoning incomplete"]),
        (["<", "think>", "Let me", "</", "think>\n\n"], ["reasoning completed"]),
        (["<", "think>", "Let me", "</", "think>\n\n", "city"], ["reasoning completed", "message incomplete"]),
        (["city"], ["message incomplete"]),
        (CALL[:-30], ["function_call incomplete"]),
        (f"city{CALL[:-30]}", ["message completed", "function_call incomplete"]),
        (CALL, ["function_call completed"]),
        (f"{CALL}\n<tool_call>", ["function_call completed"]),
    ],
    ids=str,
)
async def test_only_the_item_that_was_cut_is_incomplete(
    bench: ResponseBench, script: list[str] | str, statuses: list[str]
) -> None:
    for stream in (False, True):
        bench.llm.follow(script)
        limit = len(bench.llm.runner.script)
        fields = {"tools": TOOLS, "max_output_tokens": limit}
        answer = (await bench.stream(**fields))[-1]["response"] if stream else await bench.ask(**fields)
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [f"{item['type']} {item['status']}" for item in answer["output"]] == statuses
        assert (await bench.get(answer["id"])).json()["output"] == answer["output"]


async def test_a_call_that_a_stop_string_cuts_is_incomplete(bench: ResponseBench) -> None:
    bench.will_say(CALL)
    answer = await bench.ask(tools=TOOLS, stop=["Par"])
    assert answer["status"] == "completed" and answer["output"][0]["status"] == "incomplete"


async def test_reasoning_tokens_are_counted(bench: ResponseBench) -> None:
    bench.llm.follow(["<", "think>", "Let me", " the", "</", "think>\n\n", "city", 1])
    for usage in ((await bench.ask())["usage"], (await bench.stream())[-1]["response"]["usage"]):
        assert usage["output_tokens"] == 8 and usage["output_tokens_details"] == {"reasoning_tokens": 2}
    bench.will_say("Hello.")
    assert (await bench.ask())["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


async def test_chat_completions_count_them_too(bench: ResponseBench) -> None:
    bench.llm.follow(["<", "think>", "Let me", " the", "</", "think>\n\n", "city", 1])
    response = await bench._http.post("/v1/chat/completions", json={"messages": [USER]})
    assert response.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
