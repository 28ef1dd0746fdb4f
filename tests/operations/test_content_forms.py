"""A chat template gets messages in the form that it expects: texts, lists of parts, or different forms by role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.ipc.client.call import Call
from server.operations.chatting.chat import ChatSpec, chat, count_prompt_tokens
from server.operations.generating.generation_options import GenerationOptions
from server.text.chats.chat_forms import with_forms
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.operations.test_chat import prompt_of, reference, with_template
from tests.operations.tool_cases import TOOLS, history
from tests.text.list_templates import LISTS_ONLY, MIXED, NO_SYSTEM_ROLE, RESULTS_AS_LISTS
from tests.waiting import HANG_SECONDS

ONE_TOKEN = GenerationOptions(max_new_tokens=1, seed=1)
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "A word."},
    {"role": "user", "content": "Which one?"},
]
TEXT = "[system]Be brief.[user]What is it?[assistant]A word.[user]Which one?"


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatBench]:
    made = ChatBench(write_checkpoint(tmp_path / "llm", request.param))
    text = made.runtime.texts["llm"]
    templates = with_forms(text.chat_templates, made.runtime.chat_renderer, HANG_SECONDS)
    made.runtime.texts = {"llm": replace(text, chat_templates=templates)}
    yield made
    made.close()


def as_lists(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


@with_template(*LISTS_ONLY.values())
async def test_texts_reach_a_template_that_reads_lists(bench: ChatBench) -> None:
    """Texts are converted for a template that expects lists of parts. transformers would leave them out.

    The prompt equals that of transformers for lists of parts.
    """
    assert await prompt_of(bench, ChatSpec(TURNS, ONE_TOKEN)) == TEXT + "[assistant]"
    assert reference(bench, as_lists(TURNS), add_generation_prompt=True) == TEXT + "[assistant]"
    assert await prompt_of(bench, ChatSpec(as_lists(TURNS), ONE_TOKEN)) == TEXT + "[assistant]"


@with_template(*MIXED.values())
async def test_each_role_has_its_own_form(bench: ChatBench) -> None:
    assert await prompt_of(bench, ChatSpec(TURNS, ONE_TOKEN)) == TEXT + "[assistant]"


@with_template(LISTS_ONLY["typed"], MIXED["assistant"])
async def test_a_last_message_in_a_list_is_continued(bench: ChatBench) -> None:
    spec = ChatSpec([*TURNS, {"role": "assistant", "content": "It is"}], ONE_TOKEN, continue_final_message=True)
    assert await prompt_of(bench, spec) == TEXT + "[assistant]It is"


@with_template(RESULTS_AS_LISTS)
async def test_results_of_calls_reach_a_template_that_reads_them_as_lists(bench: ChatBench) -> None:
    prompt = await prompt_of(bench, ChatSpec(history({"city": "Paris"}), ONE_TOKEN, tools=TOOLS))
    assert "It rains." in prompt and "get_weather" in prompt and "{'type'" not in prompt


@with_template(NO_SYSTEM_ROLE)
async def test_messages_that_a_template_leaves_out_are_named(bench: ChatBench) -> None:
    for messages, ignored in ((TURNS, ["messages:system"]), (TURNS[1:], [])):
        with Call(bench.client) as call:
            await chat(bench.runtime, call, ChatSpec(messages, ONE_TOKEN))
            assert call.ignored == ignored
    with Call(bench.client) as call:
        await chat(bench.runtime, call, ChatSpec(TURNS, ONE_TOKEN, messages_field="input"))
        assert call.ignored == ["input:system"]
    with Call(bench.client) as call:
        await count_prompt_tokens(bench.runtime, call, ChatSpec(TURNS, ONE_TOKEN))
        assert call.ignored == ["messages:system"]
    assert "role system" in (bench.runtime.ready()[0].lost_roles_problem or "")


@with_template(MIXED["user"])
async def test_a_model_whose_template_reads_all_roles_has_no_problem(bench: ChatBench) -> None:
    (model,) = bench.runtime.ready()
    assert model.lost_roles_problem is None and model.chat_problem is None
