"""Chat prompts equal those of transformers, and slow chat templates do not delay other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from server.errors import DeadlineExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.operations.chatting.chat import ChatSpec, chat
from server.operations.generating.generation_options import GenerationOptions
from server.text.chats.chat import ChatError, ChatRenderer
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.operations.tool_cases import TOOLS, history
from tests.text.chat_templates import CHATML, GEMMA, TURNS
from tests.text.tool_templates import BY_FORMAT, DEEPSEEK, DEEPSEEK_NAMES, HERMES, LLAMA_3, QWEN_3
from tests.waiting import HANG_SECONDS

ONE_TOKEN = GenerationOptions(max_new_tokens=1, seed=1)
SLOW = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TRIMS = """{%- for message in messages %}{{- '[' + message.role + ']' + message.content | trim + '[end]' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}"""
PARTS = """{%- for message in messages %}{{- '[' + message.role + ']' }}
{%- if message.content is string %}{{- message.content }}{%- else %}
{%- for part in message.content %}{{- part.text | default('') }}{%- endfor %}{%- endif %}{{- '[end]' }}{%- endfor %}"""
CONTINUED = {
    "chatml": CHATML,
    "gemma": GEMMA,
    "hermes": HERMES,
    "qwen": QWEN_3,
    "llama-3": LLAMA_3,
    "trims": TRIMS,
    "parts": PARTS,
    "drops the last message": "{% for message in messages[:-1] %}{{ message.content }}{% endfor %}",
    "shortens": "{% for message in messages %}{{ message.content[-30:] }}{% endfor %}",
}
FINAL = {
    "plain": "It is",
    "spaces": " It is  ",
    "repeated": "And\tthis?",
    "empty": "",
    "thought": "<think>\nHm.\n</think>\n\nIt is",
    "parts": [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}],
}


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatBench]:
    made = ChatBench(write_checkpoint(tmp_path / "llm", request.param))
    yield made
    made.close()


def with_template(*templates: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bench", templates, indirect=True)


async def prompt_of(bench: ChatBench, spec: ChatSpec) -> str:
    await bench.ask(spec)
    return bench.tokenizer.decode(bench.sent[-1].prompts[0], skip_special_tokens=False)


def reference(bench: ChatBench, messages: list[dict[str, Any]], **settings: Any) -> str | None:
    """The prompt that transformers renders, or None if it refuses the messages."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bench.runtime.texts["llm"].directory)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    except Exception:
        return None
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return bench.tokenizer.decode(ids, skip_special_tokens=False)


@with_template(*CONTINUED.values())
async def test_a_continued_message_equals_transformers(bench: ChatBench) -> None:
    agreed = 0
    for content in FINAL.values():
        messages = [*TURNS, {"role": "assistant", "content": content}]
        expected = reference(bench, messages, continue_final_message=True)
        spec = ChatSpec(messages, ONE_TOKEN, continue_final_message=True)
        if expected is None or not expected:
            with pytest.raises(InvalidRequest) as error:
                await bench.ask(spec)
            assert error.value.param == "messages"
        else:
            assert await prompt_of(bench, spec) == expected
            agreed += 1
    dropped = bench.runtime.texts["llm"].chat_templates.choose() in (CONTINUED["drops the last message"],)
    assert agreed >= 1 or dropped


@with_template(*BY_FORMAT.values(), QWEN_3)
async def test_tools_calls_and_results_equal_transformers(bench: ChatBench) -> None:
    """Prompts with tools, tool calls and results equal those of transformers.

    transformers needs the messages in the form that each template expects. DeepSeek's templates expect arguments as
    text; we convert them.
    """
    template = bench.runtime.texts["llm"].chat_templates.choose()
    as_text = template in (DEEPSEEK, DEEPSEEK_NAMES)
    shapes = [("auto", history({"city": "Köln", "days": 2})[:1]), ("auto", history({"city": "Köln", "days": 2}))]
    for _, messages in shapes:
        theirs = [dict(message) for message in messages]
        if as_text and len(theirs) > 1:
            continue  # transformers drops `content: None`, on which these templates depend
        for message in theirs:
            if "tool_call_id" in message and "length" in template and "INST" in template:
                message["tool_call_id"] = "fGhIj0123"
            if "tool_calls" in message and "INST" in template:
                message["tool_calls"] = [{**call, "id": "fGhIj0123"} for call in message["tool_calls"]]
        expected = reference(bench, theirs, tools=[tool.for_template() for tool in TOOLS], add_generation_prompt=True)
        spec = ChatSpec(messages, ONE_TOKEN, tools=TOOLS)
        if expected is None:
            with pytest.raises(InvalidRequest):
                await bench.ask(spec)
        else:
            assert await prompt_of(bench, spec) == expected
            assert "get_weather" in expected


@with_template("{{ messages[0].content }}{{ documents }}{{ add_generation_prompt }}{{ mood }}")
async def test_documents_and_variables_reach_the_template(bench: ChatBench) -> None:
    spec = ChatSpec(
        [{"role": "user", "content": "a"}],
        ONE_TOKEN,
        add_generation_prompt=False,
        documents=[{"title": "t"}],
        template_variables={"mood": "glad"},
    )
    assert await prompt_of(bench, spec) == "a[{'title': 't'}]Falseglad"


@with_template("{{ messages[0].content }}{{ moods }}{{ mood_of }}{{ language }}")
async def test_what_a_template_does_not_read_is_refused_or_named(bench: ChatBench) -> None:
    """Documents that a template does not use are refused; other unused variables are ignored and named.

    Documents are a part of the question, but other variables are only wishes.
    """
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(
        InvalidRequest, match=r"^`documents`: the chat template of `llm` leaves documents out$"
    ) as error:
        await bench.ask(ChatSpec(messages, ONE_TOKEN, documents=[{"title": "t"}]))
    assert error.value.param == "documents"
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"language": "en"}, []),
        ({"language": "en", "mood": "glad"}, ["chat_template_kwargs"]),
        ({"mood": None}, []),
        ({"(": 1}, ["chat_template_kwargs"]),
        ({}, []),
    ]
    for variables, ignored in cases:
        with Call(bench.client) as call:
            await chat(bench.runtime, call, ChatSpec(messages, ONE_TOKEN, template_variables=variables))
            assert call.ignored == ignored


