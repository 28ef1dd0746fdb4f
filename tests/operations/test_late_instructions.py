"""System messages after the first message, with templates that accept them there, reject them, or leave them out."""

from __future__ import annotations

from typing import Any

import pytest

from server.operations.chatting.late_instructions import with_instructions_at_front
from tests.operations.chat_bench import ChatBench
from tests.operations.tool_cases import spec, template

SYSTEM = {"role": "system", "content": "Be brief."}
LATE = {"role": "system", "content": "Now be kind."}
USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi."}


def roles_and_texts(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in with_instructions_at_front(messages)]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, USER], [("system", "Be brief."), ("user", "Hello")]),
        ([SYSTEM, LATE, USER], [("system", "Be brief.\n\nNow be kind."), ("user", "Hello")]),
        ([USER, LATE], [("user", "Hello\n\nNow be kind.")]),
        ([USER, LATE, USER, ANSWER], [("user", "Hello\n\nNow be kind.\n\nHello"), ("assistant", "Hi.")]),
        ([USER, ANSWER, LATE, USER], [("user", "Hello"), ("assistant", "Hi."), ("user", "Now be kind.\n\nHello")]),
        (
            [USER, USER, ANSWER, LATE],
            [("user", "Hello"), ("user", "Hello"), ("assistant", "Hi."), ("user", "Now be kind.")],
        ),
    ],
)
def test_late_instructions_become_text_of_the_user(messages: list[Any], expected: list[Any]) -> None:
    assert roles_and_texts(messages) == expected


def test_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hello"}]
    ((_, content),) = roles_and_texts([{"role": "user", "content": parts}, LATE])
    assert content == [*parts, {"type": "text", "text": "Now be kind."}]


@template("hermes", "front-only", "front-or-nothing")
async def test_a_late_instruction_is_in_every_prompt(llm: ChatBench, request: pytest.FixtureRequest) -> None:
    for _ in range(2):
        await llm.ask(spec(messages=[SYSTEM, USER, ANSWER, LATE, USER], tools=[], max_new_tokens=1))
        prompt = llm.tokenizer.decode(llm.sent[-1].prompts[0], skip_special_tokens=False)
        assert prompt.count("Now be kind.") == 1
    reads = {"hermes": True, "front-only": False, "front-or-nothing": False}[request.node.callspec.params["llm"]]
    assert list(llm.runtime.late_instructions.values()) == [reads]
