"""Render chat messages to prompt text with a checkpoint's chat template.

Templates are Jinja programs that come with the checkpoint. They run in a separate process (`chat_process`) under
limits on time, memory and output length, so that a template can neither block nor read the server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from server.errors import NotReady
from server.system.line_process import LineProcess
from server.text.tokenizers.tokenizer_files import TokenizerFiles, read_json
from server.text.tokens.tokenizer import TokenizerError
from weights.resolve import file_in

MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_TEMPLATES = 64
"""Limit on the number of templates of a checkpoint. Published checkpoints have at most four."""
_PROCESSOR_FILE = "chat_template.json"
_PROCESS_FILE = Path(__file__).with_name("chat_process.py")
_MEMORY_BYTES = 512 << 20
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marker after the text of a last message that the model shall continue; transformers appends the same marker.

The space at its end shows whether the template keeps white space at the end of a message.
"""
_STOPPING = "chat templates are not rendered any more: the server is stopping"
_NOT_CONTINUED = "the last message has no text that can be continued"

Result = TypeVar("Result")


class ChatError(ValueError):
    """A template failed or rejected the messages. The message is one line and contains no message text."""


class ChatTooLong(ChatError):
    """The text that a template rendered has more characters than the limit."""


class ChatStopped(ChatError):
    """A template was stopped before its end, so it is unknown whether it accepts the messages."""


@dataclass(frozen=True)
class ContentForms:
    """The form that a chat template needs for the content of a message, by the role of the message.

    The content is a string or a list of parts. Roles that are in neither set need a string.

    parts: roles whose content must be a list of parts.
    lost: roles whose text the template leaves out, whether it is a string or a list of parts.
    """

    parts: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()


_TEXTS = ContentForms()


def as_parts(text: str) -> list[dict[str, str]]:
    """Return the content of a message as a list of one text part."""
    return [{"type": "text", "text": text}]


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of a checkpoint.

    by_name: template source by name; the usual names are `default` and `tool_use`.
    special_tokens: text of special tokens by template variable (`bos_token`, `eos_token`...).
    forms: the content forms that a template reads, by the template's source. Found by `server.text.chats.chat_forms`.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    forms: Mapping[str, ContentForms] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """Error message if a template leaves out the user's text; None if all templates print it."""
        for name, source in self.by_name.items():
            if "user" in self.forms_of(source).lost:
                return (
                    f'the chat template "{name}" leaves out what the user writes, as a text and as a list of parts; '
                    "correct the template, or remove it from the checkpoint"
                )
        return None

    def forms_of(self, source: str) -> ContentForms:
        """The content forms that a template reads, by its source. A template that was not probed gets strings."""
        return self.forms.get(source, _TEXTS)

    def in_forms(self, source: str, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return messages with string contents made lists of parts, for the roles in which a template needs lists.

        source: the template's source.
        """
        parts = self.forms_of(source).parts
        return [
            {**message, "content": as_parts(message["content"])}
            if message.get("role") in parts and isinstance(message.get("content"), str)
            else message
            for message in messages
        ]

    def choose(self, with_tools: bool = False) -> str:
        """Return the template's source for a request.

        It is the template `tool_use` for a request with tools, where the checkpoint has one, else `default`.
        Raises ChatError if the checkpoint has no template, or has no template named `default`.
        """
        if with_tools and "tool_use" in self.by_name:
            return self.by_name["tool_use"]
        if "default" in self.by_name:
            return self.by_name["default"]
        if self.by_name:
            names = ", ".join(sorted(self.by_name))
            raise ChatError(f"the checkpoint has several chat templates ({names}) but no default")
        raise ChatError("the checkpoint has no chat template")


