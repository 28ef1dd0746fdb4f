"""Simulate an agent: hold a conversation with tool calls over HTTP, as real agents do, and record token counts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.conftest import RunningServer

WORDS = ("The agent", "reads a file,", "edits", "three lines of it,", "runs all tests,", "and", "reports", "a change.")


def text(rng: random.Random, characters: int) -> str:
    """Random prose of about `characters` characters."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < characters:
        words.append(rng.choice(WORDS))
    return " ".join(words)


def tools(rng: random.Random, count: int, characters: int) -> list[dict[str, Any]]:
    """`count` function tools, each with a random description of about `characters` characters."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": text(rng, characters),
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "maxLength": 6, "description": "File to read."},
                        "limit": {"type": "integer"},
                    },
                    "required": ["path"],
                },
            },
        }
        for number in range(count)
    ]


@dataclass
class Agent:
    """One conversation. `play` sends it, and appends the answer and the results of its tool calls.

    seed: seed of the random texts. characters: length of the system prompt, and of all tool descriptions together.
    body: further fields of each request.
    """

    server: RunningServer
    model: str
    seed: int = 0
    characters: int = 1200
    body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tools = tools(self.rng, 8, self.characters // 8)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": text(self.rng, self.characters)},
            {"role": "user", "content": text(self.rng, 60)},
        ]

    def play(self, turns: int) -> Iterator[tuple[int, int]]:
        """Send the conversation `turns` times. Yields the number of prompt tokens, and how many of them were cached."""
        for number in range(turns):
            request = {"model": self.model, "messages": self.messages, "tools": self.tools, "temperature": 0}
            answer = self.server.post("/v1/chat/completions", json={"max_tokens": 32, **request, **self.body})
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            yield usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            (choice,) = answer.json()["choices"]
            self.messages += self._continued(choice["message"], choice["finish_reason"], number)

    def _continued(self, message: dict[str, Any], reason: str, number: int) -> list[dict[str, Any]]:
        """Messages to append: the answer as a client sends it back, and a result for each of its tool calls.

        An answer without a tool call gets one. Its arguments have unusual white space and an unusual order of keys,
        which no chat template would write.

        message, reason: the answer and its finish reason. number: index of the turn.
        """
        if reason != "tool_calls":
            arguments = '{"limit":3 ,"path":  "' + text(self.rng, 20) + '"}'
            call = {"id": f"call_{number:04}", "type": "function", "function": {"name": "tool_1"}}
            call["function"] |= {"arguments": arguments}
            message = {**message, "tool_calls": [call]}
        for call in message["tool_calls"]:
            json.loads(call["function"]["arguments"])
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text(self.rng, self.rng.randint(20, 400))}
            for call in message["tool_calls"]
        ]
        return [{key: value for key, value in message.items() if value is not None}, *results]
