"""Variables of a chat template that decide whether, and how much, the model reasons before it answers.

Templates have no common name for these settings. The switches are `enable_thinking` (Qwen 3, GLM 4.5, SmolLM 3) and
`thinking` (DeepSeek V3.1, Granite, Kimi K2); `reasoning_effort` (gpt-oss, Mistral) is a word.
"""

from __future__ import annotations

import re
from typing import Any

from server.text.chats.tool_formats import reasoning_markers

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for the effort in the APIs that clients speak, by growing effort."""
_OFF = ("none", "minimal")
_USUAL = ("low", "medium", "high")
"""Words of a template that puts its `reasoning_effort` into the prompt without comparing it with any word."""
_THINKING = re.compile(r"(?<![\w.\"'])thinking is (not )?defined|\{%-?\s*(el)?if (not )?thinking\s*-?%\}")
"""A use of the variable `thinking`, and not of the key of a message with the same name."""
_COMPARED = re.compile(r"reasoning_effort\s*(?:==|!=|(?:not\s+)?in)\s*([\[(]?(?:\s*['\"]\w+['\"]\s*,?)+)")
_WORD = re.compile(r"['\"](\w+)['\"]")


def reasoning_variables(source: str, thinking: bool | None, effort: str | None) -> tuple[dict[str, Any], bool]:
    """The variables of a template for a request, and whether they grant `thinking`.

    source: the template.
    thinking: whether the model should reason; None leaves it to the effort, and then to the template.
    effort: one of `EFFORTS`; other words, and an effort that the template has no setting for, have no effect.
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
    """Choose the word for an effort that a template understands. None for the template's own default.

    words: the words of the template. level: index of the effort in `EFFORTS`.
    switch: whether the model should reason. If it is False and the template has the word `none`, that is the result.
    """
    if switch is False and "none" in words:
        return "none"
    reasoning = [word for word in words if word != "none"]
    if level is not None and reasoning:
        return min(reasoning, key=lambda word: abs(EFFORTS.index(word) - level))
    return reasoning[-1] if switch and "none" in words and reasoning else None


def _is_default(source: str, thinking: bool) -> bool:
    """Whether a template that has no switch for reasoning behaves as the request asks anyway.

    thinking: whether the request asks for reasoning.
    """
    if thinking:
        return reasoning_markers(source) is not None or "reasoning_effort" in source
    return "think" not in source and "reasoning" not in source
