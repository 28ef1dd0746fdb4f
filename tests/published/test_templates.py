"""Published chat templates render to exactly the same text as in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from server.text.chats.chat import ChatError, ChatRenderer, ChatTemplates, chat_context
from server.text.chats.chat_forms import with_forms
from tests.published.conftest import found
from tests.waiting import HANG_SECONDS

TEMPLATES = found("llama.cpp/templates/*.jinja")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
MAX_CHARACTERS = 1 << 20
NEEDS_MORE = frozenset({"fireworks-ai-llama-3-firefunction-v2"})
"""Templates that need more variables than transformers gives, so that transformers can render no conversation."""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}
_CALL = {"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
CONVERSATIONS = {
    "user": [{"role": "user", "content": "Hello there."}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}],
    "turns": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
    ],
    "tools": [
        {"role": "user", "content": "The weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks."},
    ],
}


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    yield renderer
    renderer.close()


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_the_text_equals_the_reference(path: Path, renderer: ChatRenderer) -> None:
    source = path.read_text(encoding="utf-8")
    templates = with_forms(ChatTemplates({"default": source}, SPECIAL), renderer, HANG_SECONDS)
    rendered = 0
    for name, messages in CONVERSATIONS.items():
        given = templates.in_forms(source, json.loads(json.dumps(messages)))
        options = {"add_generation_prompt": True} | ({"tools": [TOOL]} if name == "tools" else {})
        try:
            (expected,), _ = render_jinja_template([given], chat_template=source, **options, **SPECIAL)
        except Exception:
            with pytest.raises(ChatError):
                renderer.render(source, chat_context(templates, given, **options), MAX_CHARACTERS)
            continue
        text = renderer.render(source, chat_context(templates, given, **options), MAX_CHARACTERS)
        assert text == expected, name
        rendered += 1
    assert rendered or path.stem in NEEDS_MORE, "control: a template that fails for every conversation compares nothing"
