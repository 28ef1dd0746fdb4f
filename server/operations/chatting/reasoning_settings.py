"""Choose the variables of a chat template that decide whether, and how much, the model reasons before it answers.

Templates have no common name for these settings. There are two boolean variables, `enable_thinking` (Qwen 3, GLM 4.5,
SmolLM 3) and `thinking` (DeepSeek V3.1, Granite, Kimi K2), and one whose value is a word, `reasoning_effort` (gpt-oss,
Mistral).
"""

from __future__ import annotations

import re
from typing import Any

from server.text.chats.tool_formats import reasoning_markers

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for the effort in the APIs of all dialects, from the lowest to the highest effort."""
_OFF = ("none", "minimal")
_USUAL = ("low", "medium", "high")
"""Words assumed for a template that only writes `reasoning_effort` into the prompt and compares it with no word."""
_THINKING = re.compile(r"(?<![\w.\"'])thinking is (not )?defined|\{%-?\s*(el)?if (not )?thinking\s*-?%\}")
"""Pattern of a use of the variable `thinking` in a template, but not of a message's key with the same name."""
_COMPARED = re.compile(r"reasoning_effort\s*(?:==|!=|(?:not\s+)?in)\s*([\[(]?(?:\s*['\"]\w+['\"]\s*,?)+)")
_WORD = re.compile(r"['\"](\w+)['\"]")


def reasoning_variables(source: str, thinking: bool | None, effort: str | None) -> tuple[dict[str, Any], bool]:
    """Choose the reasoning variables of a template for a request.

    Returns the variables, and whether the template can follow `thinking` (True if `thinking` is None).

    source: text of the template.
    thinking: whether the model should reason; None leaves it to the effort, and then to the template.
    effort: one of `EFFORTS`. Other words, and an effort that the template has no setting for, have no effect.
    """
    level = EFFORTS.index(effort.lower()) if effort is not None and effort.lower() in EFFORTS else None
    switch = EFFORTS[level] not in _OFF if thinking is None and level is not None else thinking
    found: dict[str, Any] = {}
    if switch is not None and "enable_thinking" in source:
        found["enable_thinking"] = switch
    if switch is not None and _THINKING.search(source) is not None:
        found["thinking"] = switch
    can_switch = bool(found)
    if "reasoning_effort" in source:
        words = _words(source)
        can_switch |= "none" in words
        chosen = _nearest(words, level, switch)
        found |= {"reasoning_effort": chosen} if chosen is not None else {}
    return found, thinking is None or can_switch or _is_default(source, thinking)


def _words(source: str) -> list[str]:
    """The words of `EFFORTS` that a template compares its variable `reasoning_effort` with."""
    compared = {word for found in _COMPARED.finditer(source) for word in _WORD.findall(found[1])}
    return [word for word in EFFORTS if word in compared] or list(_USUAL)


def _nearest(words: list[str], level: int | None, switch: bool | None) -> str | None:
    """Choose the value of `reasoning_effort` that is nearest to a requested effort. None for the template's default.

    words: the values that the template knows. level: index of the requested effort in `EFFORTS`; None if no effort is
        requested.
    switch: whether the model should reason. False gives `none`, if the template knows this word.
    """
    if switch is False and "none" in words:
        return "none"
    reasoning = [word for word in words if word != "none"]
    if level is not None and reasoning:
        return min(reasoning, key=lambda word: abs(EFFORTS.index(word) - level))
    return reasoning[-1] if switch and "none" in words and reasoning else None


def _is_default(source: str, thinking: bool) -> bool:
    """Whether a template without a switch for reasoning does by default what the request asks for.

    thinking: whether the request asks for reasoning.
    """
    if thinking:
        return reasoning_markers(source) is not None or "reasoning_effort" in source
    return "think" not in source and "reasoning" not in source
