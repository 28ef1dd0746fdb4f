"""Tool calls through the chat operation, with a real engine: forced calls always match their schemas.

The model has random logits, so only the grammar makes a call valid. `jsonschema` checks the arguments.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.ipc.client.call import Call
from server.operations.chatting.chat import ToolChoice, count_prompt_tokens
from tests.operations.chat_bench import ChatBench
from tests.operations.tool_cases import REQUIRED, ROWS, SCHEMAS, check_calls, spec, template
from tests.text.tool_templates import BY_FORMAT


@template(*BY_FORMAT)
@pytest.mark.parametrize("kind", ["sampled", "hot", "greedy", "beams"])
async def test_forced_calls_match_their_schemas(llm: ChatBench, kind: str) -> None:
    settings = {
        "sampled": {"n": 6},
        "hot": {"temperature": 3.0, "n": 6},
        "greedy": {"temperature": 0.0},
        "beams": {"temperature": None, "num_beams": 3, "num_return_sequences": 2},
    }[kind]
    asked = [REQUIRED, ToolChoice("required", "set_mode"), ToolChoice("required", "get")]
    finished = 0
    for seed, choice in enumerate(asked):
        several = kind == "sampled"
        result, deltas = await llm.ask(spec(choice, seed=10 * seed, parallel_tool_calls=several, **settings))
        finished += check_calls(result, deltas)
        for answer in result.choices:
            assert answer.content == answer.reasoning == ""
            assert {call.name for call in answer.tool_calls} <= ({choice.name} if choice.name else set(SCHEMAS))
            assert several or len(answer.tool_calls) <= 1
            assert choice.name is None or len(answer.tool_calls) <= 1, "a named function is called once"
    assert finished >= 2, "hardly any call was complete"


@template(*(name for name, row in ROWS.items() if row.parallel))
@pytest.mark.parametrize("choice", [ToolChoice(), REQUIRED], ids=["auto", "required"])
async def test_parallel_calls(llm: ChatBench, request: pytest.FixtureRequest, choice: ToolChoice) -> None:
    row = ROWS[request.node.callspec.params["llm"]]
    calls = [("get_weather", {"city": "Paris"}), ("get", {}), ("set_mode", {"modes": ["on", None]})]
    llm.follow(row.write(calls))
    result, deltas = await llm.ask(spec(choice))
    check_calls(result, deltas)
    (answer,) = result.choices
    assert [(call.name, json.loads(call.arguments)) for call in answer.tool_calls][:3] == calls
    assert len({call.id for call in answer.tool_calls}) == len(answer.tool_calls)
    (single,) = (await llm.ask(spec(choice, parallel_tool_calls=False)))[0].choices
    assert [(call.name, json.loads(call.arguments)) for call in single.tool_calls] == calls[:1]
    assert single.finish_reason == "tool_calls"


BEGINNINGS: dict[str, list[str | int]] = {
    "hermes": ["Let me", " the", "\n", "<tool", "_call>\n"],
    "qwen": ["Let me", "<tool_call>"],
    "llama-3": ["\n{", '"', "name", '":'],
    "mistral": ["Let me", "\n", "[TOOL_CALLS]"],
    "mistral-names": ["Let me", "[TOOL_CALLS]"],
    "deepseek": ["Let me", "<｜tool▁calls▁begin｜>"],
    "deepseek-names": ["Let me", *"<｜tool▁calls▁begin｜>".encode()],
    "json": ['{"name', '":"'],
}


@template(*BEGINNINGS)
async def test_calls_that_begin_by_themselves_match_their_schemas(
    llm: ChatBench, request: pytest.FixtureRequest
) -> None:
    """With `auto`, the test makes the model begin a call; the rest is random.

    Some of these beginnings end beyond the opening marker of a call.
    """
    name = request.node.callspec.params["llm"]
    beginning = [token + 3 if isinstance(token, int) else token for token in BEGINNINGS[name]]
    llm.follow(beginning)
    result, deltas = await llm.ask(spec(n=6))
    assert check_calls(result, deltas) >= 2
    assert all(choice.tool_calls for choice in result.choices)
    assert {choice.content for choice in result.choices} <= {"", "Let me", "Let me the"}


@template(*BEGINNINGS)
async def test_plain_answers_with_tools_equal_those_without_a_grammar(llm: ChatBench) -> None:
    """With `auto`, an answer without a call has the same tokens, log-probabilities and text as without a grammar."""
    with_tools, _ = await llm.ask(spec(n=4, logprobs=True, top_logprobs=2))
    (message,) = llm.sent
    assert message.params.sections, "the engine follows the sections"
    prompt = llm.tokenizer.decode(message.prompts[0], skip_special_tokens=False)
    llm.runtime.texts["llm"].chat_templates.by_name["default"] = "{{ messages[0].content }}"
    llm.runtime.special_tokens_in_texts = True
    plain = spec(tools=[], messages=[{"role": "user", "content": prompt}], n=4, logprobs=True, top_logprobs=2)
    without, _ = await llm.ask(plain)
    assert llm.sent[1].prompts == message.prompts and not llm.sent[1].params.sections
    assert with_tools.choices == without.choices
    assert all(choice.finish_reason == "stop" and choice.content for choice in without.choices)


async def test_tools_are_not_shown_with_the_choice_none(llm: ChatBench) -> None:
    result, _ = await llm.ask(spec(ToolChoice("none")))
    bare, _ = await llm.ask(spec(tools=[]))
    assert llm.sent[0].prompts == llm.sent[1].prompts and not llm.sent[0].params.sections
    assert result.choices[0].content == bare.choices[0].content
    with Call(llm.client) as call:
        shown, count = await count_prompt_tokens(llm.runtime, call, spec())
    assert shown == "llm" and count > len(llm.sent[0].prompts[0])


async def test_a_cut_call_is_reported_as_far_as_it_goes(llm: ChatBench) -> None:
    llm.follow('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par')
    result, deltas = await llm.ask(spec(max_new_tokens=len(llm.runner.script)))
    (choice,) = result.choices
    assert choice.finish_reason == "length" and choice.content == ""
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [("get_weather", '{"city": "Par')]
    check_calls(result, deltas)
    llm.follow('<tool_call>\n{"name": "get_wea')
    (choice,) = (await llm.ask(spec(max_new_tokens=len(llm.runner.script))))[0].choices
    assert choice.finish_reason == "length" and not choice.tool_calls and choice.content == ""
    llm.follow("See <tool_")
    (choice,) = (await llm.ask(spec(max_new_tokens=len(llm.runner.script))))[0].choices
    assert (choice.content, choice.finish_reason) == ("See <tool_", "length")


async def test_a_stop_string_ends_an_answer_inside_a_call(llm: ChatBench) -> None:
    llm.follow('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "')
    (choice,) = (await llm.ask(spec(stop=["Par"])))[0].choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Par")
    assert [call.arguments for call in choice.tool_calls] == ['{"city": "']


async def test_the_best_of_several_calls(llm: ChatBench) -> None:
    many, _ = await llm.ask(spec(REQUIRED, n=4, logprobs=True, stream=False, parallel_tool_calls=False))
    best, _ = await llm.ask(spec(REQUIRED, n=1, best_of=4, logprobs=True, stream=False, parallel_tool_calls=False))

    def mean(choice: Any) -> float:
        return sum(entry.logprob for entry in choice.logprobs) / len(choice.logprobs)

    (chosen,) = best.choices
    wanted = max(many.choices, key=mean)
    assert [(call.name, call.arguments) for call in chosen.tool_calls] == [
        (call.name, call.arguments) for call in wanted.tool_calls
    ]
    assert chosen.token_ids == wanted.token_ids and len(chosen.logprobs) == len(chosen.token_ids)
