"""From chat messages to the text a model was trained on: a checkpoint's templates, and their rendering.

Templates are Jinja programs that come with the checkpoint. They run in a process of their own (`chat_process`) and are
cut off in time, memory and length, so that none can hold up or reach into the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.text.tokenizer import TokenizerError
from server.text.tokenizer_files import TokenizerFiles
from weights.resolve import file_in

MAX_TEMPLATE_CHARACTERS = 1 << 20
_START_SECONDS = 30.0
_MEMORY_BYTES = 512 << 20
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT", "TZ", "LANG", "LC_ALL")
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatError(ValueError):
    """Messages that a template does not take, or a template that fails. One line, without the messages."""


@dataclass(frozen=True)
class ChatTemplates:
    """A checkpoint's templates by name, and its special tokens as templates know them (`bos_token`...)."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def choose(self, with_tools: bool = False) -> str:
        """The template for a request; with tools the one named `tool_use`, if there is one.

        Raises ChatError where the checkpoint has no template, or several without a default.
        """
        if with_tools and "tool_use" in self.by_name:
            return self.by_name["tool_use"]
        if "default" in self.by_name:
            return self.by_name["default"]
        if self.by_name:
            raise ChatError(
                f"the checkpoint has several chat templates ({', '.join(sorted(self.by_name))}), no default"
            )
        raise ChatError("the checkpoint has no chat template")


def read_templates(directory: Path, files: TokenizerFiles) -> ChatTemplates:
    """`chat_template.jinja` and `chat_templates/*.jinja`, else `chat_template` of `tokenizer_config.json`.

    Raises TokenizerError for templates that are not text, or too long, and ResolveError for links out of the directory.
    """
    names = {"default": "chat_template.jinja"}
    names |= {path.stem: f"chat_templates/{path.name}" for path in sorted(directory.glob("chat_templates/*.jinja"))}
    found: dict[str, str] = {}
    for name, file in names.items():
        path = file_in(directory, file)
        if path is not None:
            try:
                found[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                raise TokenizerError(f"{file} is damaged: not text") from None
    if not found:
        found = _stated(files.config.get("chat_template"))
    if any(len(template) > MAX_TEMPLATE_CHARACTERS for template in found.values()):
        raise TokenizerError(f"a chat template is longer than {MAX_TEMPLATE_CHARACTERS} characters")
    return ChatTemplates(found, {f"{role}_token": token.content for role, token in files.roles.items()})


def _stated(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    try:
        found = {"default": value} if isinstance(value, str) else {one["name"]: one["template"] for one in value}
    except (TypeError, KeyError):
        found = {"": None}
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise TokenizerError("tokenizer_config.json: chat_template is neither a text nor a list of named texts")
    return found


def chat_context(
    templates: ChatTemplates,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    further: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a template is given, as `apply_chat_template` of transformers gives it: JSON values only.

    Keys of a message whose value is None are left out. further: variables by other names, some templates' switches.
    """
    said = [{key: value for key, value in message.items() if value is not None} for message in messages]
    return {
        "messages": [_with_reasoning(message) for message in said],
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        **templates.special_tokens,
        **(further or {}),
    }


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning under the names that templates look for, whichever the client used."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


class ChatRenderer:
    """Renders templates in a process that is started when first needed, and again after each that was cut off.

    seconds: most time for one text. Safe to use from several threads: one text at a time.
    """

    def __init__(self, seconds: float = 2.0, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, source: str, context: Mapping[str, Any], max_characters: int) -> str:
        """The text of a template. Raises ChatError for one that refuses, fails, or exceeds a limit."""
        asked = json.dumps({"source": source, "context": context, "most": max_characters}).encode() + b"\n"
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            line = self._ask(asked, self._seconds)
        if not line:
            raise ChatError(f"the chat template was ended: more than {self._seconds:g} s, or too much memory")
        answer: dict[str, str] = json.loads(line)
        if "failed" in answer:
            raise ChatError(f"the chat template failed: {answer['failed']}")
        if "refused" in answer:
            # A message made of the request's own words stays where it is.
            reason = answer["refused"] if answer["refused"] in source else "no reason that may be repeated"
            raise ChatError(f"the chat template does not take these messages: {' '.join(reason.split())[:200]}")
        return answer["text"]

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._stop()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.text.chat_process", str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
        )
        if not self._ask(b"", _START_SECONDS):
            raise ChatError("the process for chat templates does not start")

    def _ask(self, line: bytes, seconds: float) -> bytes:
        """The answer to a line; empty, and no process any more, when none came in time."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        finally:
            alarm.cancel()
        if not answer.endswith(b"\n"):
            self._stop()
            return b""
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
