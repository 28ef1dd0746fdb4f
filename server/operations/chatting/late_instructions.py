"""System messages after the first message, for chat templates that reject them or leave them out.

Agents send instructions within a conversation. Many templates read a system message only at the front; for those, a
later one becomes text of the user at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.chats.chat import ChatError, ChatStopped, chat_context

_SAMPLE = "sample_instruction"
_CONVERSATION: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "A sample question."},
    {"role": "system", "content": _SAMPLE},
)
_BETWEEN = "\n\n"


async def reads_late_instructions(
    runtime: Runtime, call: Call, model: ServedModel, messages: Sequence[Mapping[str, Any]], source: str
) -> bool:
    """Whether a template reads all system messages of a conversation where they stand. source: the template.

    The first request that needs it renders a sample conversation. Raises ChatError for a slow template, and the errors
    of `Pool.run`.
    """
    if all(message.get("role") != "system" for message in messages[1:]):
        return True
    found = runtime.late_instructions
    if source not in found:
        found[source] = await runtime.in_template_thread(lambda: _reads(runtime, call, model, source), call)
    return found[source]


def _reads(runtime: Runtime, call: Call, model: ServedModel, source: str) -> bool:
    """Whether a template writes a system message that follows one of the user."""
    templates = model.text.chat_templates
    context = chat_context(templates, templates.in_forms(source, _CONVERSATION))
    try:
        return _SAMPLE in runtime.chat_renderer.render(
            source, context, runtime.max_text_characters, call.limits.next_deadline
        )
    except ChatStopped:
        raise
    except ChatError:
        return False


def with_instructions_at_front(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with one system message at most, at the front.

    System messages at the front become one. A later one becomes text of the user, and is joined to the messages of the
    user beside it, because many templates demand that roles alternate.
    """
    made: list[Mapping[str, Any]] = []
    was_instruction = False
    for message in messages:
        is_instruction = message.get("role") == "system"
        is_late = is_instruction and any(earlier.get("role") != "system" for earlier in made)
        placed = {**message, "role": "user"} if is_late else message
        joins = is_instruction or was_instruction
        if made and joins and placed.get("role") == made[-1].get("role") in ("system", "user"):
            made[-1] = {**made[-1], "content": _joined(made[-1].get("content"), placed.get("content"))}
        else:
            made.append(placed)
        was_instruction = is_instruction
    return made


def _joined(first: Any, second: Any) -> Any:
    """Two contents, each a text or a list of parts, as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{_BETWEEN}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content or ""}]