def read_templates(directory: Path, files: TokenizerFiles) -> ChatTemplates:
    """Read `chat_template.jinja` and `chat_templates/*.jinja`, else `chat_template` of a JSON file.

    This is `chat_template.json`, which older processors of transformers wrote, else `tokenizer_config.json`.
    So the template of a processor comes before that of its tokenizer, as in transformers.
    Raises TokenizerError for a template that is not text or is too long and for too many templates, and ResolveError
    for a symbolic link that leaves the directory.
    """
    names = {"default": "chat_template.jinja"}
    listed = list(islice(directory.glob("chat_templates/*.jinja"), MAX_TEMPLATES + 1))
    _check_number(len(listed), "chat_templates")
    names |= {path.stem: f"chat_templates/{path.name}" for path in sorted(listed)}
    found: dict[str, str] = {}
    for name, file in names.items():
        path = file_in(directory, file)
        if path is not None:
            try:
                size = path.stat().st_size
                if size > 4 * MAX_TEMPLATE_CHARACTERS:
                    raise TokenizerError(f"{file} has {size:,} bytes; the limit is {4 * MAX_TEMPLATE_CHARACTERS:,}")
                found[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                raise TokenizerError(f"{file} is damaged: not UTF-8 text") from None
    if not found:
        found = _templates_of_json(read_json(directory, _PROCESSOR_FILE).get("chat_template"), _PROCESSOR_FILE)
    if not found:
        found = _templates_of_json(files.config.get("chat_template"), "tokenizer_config.json")
    longest = max(map(len, found.values()), default=0)
    if longest > MAX_TEMPLATE_CHARACTERS:
        raise TokenizerError(f"a chat template has {longest:,} characters, longer than {MAX_TEMPLATE_CHARACTERS:,}")
    return ChatTemplates(found, {f"{role}_token": token.content for role, token in files.roles.items()})


def _check_number(templates: int, file: str) -> None:
    if templates > MAX_TEMPLATES:
        raise TokenizerError(f"{file} has more than {MAX_TEMPLATES} chat templates")


def _templates_of_json(value: Any, file: str) -> dict[str, str]:
    """The templates by name in a value of `chat_template`. file: name of its file, for messages."""
    if value is None:
        return {}
    try:
        found = {"default": value} if isinstance(value, str) else {entry["name"]: entry["template"] for entry in value}
        _check_number(len(found), file)
    except (TypeError, KeyError):
        found = {"": None}
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise TokenizerError(f"{file}: chat_template is neither a string nor a list of named strings")
    return found


def chat_context(
    templates: ChatTemplates,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    null_content: bool = False,
    add_generation_prompt: bool = True,
    extra_variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the variables that a template reads, the same as in `apply_chat_template` of transformers.

    All values are JSON values.

    messages: chat messages; keys whose value is None are left out.
    tools, documents: JSON descriptions that the template prints; None if there are no tools or no documents.
    null_content: keep the key `content` where its value is None.
    add_generation_prompt: whether the template shall end with the beginning of an assistant message.
    extra_variables: further variables, for example the switch `enable_thinking` of some templates.
    """
    kept = ("content",) if null_content else ()
    stated = [
        {key: value for key, value in message.items() if value is not None or key in kept} for message in messages
    ]
    return {
        "messages": [_with_reasoning(message) for message in stated],
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        **templates.special_tokens,
        **(extra_variables or {}),
    }


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its reasoning under both keys that templates read, `thinking` and `reasoning_content`."""
    reasoning = next((message[key] for key in _REASONING_KEYS if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def with_continued(message: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Append `CONTINUED` to the last text of a message, so that the text's end can be found in the rendered prompt.

    Returns the changed copy of the message, and the text without the marker. Raises ChatError if there is no text.
    """
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + CONTINUED}, content
    parts = list(content) if isinstance(content, list) else []
    for index in reversed(range(len(parts))):
        if "text" in parts[index]:
            text = parts[index]["text"]
            parts[index] = {**parts[index], "text": text + CONTINUED}
            return {**message, "content": parts}, text
    raise ChatError(_NOT_CONTINUED)


def continued_text(rendered: str, text: str) -> str:
    """Return a rendered prompt up to the end of the text that `with_continued` has marked.

    text: the marked text. White space at its end stays only if the template keeps white space at the end of a text, as
        in `apply_chat_template` of transformers. Raises ChatError if the template has left the text out.
    """
    end = rendered.rfind(CONTINUED.strip())
    if end < 0 or text.strip() not in rendered:
        raise ChatError(_NOT_CONTINUED)
    return rendered[:end] if rendered[end:].startswith(CONTINUED) else rendered[:end].rstrip()


class ChatRenderer:
    """Renders chat templates in a separate process, one at a time. Safe to use from several threads.

    The process starts with the first template, and is replaced after it was killed for exceeding a limit. Callers
    run `render` in a thread for templates (`submit`), so that a slow template delays other chats but no tokenization.

    seconds: time limit to render one template.
    memory_bytes: address space limit of the process.
    """

    def __init__(self, seconds: float = 2.0, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._lock = threading.Lock()
        self._is_closed = False
        self._process = LineProcess(_PROCESS_FILE, [str(memory_bytes)])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="templates")

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Run a function that calls `render` in the thread for templates. Returns a future of its result."""
        return self._thread.submit(work)

    def render(
        self,
        source: str,
        context: Mapping[str, Any],
        max_characters: int,
        deadline: float | None = None,
        *,
        arguments_as_objects: bool = False,
    ) -> str:
        """Render a template to text.

        source: the template's source.
        context: the template's variables (`chat_context`).
        max_characters: limit on the length of the text.
        deadline: time of `time.monotonic()` at which rendering stops, if that is before the usual time limit.
        arguments_as_objects: parse the arguments of calls that are JSON strings into objects. The template still
            prints them as the client wrote them.
        Raises ChatTooLong for a text above the limit, ChatStopped for a template that exceeds the time or the memory
        and after `close`, ChatError for a template that rejects the messages or fails, and NotReady if the process
        does not reply.
        """
        request = {
            "source": source,
            "context": context,
            "max_characters": max_characters,
            "arguments_as_objects": arguments_as_objects,
        }
        with self._lock:
            if self._is_closed:
                raise ChatStopped(_STOPPING)
            left = self._seconds if deadline is None else min(self._seconds, max(deadline - time.monotonic(), 0.0))
            try:
                line = self._process.exchange(_dump(request) + b"\n", left)
            except TimeoutError as error:
                if self._is_closed:
                    raise ChatStopped(_STOPPING) from None
                raise NotReady(f"the process that renders chat templates {error}; try again", retry_after=1) from None
        if not line:
            raise ChatStopped(
                f"the chat template was stopped: it took more than {self._seconds:g} s or "
                f"more than {self._memory_bytes >> 20} MiB of memory"
            )
        reply = _load(line)
        if "too_long" in reply:
            raise ChatTooLong(f"the text of the chat template is longer than {max_characters:,} characters")
        if "failed" in reply:
            raise ChatError(f"the chat template failed: {reply['failed']}")
        if "rejected" in reply:
            # A reason that is not a literal of the template may repeat the user's messages, so it is not shown.
            reason = reply["rejected"] if reply["rejected"] in source else "the reason may quote them and is not shown"
            raise ChatError(f"the chat template does not accept these messages: {' '.join(reason.split())[:200]}")
        return reply["text"]

    def close(self) -> None:
        """Stop the process, even while it renders a template, and the thread for templates."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.kill()
        with self._lock:
            self._process.stop()


def _dump(request: dict[str, Any]) -> bytes:
    """Return a request as one line of JSON.

    orjson writes it, unless the request has large integers or lone surrogates, which orjson refuses. The standard
    library then writes it, and holds Python's global lock ten times as long.
    """
    try:
        return orjson.dumps(request)
    except TypeError:
        return json.dumps(request).encode()


def _load(line: bytes) -> dict[str, str]:
    """Parse one line of JSON. The standard library reads lines with lone surrogates, which orjson refuses."""
    try:
        reply: dict[str, str] = orjson.loads(line)
    except orjson.JSONDecodeError:
        reply = json.loads(line)
    return reply
