"""Find out whether a chat template reads the content of messages as text or as a list of parts.

Templates of models for images often read only lists of parts, and leave out a text without an error. Each template is
therefore rendered with sample conversations when its checkpoint is loaded. Whether the sample text is in the result
shows the form that each role needs. Templates run in the process of `server.text.chats.chat_process`.
See docs/decisions/0113-contents-of-messages.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from server.errors import NotReady
from server.text.chats.chat import (
    ChatError,
    ChatRenderer,
    ChatStopped,
    ChatTemplates,
    ContentForms,
    as_parts,
    chat_context,
)

PROBE_SECONDS = 2.0
"""Time limit for probing all templates of a checkpoint. Templates that are not probed in this time get strings."""
_MAX_CHARACTERS = 1 << 20
_NAMES = ("default", "tool_use")
"""Names of the templates that requests use."""
_SAMPLE = "zq7"
"""Text of the sample message. It is so short that a template that shortens texts still prints it."""
_OTHER = "x"
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": "sample_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}

Messages = Sequence[Mapping[str, Any]]
Reads = Callable[[Messages], bool | None]
"""Function that renders a conversation with the sample text.

Returns whether the rendered text has the sample; None if the template rejects the conversation or fails.
"""


def with_forms(templates: ChatTemplates, renderer: ChatRenderer, seconds: float = PROBE_SECONDS) -> ChatTemplates:
    """Return the templates with `ChatTemplates.forms` filled in, by rendering sample conversations with each template.

    The templates that are not probed after `seconds` in total get no entry.
    """
    deadline = time.monotonic() + seconds
    forms: dict[str, ContentForms] = {}
    for name in _NAMES:
        source = templates.by_name.get(name)
        if source is None:
            continue
        tools = [_TOOL] if name == "tool_use" else None

        def reads(messages: Messages, source: str = source, tools: Messages | None = tools) -> bool | None:
            context = chat_context(templates, messages, tools=tools, null_content=True)
            try:
                return _is_read(renderer.render(source, context, _MAX_CHARACTERS, deadline))
            except ChatStopped:
                raise
            except ChatError:
                return None

        try:
            forms[source] = content_forms(reads)
        except (ChatStopped, NotReady):
            break
    return replace(templates, forms=forms)


def content_forms(reads: Reads) -> ContentForms:
    """Return the content forms that one template reads.

    reads: tries one conversation with the template. Its errors are passed on.
    A role for which the template fails with a string and with a list of parts gets strings, so that requests get the
    template's error.
    """
    parts: set[str] = set()
    lost: set[str] = set()
    for role in ("user", "system", "assistant"):
        reads_text = reads(_conversation(role, parts))
        if reads_text:
            continue
        if reads(_conversation(role, parts | {role})):
            parts.add(role)
        elif reads_text is False:
            lost.add(role)
    return ContentForms(frozenset(parts), frozenset(lost))


def _is_read(rendered: str) -> bool:
    """Whether a rendered text has the sample as text.

    False also for a template that printed the whole content part as JSON or Python code.
    """
    text = "".join(rendered.casefold().split())
    return _SAMPLE in text and f"'text':'{_SAMPLE}'" not in text and f'"text":"{_SAMPLE}"' not in text


def _conversation(role: str, parts: set[str]) -> Messages:
    """Build a short conversation in which the message of one role has the sample text.

    parts: roles whose contents are lists of parts.
    """
    asked = ("user", _OTHER)
    turns = {
        "user": [("user", _SAMPLE)],
        "system": [("system", _SAMPLE), asked],
        "assistant": [asked, ("assistant", _SAMPLE), asked],
    }
    return [{"role": speaker, "content": as_parts(text) if speaker in parts else text} for speaker, text in turns[role]]
