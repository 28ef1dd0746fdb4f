"""Function calls through the chat operation, with a real engine: forced ones always match their schemas.

The model has random logits, so only the grammar makes a call valid. `jsonschema` checks the arguments.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from server.errors import InvalidRequest
from server.operations.chat import ChatDelta, ChatResult, ChatSpec, ToolChoice, count_prompt_tokens
from server.operations.generation_options import GenerationOptions
from server.operations.grammar import JsonFormat
from server.text.tool_formats import TOOL_FORMATS
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.text.chat_templates import CHATML
from tests.text.tool_templates import BY_FORMAT, OPENS_THINKING, QWEN_3, SPECIAL_TOKENS

SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0}},
        "required": ["city"],
    },
    "set_mode": {
        "type": "object",
        "$defs": {"mode": {"enum": ["on", "off", 'a "b"', None]}},
        "properties": {"modes": {"type": "array", "items": {"$ref": "#/$defs/mode"}, "maxItems": 3}},
        "required": ["modes"],
    },
    "get": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A function.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
REQUIRED = ToolChoice("required")
ROWS = {row.name: row for row in TOOL_FORMATS}


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatBench]:
    """A bench with the template and special tokens that a test names; by default those of `hermes`."""
    name = getattr(request, "param", "hermes")
    templates = {**BY_FORMAT, "qwen": QWEN_3, "opens-thinking": OPENS_THINKING, "none": CHATML}
    special = SPECIAL_TOKENS.get(name, [])
    added = ["<tool_call>", "</tool_call>"] if name == "qwen" else []
    made = ChatBench(write_checkpoint(tmp_path / "llm", templates[name], special, added))
    yield made
    made.close()


def template(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bench", names, indirect=True)


def spec(
    choice: ToolChoice | None = None, *, tools: list[Any] = TOOLS, messages: Any = None, **settings: Any
) -> ChatSpec:
    own = {name: settings.pop(name) for name in list(settings) if name in ChatSpec.__dataclass_fields__}
    options = GenerationOptions(**{"stream": True, "max_new_tokens": 300, "seed": 1, "temperature": 1.0, **settings})
    return ChatSpec(messages or [QUESTION], options, tools=tools, tool_choice=choice or ToolChoice(), **own)


def check_calls(result: ChatResult, deltas: list[ChatDelta]) -> int:
    """Check calls against their schemas and the deltas against the whole. Returns the number of finished answers."""
    finished = 0
    for index, choice in enumerate(result.choices):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.content for delta in own) == choice.content
        assert "".join(delta.reasoning for delta in own) == choice.reasoning
        assert [token for delta in own for token in delta.token_ids] == choice.token_ids
        parts = [part for delta in own for part in delta.tool_calls]
        for place, call in enumerate(choice.tool_calls):
            (first,) = [part for part in parts if part.index == place and part.id is not None]
            assert (first.id, first.name) == (call.id, call.name)
            assert "".join(part.arguments for part in parts if part.index == place) == call.arguments
        complete = choice.tool_calls[: None if choice.finish_reason == "tool_calls" else -1]
        for call in complete:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        assert choice.finish_reason in ("tool_calls", "length")
        finished += choice.finish_reason == "tool_calls" and bool(choice.tool_calls)
    return finished


@template(*BY_FORMAT)
@pytest.mark.parametrize("kind", ["sampled", "hot", "greedy", "beams"])
async def test_forced_calls_match_their_schemas(bench: ChatBench, kind: str) -> None:
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
        result, deltas = await bench.ask(spec(choice, seed=10 * seed, parallel_tool_calls=several, **settings))
        finished += check_calls(result, deltas)
        for answer in result.choices:
            assert answer.content == answer.reasoning == ""
            assert {call.name for call in answer.tool_calls} <= ({choice.name} if choice.name else set(SCHEMAS))
            assert several or len(answer.tool_calls) <= 1
            assert choice.name is None or len(answer.tool_calls) <= 1, "a named function is called once"
    assert finished >= 2, "hardly any call was complete"


@template(*(name for name, row in ROWS.items() if row.parallel))
@pytest.mark.parametrize("choice", [ToolChoice(), REQUIRED], ids=["auto", "required"])
async def test_parallel_calls(bench: ChatBench, request: pytest.FixtureRequest, choice: ToolChoice) -> None:
    row = ROWS[request.node.callspec.params["bench"]]
    calls = [("get_weather", {"city": "Paris"}), ("get", {}), ("set_mode", {"modes": ["on", None]})]
    bench.follow(row.write(calls))
    result, deltas = await bench.ask(spec(choice))
    check_calls(result, deltas)
    (answer,) = result.choices
    assert [(one.name, json.loads(one.arguments)) for one in answer.tool_calls][:3] == calls
    assert len({call.id for call in answer.tool_calls}) == len(answer.tool_calls)
    (single,) = (await bench.ask(spec(choice, parallel_tool_calls=False)))[0].choices
    assert [(one.name, json.loads(one.arguments)) for one in single.tool_calls] == calls[:1]
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
    bench: ChatBench, request: pytest.FixtureRequest
) -> None:
    """With `auto`, the model is made to begin a call; the rest is random. Some beginnings cross the end of a marker."""
    name = request.node.callspec.params["bench"]
    beginning = [one + 3 if isinstance(one, int) else one for one in BEGINNINGS[name]]
    bench.follow(beginning)
    result, deltas = await bench.ask(spec(n=6))
    assert check_calls(result, deltas) >= 2
    assert all(choice.tool_calls for choice in result.choices)
    assert {choice.content for choice in result.choices} <= {"", "Let me", "Let me the"}


@template(*BEGINNINGS)
async def test_plain_answers_with_tools_equal_those_without_a_grammar(bench: ChatBench) -> None:
    """With `auto`, an answer without a call has the same tokens, log-probabilities and text as without sections."""
    with_tools, _ = await bench.ask(spec(n=4, logprobs=True, top_logprobs=2))
    (message,) = bench.sent
    assert message.params.sections, "the engine follows the sections"
    prompt = bench.tokenizer.decode(message.prompts[0], skip_special_tokens=False)
    bench.runtime.texts["llm"].chat_templates.by_name["default"] = "{{ messages[0].content }}"
    plain = spec(tools=[], messages=[{"role": "user", "content": prompt}], n=4, logprobs=True, top_logprobs=2)
    without, _ = await bench.ask(plain)
    assert bench.sent[1].prompts == message.prompts and not bench.sent[1].params.sections
    assert with_tools.choices == without.choices
    assert all(choice.finish_reason == "stop" and choice.content for choice in without.choices)


async def test_tools_are_not_shown_with_the_choice_none(bench: ChatBench) -> None:
    result, _ = await bench.ask(spec(ToolChoice("none")))
    bare, _ = await bench.ask(spec(tools=[]))
    assert bench.sent[0].prompts == bench.sent[1].prompts and not bench.sent[0].params.sections
    assert result.choices[0].content == bare.choices[0].content
    shown, count = await count_prompt_tokens(bench.runtime, spec())
    assert shown == "llm" and count > len(bench.sent[0].prompts[0])


async def test_a_cut_call_is_reported_as_far_as_it_goes(bench: ChatBench) -> None:
    bench.follow('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par')
    result, deltas = await bench.ask(spec(max_new_tokens=len(bench.runner.script)))
    (choice,) = result.choices
    assert choice.finish_reason == "length" and choice.content == ""
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [("get_weather", '{"city": "Par')]
    check_calls(result, deltas)
    bench.follow('<tool_call>\n{"name": "get_wea')
    (choice,) = (await bench.ask(spec(max_new_tokens=len(bench.runner.script))))[0].choices
    assert choice.finish_reason == "length" and not choice.tool_calls and choice.content == ""
    bench.follow("See <tool_")
    (choice,) = (await bench.ask(spec(max_new_tokens=len(bench.runner.script))))[0].choices
    assert (choice.content, choice.finish_reason) == ("See <tool_", "length")


async def test_a_stop_string_ends_an_answer_inside_a_call(bench: ChatBench) -> None:
    bench.follow('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "')
    (choice,) = (await bench.ask(spec(stop=["Par"])))[0].choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Par")
    assert [call.arguments for call in choice.tool_calls] == ['{"city": "']


async def test_the_best_of_several_calls(bench: ChatBench) -> None:
    many, _ = await bench.ask(spec(REQUIRED, n=4, logprobs=True, stream=False, parallel_tool_calls=False))
    best, _ = await bench.ask(spec(REQUIRED, n=1, best_of=4, logprobs=True, stream=False, parallel_tool_calls=False))

    def mean(choice: Any) -> float:
        return sum(entry.logprob for entry in choice.logprobs) / len(choice.logprobs)

    (chosen,) = best.choices
    wanted = max(many.choices, key=mean)
    assert [(one.name, one.arguments) for one in chosen.tool_calls] == [
        (one.name, one.arguments) for one in wanted.tool_calls
    ]
    assert chosen.token_ids == wanted.token_ids and len(chosen.logprobs) == len(chosen.token_ids)


# ------------------------------------------------------------------------------------------------------------ reasoning


@template("qwen")
async def test_reasoning_comes_before_a_forced_call(bench: ChatBench) -> None:
    bench.follow("<think>\nI need <tool_call> the city.\n</think>\n\n")
    result, deltas = await bench.ask(spec(REQUIRED, n=3, parallel_tool_calls=False))
    assert check_calls(result, deltas) >= 1
    for choice in result.choices:
        assert choice.reasoning == "I need <tool_call> the city." and choice.content == "" and choice.tool_calls


@template("qwen")
async def test_a_forced_call_needs_no_reasoning(bench: ChatBench) -> None:
    result, deltas = await bench.ask(spec(REQUIRED, n=8, parallel_tool_calls=False))
    assert check_calls(result, deltas) >= 1
    starts = {bench.tokenizer.decode(choice.token_ids).lstrip()[:6] for choice in result.choices}
    assert starts <= {"<think", "<tool_"} and "<tool_" in starts


@template("opens-thinking")
async def test_reasoning_that_the_prompt_opens(bench: ChatBench) -> None:
    bench.follow(["Let me", "\n", "</", "think>\n\n", "\n", "The rest"[:3].encode()[0] + 3])
    (choice,) = (await bench.ask(spec(tools=[], max_new_tokens=6)))[0].choices
    assert (choice.reasoning, choice.content) == ("Let me", "T")
    assert not bench.sent[0].params.sections, "reasoning alone needs no grammar"


@template("qwen", "opens-thinking")
async def test_a_format_applies_to_the_answer_after_reasoning(bench: ChatBench, request: pytest.FixtureRequest) -> None:
    """Also where a token contains the end of the marker and line breaks, and no answer ends while it reasons."""
    opened = request.node.callspec.params["bench"] == "opens-thinking"
    bench.follow([*([] if opened else ["<", "think>"]), "Let me", 1, "</", "think>\n\n"])
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    asked = spec(tools=[], n=3, text_format=JsonFormat(schema))
    for choice in (await bench.ask(asked))[0].choices:
        assert choice.reasoning.startswith("Let me")
        assert choice.finish_reason == "length" or json.loads(choice.content)["a"] in (1, 2)
    bench.follow([*([] if opened else ["<", "think>"]), "Let me", "</", "think>\n\n"])
    for choice in (await bench.ask(asked))[0].choices:
        assert choice.reasoning == "Let me" and json.loads(choice.content)["a"] in (1, 2)


@template("qwen")
async def test_a_template_can_switch_reasoning_off(bench: ChatBench) -> None:
    bench.follow("<think>no</think>")
    asked = spec(tools=[], max_new_tokens=len(bench.runner.script), template_variables={"enable_thinking": False})
    (choice,) = (await bench.ask(asked))[0].choices
    assert (choice.reasoning, choice.content) == ("", "<think>no</think>")


@template("hermes", "mistral")
async def test_a_format_and_tools_together(bench: ChatBench) -> None:
    """The content follows the format, unless the answer is a call."""
    schema = {"type": "object", "properties": {"b": {"enum": [3]}}, "required": ["b"], "additionalProperties": False}
    result, _ = await bench.ask(spec(n=12, text_format=JsonFormat(schema)))
    calls = [choice for choice in result.choices if choice.tool_calls]
    contents = [choice for choice in result.choices if choice.content]
    assert calls and contents and len(calls) + len(contents) == 12
    assert all(json.loads(choice.content) == {"b": 3} for choice in contents)
    for choice in calls:
        for call in choice.tool_calls[: None if choice.finish_reason == "tool_calls" else -1]:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@template("llama-3")
async def test_a_format_is_refused_where_calls_look_like_it(bench: ChatBench) -> None:
    with pytest.raises(InvalidRequest, match="tool_choice") as error:
        await bench.ask(spec(text_format=JsonFormat({"type": "object"})))
    assert error.value.param == "response_format"
    await bench.ask(spec(REQUIRED, text_format=JsonFormat({"type": "object"})))


# ------------------------------------------------------------------------------------------------------------- messages

CALL = {"id": "call_AbCdEfGhIj0123", "type": "function", "function": {"name": "get_weather"}}


def history(arguments: object) -> list[dict[str, Any]]:
    call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
    return [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "It rains."},
    ]


@template("hermes", "llama-3", "mistral", "deepseek", "deepseek-names")
async def test_calls_and_results_reach_the_template(bench: ChatBench, request: pytest.FixtureRequest) -> None:
    prompts = []
    for arguments in ({"city": "Köln"}, '{"city": "Köln"}'):
        await bench.ask(spec(messages=history(arguments), max_new_tokens=1))
        prompts.append(bench.tokenizer.decode(bench.sent[-1].prompts[0], skip_special_tokens=False))
    assert prompts[0] == prompts[1]
    assert '{"city": "Köln"}' in prompts[0] and "It rains." in prompts[0] and "get_weather" in prompts[0]
    if request.node.callspec.params["bench"] == "mistral":
        assert prompts[0].count('"fGhIj0123"') == 2, "ids of nine characters"


@pytest.mark.parametrize("arguments", ["{", "[1]", 3, '"text"', None])
async def test_arguments_must_be_an_object(bench: ChatBench, arguments: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments") as error:
        await bench.ask(spec(messages=history(arguments)))
    assert error.value.param == "messages"


@template("none", "json")
async def test_calls_that_a_template_leaves_out_are_refused(bench: ChatBench, request: pytest.FixtureRequest) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.tool_calls") as error:
        await bench.ask(spec(messages=history({}), tools=[]))
    assert error.value.param == "messages"


# ------------------------------------------------------------------------------------------------------------- refusals


def tool(name: object = "f", parameters: object = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ([tool("a"), tool("b b")], r"tools\[1\]\.function\.name"),
        ([tool("")], r"tools\[0\]\.function\.name"),
        ([tool(None)], r"tools\[0\]\.function\.name"),
        ([tool("a"), tool("a")], r"tools\[1\]\.function\.name` is also"),
        ([{"type": "web_search"}], r"tools\[0\]` is not a function"),
        ([tool("a", {"type": "array"})], r"tools\[0\]\.function\.parameters` must be a JSON schema of type `object`"),
        ([tool("a", {"type": "object", "properties": {"x": {"type": "wrong"}}})], r"tools\[0\]\.function\.parameters"),
        ([tool("a"), tool("b", {"properties": {"x": {"minContains": 3}}})], r"tools\[1\].*minContains"),
        ([tool("a", {"properties": {"x": {"$ref": "#/$defs/missing"}}})], r"tools\[0\]"),
        ([tool("a", {"type": "object", "description": "d" * (1 << 16)})], "the limit is 65536"),
        ([tool(f"f{i}") for i in range(129)], "129 functions; the limit is 128"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "none"])
async def test_bad_tools_are_refused(bench: ChatBench, tools: list[Any], text: str, mode: Any) -> None:
    with pytest.raises(InvalidRequest, match=text) as error:
        await bench.ask(spec(ToolChoice(mode), tools=tools))
    assert error.value.param == "tools" and not bench.sent


@pytest.mark.parametrize("choice", [REQUIRED, ToolChoice("required", "get")])
async def test_a_required_call_needs_tools(bench: ChatBench, choice: ToolChoice) -> None:
    with pytest.raises(InvalidRequest) as error:
        await bench.ask(spec(choice, tools=[]))
    assert error.value.param == "tool_choice"


async def test_other_refusals(bench: ChatBench) -> None:
    for settings, param in [
        ({"choice": ToolChoice("required", "missing")}, "tool_choice"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"template_variables": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [], "tools": []}, "messages"),
    ]:
        asked = spec(**settings)
        if settings.get("messages") == []:
            asked = ChatSpec([])
        with pytest.raises(InvalidRequest) as error:
            await bench.ask(asked)
        assert error.value.param == param
    assert not bench.sent


@template("none")
async def test_a_template_that_ignores_tools_is_refused(bench: ChatBench) -> None:
    with pytest.raises(InvalidRequest, match="`llm`: its chat template ignores them") as error:
        await bench.ask(spec())
    assert error.value.param == "tools"
    await bench.ask(spec(ToolChoice("none")))


async def test_a_grammar_that_grows_too_complex_names_the_tools(bench: ChatBench, monkeypatch: Any) -> None:
    from llguidance import LLParserLimits

    from server.engine import grammar_masks

    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=60, verbose_errors=False))
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}},
        "required": ["x"],
    }
    with pytest.raises(InvalidRequest) as error:
        await bench.ask(spec(REQUIRED, tools=[tool("f", schema)]))
    assert error.value.param == "tools" and error.value.message.startswith("`tools` grew too complex")
