"""An agent for tests: it plays a conversation of tool turns over HTTP, as programs do, and keeps the token counts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.conftest import RunningServer

WORDS = ("The agent", "reads a file,", "edits", "three lines of it,", "runs all tests,", "and", "reports", "a change.")


def text(rng: random.Random, characters: int) -> str:
    """Prose of about this length."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < characters:
        words.append(rng.choice(WORDS))
    return " ".join(words)


def tools(rng: random.Random, count: int, characters: int) -> list[dict[str, Any]]:
    """Functions with descriptions of about `characters` characters each."""
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
    """One conversation. `play` sends it, and appends the answer and the results of its calls.

    seed: of the texts. characters: of the system prompt; the tools have as many together.
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
        """Play turns. Yields the number of prompt tokens of each, and how many of them were cached."""
        for number in range(turns):
            request = {"model": self.model, "messages": self.messages, "tools": self.tools, "temperature": 0}
            answer = self.server.post("/v1/chat/completions", json={"max_tokens": 32, **request, **self.body})
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            yield usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            (choice,) = answer.json()["choices"]
            self.messages += self._continued(choice["message"], choice["finish_reason"], number)

    def _continued(self, message: dict[str, Any], reason: str, number: int) -> list[dict[str, Any]]:
        """The answer as a client sends it back, and a result for each of its calls. An answer without a complete call
        gets one, with white space and an order of keys that no template writes.
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
