"""Finding the variables that switch reasoning in a chat template, from the expressions of published templates."""

from __future__ import annotations

from typing import Any

import pytest

from server.operations.chatting.reasoning_settings import reasoning_variables

PLAIN = "{{ messages[0].content }}"
ALWAYS = "{{ messages[0].content }}<think>\n"
QWEN_3 = "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{%- endif %}"
DEEPSEEK = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ '<think>' if thinking }}</think>"
GRANITE = "{%- if thinking %}Respond with your reasoning.{%- endif %}{{ message.thinking }}"
GPT_OSS = (
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "Reasoning: {{ reasoning_effort }}<|channel|>analysis{{ message.thinking if message.thinking is defined }}"
)
MISTRAL = (
    "{%- set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'none' %}"
    "{%- if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('no') }}{%- endif %}[THINK]"
)


@pytest.mark.parametrize(
    ("source", "thinking", "effort", "expected"),
    [
        (QWEN_3, None, None, {}),
        (QWEN_3, True, None, {"enable_thinking": True}),
        (QWEN_3, None, "none", {"enable_thinking": False}),
        (QWEN_3, None, "minimal", {"enable_thinking": False}),
        (QWEN_3, None, "XHigh", {"enable_thinking": True}),
        (QWEN_3, None, "turbo", {}),
        (QWEN_3, False, "high", {"enable_thinking": False}),
        (DEEPSEEK, None, "low", {"thinking": True}),
        (DEEPSEEK, False, None, {"thinking": False}),
        (GRANITE, None, "high", {"thinking": True}),
        (GPT_OSS, None, "high", {"reasoning_effort": "high"}),
        (GPT_OSS, None, "max", {"reasoning_effort": "high"}),
        (GPT_OSS, None, "none", {"reasoning_effort": "low"}),
        (GPT_OSS, None, "turbo", {}),
        (GPT_OSS, True, None, {}),
        (MISTRAL, None, "low", {"reasoning_effort": "high"}),
        (MISTRAL, None, "minimal", {"reasoning_effort": "none"}),
        (MISTRAL, True, None, {"reasoning_effort": "high"}),
        (MISTRAL, False, "high", {"reasoning_effort": "none"}),
        (MISTRAL, None, None, {}),
        (PLAIN, None, "high", {}),
    ],
)
def test_the_variables(source: str, thinking: bool | None, effort: str | None, expected: dict[str, Any]) -> None:
    assert reasoning_variables(source, thinking, effort) == (expected, True)


@pytest.mark.parametrize(
    ("source", "thinking", "granted"),
    [
        (PLAIN, True, False),
        (PLAIN, False, True),
        (ALWAYS, True, True),
        (ALWAYS, False, False),
        (GPT_OSS, False, False),
    ],
)
def test_a_switch_that_the_template_does_not_have(source: str, thinking: bool, granted: bool) -> None:
    variables, is_granted = reasoning_variables(source, thinking, None)
    assert "enable_thinking" not in variables and "thinking" not in variables
    assert is_granted is granted
