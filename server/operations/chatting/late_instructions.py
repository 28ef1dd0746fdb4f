"""Handle system messages after the first message, for chat templates that reject them or leave them out.

Agents send instructions in the middle of a conversation. Many templates read system messages only at the beginning. For
such a template, a later system message becomes a user message at the same position.
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
    """Whether a template reads all system messages of a conversation at their positions. source: text of the template.

    The first request with a late system message renders a sample conversation, and the result is kept. Raises ChatError
    if the template is stopped at a limit, and the errors of `Pool.run`.
    """
    if all(message.get("role") != "system" for message in messages[1:]):
        return True
    found = runtime.late_instructions
    if source not in found:
        found[source] = await runtime.in_template_thread(lambda: _reads(runtime, call, model, source), call)
    return found[source]


def _reads(runtime: Runtime, call: Call, model: ServedModel, source: str) -> bool:
    """Whether a template writes a system message that follows a user message. Renders a sample conversation."""
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
    """Convert messages so that they have one system message at most, at the beginning.

    System messages at the beginning are joined. A later system message becomes a user message, and is joined to
    neighbouring user messages, because many templates require that roles alternate.
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
    """Join two message contents, each a text or a list of parts, to one content."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{_BETWEEN}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list) else [{"type": "text", "text": content or ""}]
