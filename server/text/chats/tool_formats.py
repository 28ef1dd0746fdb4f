"""How checkpoints write function calls and mark reasoning: one table row per format.

The texts of a row are literal, except for their white space, which shows where an answer may contain white space.
Sources: the chat templates of the checkpoints that are named above each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """How a checkpoint writes function calls.

    name: name of the format.
    marker: text or special token with which the calls of an answer begin. `begin + before_name` begins with it.
    before_name, before_arguments, after_arguments: texts around the name and the JSON arguments of each call.
    begin, separator, end: texts before the first call, between calls, and after the last one.
    at_start: whether calls are recognised only at the beginning of an answer, because the marker is ordinary JSON.
    introductions: further markers, which may come before `begin`.
    parallel: whether an answer may contain several calls.
    id_characters: length of the call ids that the template accepts; None for any length.
    """

    name: str
    marker: str
    before_name: str
    before_arguments: str
    after_arguments: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    at_start: bool = False
    introductions: tuple[str, ...] = ()
    parallel: bool = True
    id_characters: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The literal texts of the format. They may contain special tokens."""
        around = (self.before_name, self.before_arguments, self.after_arguments)
        return (*around, self.begin, self.separator, self.end, *self.introductions)

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Write calls as text in this format. calls: (name, arguments) of each call."""
        written = [
            f"{self.before_name}{name}{self.before_arguments}{json.dumps(arguments)}{self.after_arguments}"
            for name, arguments in calls
        ]
        return self.begin + self.separator.join(written) + self.end


TOOL_FORMATS = (
    # Hermes 2 Pro and 3, Qwen 2.5 and 3, SmolLM 3
    ToolFormat(
        "hermes",
        marker="<tool_call>",
        before_name='<tool_call> { "name": "',
        before_arguments='", "arguments": ',
        after_arguments=" } </tool_call>",
        separator="\n",
    ),
    # DeepSeek V3 and R1
    ToolFormat(
        "deepseek",
        marker="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments="\n```json\n",
        after_arguments="\n```<｜tool▁call▁end｜>",
        separator="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    # DeepSeek V3.1
    ToolFormat(
        "deepseek-names",
        marker="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁calls▁begin｜>",
        before_name="<｜tool▁call▁begin｜>",
        before_arguments="<｜tool▁sep｜>",
        after_arguments="<｜tool▁call▁end｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    # Mistral Small 3.2, Magistral, Devstral
    ToolFormat(
        "mistral-names",
        marker="[TOOL_CALLS]",
        before_name="[TOOL_CALLS] ",
        before_arguments="[ARGS] ",
        after_arguments="",
        id_characters=9,
    ),
    # Mistral 7B v0.3, Mixtral, Nemo, Small and Large of 2024
    ToolFormat(
        "mistral",
        marker="[TOOL_CALLS]",
        begin="[TOOL_CALLS] [ ",
        before_name='{ "name": "',
        before_arguments='", "arguments": ',
        after_arguments=" }",
        separator=", ",
        end=" ]",
        id_characters=9,
    ),
    # Llama 3.1, 3.2 and 3.3
    ToolFormat(
        "llama-3",
        marker='{"name":',
        before_name='{ "name": "',
        before_arguments='", "parameters": ',
        after_arguments=" }",
        at_start=True,
        introductions=("<|python_tag|>",),
        parallel=False,
    ),
    # Any other template that shows tools
    ToolFormat(
        "json",
        marker='{"name":',
        before_name='{ "name": "',
        before_arguments='", "arguments": ',
        after_arguments=" }",
        at_start=True,
        parallel=False,
    ),
)
GENERIC = TOOL_FORMATS[-1]
REASONING_MARKERS = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen 3, QwQ, SmolLM 3
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
)
"""Texts or special tokens at the (beginning, end) of the reasoning in an answer."""


@dataclass(frozen=True)
class TemplateTools:
    """Tool support of a chat template.

    format: how the checkpoint writes calls; None if the template ignores tools.
    writes_calls: the template writes the calls of assistant messages.
    writes_results: the template writes the content of `tool` messages.
    arguments_as_text: the template takes the arguments of a call as JSON text, not as an object.
    empty_content: the members to add to an assistant message that has calls and no text.
    results_as_parts: the template reads the content of `tool` messages as a list of parts, not as text.
    """

    format: ToolFormat | None = None
    writes_calls: bool = False
    writes_results: bool = False
    arguments_as_text: bool = False
    empty_content: Mapping[str, Any] = field(default_factory=dict)
    results_as_parts: bool = False


def without_space(text: str) -> str:
    return "".join(text.split())


def recognise(rendered: str, name: str, arguments: Mapping[str, Any]) -> ToolFormat | None:
    """Return the format in which a template has written a call; None if it is none of `TOOL_FORMATS`.

    rendered: text of the template. name, arguments: of the call that the conversation contained.
    """
    squeezed = without_space(rendered)
    body = without_space(json.dumps(arguments))
    for row in TOOL_FORMATS:
        call = f"{row.before_name}{name}{row.before_arguments}"
        if without_space(row.begin + call) + body in squeezed:
            return row
    return None


def by_marker(template: str) -> ToolFormat | None:
    """Return the first format whose marker and distinctive texts all occur in a template's source; None for no format.

    Used for templates that render no calls. Formats whose marker is ordinary JSON are not considered.
    """

    def texts(row: ToolFormat) -> list[str]:
        return [row.marker, *([] if row.before_arguments.startswith('"') else [row.before_arguments.strip()])]

    return next(
        (row for row in TOOL_FORMATS if not row.at_start and all(text in template for text in texts(row))), None
    )


def reasoning_markers(template: str) -> tuple[str, str] | None:
    """Return the texts before and after reasoning that a template's source names; None if it has no such texts.

    template: the source.
    """
    return next((pair for pair in REASONING_MARKERS if pair[0] in template or pair[1] in template), None)
