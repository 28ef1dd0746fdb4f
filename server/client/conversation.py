"""The messages of a chat, and the answers to them, which `/v1/chat/completions` streams."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from server.client.connection import Connection, error_message
from server.client.errors import AnswerCut, RequestFailed
from server.system.terminal import styled


@dataclass
class ChatAnswer:
    """An answer while it arrives.

    parts: the parts of the text so far. finish_reason: reason for the end of the answer; None before the end.
    tokens: number of tokens as the server counts them; None without a count.
    started: time at which the request was sent. first: time of the first part; None before. ended: time of the end.
        All are seconds of `time.monotonic()`.
    """

    parts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: int | None = None
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    ended: float = 0.0

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Conversation:
    """The messages of a chat so far. The system message, if there is one, is the first.

    system: the system message; None for a conversation without system message.
    """

    def __init__(self, system: str | None) -> None:
        self.messages: list[dict[str, str]] = []
        self.begin(system)

    def begin(self, system: str | None) -> None:
        """Forget all messages, and set the system message. None or empty: no system message."""
        self.messages = [{"role": "system", "content": system}] if system else []

    @property
    def system(self) -> str | None:
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else None

    def take_back(self) -> str | None:
        """Remove the user's last message and the answer to it. Returns the message; None if there is none."""
        while self.messages and self.messages[-1]["role"] != "system":
            message = self.messages.pop()
            if message["role"] == "user":
                return message["content"]
        return None

    async def answer(self, connection: Connection, text: str, options: dict[str, Any], answer: ChatAnswer) -> None:
        """Send a message of the user, and write the answer to standard output as it arrives.

        If the request fails before any text arrives, the conversation does not change. If the answer is stopped, the
        part that was written is kept.

        options: further fields of the request. answer: filled with the answer.
        Raises RequestFailed for an error, and AnswerCut if a time limit has ended the answer.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            await _write_answer(connection, {"messages": self.messages, "stream": True, **options}, answer)
        finally:
            answer.ended = time.monotonic()
            if answer.parts:
                self.messages.append({"role": "assistant", "content": answer.text})
            else:
                self.messages.pop()


async def _write_answer(connection: Connection, body: dict[str, Any], answer: ChatAnswer) -> None:
    """Send a request, and write the answer to standard output as it arrives. answer: filled with the answer.

    Raises AnswerCut if a time limit has ended the answer, and RequestFailed for another error.
    """
    complete = thinking = False
    try:
        async for event in connection.events("/v1/chat/completions", body):
            if event.data == "[DONE]":
                complete = True
                break
            chunk = json.loads(event.data)
            if "error" in chunk:
                raise _failure(chunk["error"], answer)
            answer.tokens = (chunk.get("usage") or {}).get("completion_tokens", answer.tokens)
            choice = chunk["choices"][0] if chunk.get("choices") else {"delta": {}}
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            delta = choice["delta"]
            if answer.first is None and (delta.get("content") or delta.get("reasoning_content")):
                answer.first = time.monotonic()
            # Reasoning is shown to people only: a pipe gets the answer.
            if sys.stdout.isatty() and (reasoning := delta.get("reasoning_content")):
                print(styled(reasoning, "dim", sys.stdout), end="", flush=True)
                thinking = True
            if content := delta.get("content"):
                if thinking:
                    print(flush=True)
                    thinking = False
                answer.parts.append(content)
                print(content, end="", flush=True)
    finally:
        if thinking or (answer.parts and not answer.parts[-1].endswith("\n")):
            print(flush=True)
    if not complete:
        raise RequestFailed("the answer broke off", 200)


def _failure(error: Any, answer: ChatAnswer) -> RequestFailed:
    message = error_message(error) or "the server failed"
    is_deadline = isinstance(error, dict) and error.get("code") == "timeout"
    if is_deadline and answer.parts:
        return AnswerCut(f"the answer is incomplete: {message}")
    return RequestFailed(message, 200)