@with_template(SLOW)
async def test_slow_templates_leave_the_tokenizers_free(bench: ChatBench) -> None:
    """Chats with a slow template wait for a single thread, and tokenizing waits for none of them."""
    started = time.monotonic()
    spec = ChatSpec([{"role": "user", "content": "a"}], ONE_TOKEN)
    chats = [asyncio.create_task(bench.ask(spec, time.monotonic() + 1.5)) for _ in range(8)]
    await asyncio.sleep(0.2)
    for _ in range(20):
        await bench.runtime.encode(bench.tokenizer, ["a text"], param="prompt")
    assert not any(chat.done() for chat in chats), "the templates ended too early to be in the way"
    results = await asyncio.gather(*chats, return_exceptions=True)
    assert all(isinstance(result, DeadlineExceeded) for result in results), results
    assert time.monotonic() - started < HANG_SECONDS
    bench.runtime.texts["llm"].chat_templates.by_name["default"] = "fine"
    assert await prompt_of(bench, spec) == "fine"


@with_template(SLOW)
async def test_a_slow_template_without_a_deadline_is_stopped_by_its_own_limit(
    bench: ChatBench, monkeypatch: Any
) -> None:
    monkeypatch.setattr(bench.runtime.chat_renderer, "_seconds", 0.3)
    with pytest.raises(InvalidRequest, match="took more than") as error:
        await bench.ask(ChatSpec([{"role": "user", "content": "a"}], ONE_TOKEN))
    assert error.value.param == "messages"


@with_template(SLOW + HERMES)
async def test_a_template_that_was_stopped_is_asked_again(bench: ChatBench, monkeypatch: Any) -> None:
    """If the test of whether a template uses tools was stopped, it is repeated for the next request.

    A stopped test does not mean that the template ignores tools.
    """
    spec = ChatSpec([{"role": "user", "content": "a"}], ONE_TOKEN, tools=TOOLS)
    with monkeypatch.context() as hurried:
        hurried.setattr(bench.runtime.chat_renderer, "_seconds", 0.3)
        with pytest.raises(InvalidRequest, match="took more than"):
            await bench.ask(spec)
        with pytest.raises(DeadlineExceeded):
            await bench.ask(spec, time.monotonic() + 0.1)
    assert not bench.runtime.template_tools
    bench.runtime.texts["llm"].chat_templates.by_name["default"] = HERMES
    assert "get_weather" in await prompt_of(bench, spec)


def test_closing_ends_a_template_that_is_running() -> None:
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    renderer.render("a", {}, 9)
    child = psutil.Process(renderer._process.pid)
    running = renderer.submit(lambda: renderer.render(SLOW, {}, 9))
    queued = renderer.submit(lambda: renderer.render("b", {}, 9))
    while not running.running():
        time.sleep(0.01)
    renderer.close()
    with pytest.raises(ChatError):
        running.result(HANG_SECONDS)
    assert queued.cancelled() and not child.is_running()
    with pytest.raises(ChatError, match="stopping"):
        renderer.render("c", {}, 9)


@with_template(CHATML)
async def test_the_cost_is_an_upper_bound_of_the_prompt(bench: ChatBench) -> None:
    (model,) = bench.runtime.loaded()
    for messages in (TURNS[:1], TURNS * 3):
        spec = ChatSpec(messages, ONE_TOKEN)
        text = await prompt_of(bench, spec)
        cost = spec.cost(model)
        assert cost.input_characters >= len(text) and cost.input_tokens >= len(bench.sent[-1].prompts[0])
