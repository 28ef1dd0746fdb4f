"""Published chat templates render the beginning of a conversation the same way in each turn of an agent.

The prefix cache finds only equal tokens. The tests are skipped where the published templates are missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest

from server.operations.chatting.chat_prompt import template_messages
from server.operations.chatting.template_tools import _inspect
from server.text.chats.chat import ChatError, ChatRenderer, ChatTemplates, chat_context
from tests.e2e.agent import text, tools

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "published"
TEMPLATES = (
    "chat_templates/chat_templates/qwen2.5-instruct.jinja",
    "llm-tpu/Gemma4/config/chat_template.jinja",
    "llm-tpu/Llama3/config/tokenizer_config.json",
    "llm-tpu/Qwen3/config/tokenizer_config.json",
    "llm-tpu/Qwen3_5/config/chat_template.jinja",
    "mistral-common/v7.jinja",
    "mistral-common/v13_think.jinja",
)
MAX_CHARACTERS = 1 << 22


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    made = ChatRenderer(20)
    yield made
    made.close()


def messages(rng: random.Random, turns: int, reasons: bool) -> list[dict[str, Any]]:
    """A conversation with a tool call in each turn. reasons: whether the client sends earlier reasoning back."""
    made = [{"role": "system", "content": text(rng, 3000)}, {"role": "user", "content": text(rng, 100)}]
    for number in range(turns):
        function = {"name": "tool_1", "arguments": '{"limit":3 ,"path":  "x"}'}
        calls = [{"id": f"call_{number:05}", "type": "function", "function": function}]
        made.append({"role": "assistant", "content": text(rng, 30), "tool_calls": calls})
        if reasons:
            made[-1]["reasoning_content"] = text(rng, 80)
        made.append({"role": "tool", "tool_call_id": f"call_{number:05}", "content": text(rng, 200)})
    return made


@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_begins_with_the_previous_one(renderer: ChatRenderer, name: str, reasons: bool) -> None:
    """The prompt of a turn repeats the previous turn's prompt, except for the last tokens, which begin an answer.

    The state tables rely on this: at most REWRITTEN_TOKENS tokens may differ.
    """
    if not (PUBLISHED / name).exists():
        pytest.skip("the published templates are missing")
    source = (PUBLISHED / name).read_text()
    if name.endswith(".json"):
        source = json.loads(source)["chat_template"]
    templates = ChatTemplates({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})

    def render(given: Any, offered: Any, as_objects: bool = False) -> str:
        context = chat_context(templates, given, tools=offered, null_content=True)
        return renderer.render(source, context, MAX_CHARACTERS, arguments_as_objects=as_objects)

    def sample(given: Any, offered: Any) -> str:
        try:
            return render(given, offered)
        except ChatError:
            return ""

    support, offered = _inspect(source, sample), tools(random.Random(1), 8, 300)
    prompts = [
        render(
            template_messages(messages(random.Random(1), turns, reasons), support),
            offered,
            as_objects=not support.arguments_as_text,
        )
        for turns in range(6)
    ]
    for before, after in pairwise(prompts):
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        assert len(before) - sum(1 for _ in equal) <= 16
