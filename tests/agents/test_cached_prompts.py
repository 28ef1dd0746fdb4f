"""During ten tool calls of a coding agent, the prefix cache has nearly all tokens of the previous prompt each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.agents.conftest import Taken
from tests.agents.programs import ANSWER, LONG_LOOP, LONG_LOOP_CALLS, PROGRAMS, Program
from tests.agents.recorder import Exchange
from tests.agents.running import is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="make test-agents creates the environments")
AGENTS = [program for program in PROGRAMS if program.id in ("claude-code", "codex", "opencode", "qwen-code")]
MIN_CACHED_SHARE = 0.95


@pytest.mark.parametrize("program", AGENTS, ids=lambda program: program.id)
def test_each_prompt_finds_the_one_before_it_in_the_cache(
    program: Program, take: Callable[[Program, str, str], Taken]
) -> None:
    taken = take(program, LONG_LOOP, "streamed")
    assert taken.finished.code == 0 and ANSWER in taken.finished.output, taken.finished.output[-4000:]
    usages = [usage for exchange in taken.exchanges if _is_of_the_loop(exchange) for usage in _usage(exchange)]
    print(program.id, usages)
    assert len(usages) == LONG_LOOP_CALLS + 1
    shares = [cached / before for (before, _), (_, cached) in pairwise(usages)]
    assert min(shares) >= MIN_CACHED_SHARE, shares


def _is_of_the_loop(exchange: Exchange) -> bool:
    """Whether a request belongs to the tool loop: it has tools and the text of the task.

    Agents also send other requests, for example to get a title for the conversation.
    """
    has_tools = isinstance(exchange.body, dict) and bool(exchange.body.get("tools"))
    return has_tools and f"({LONG_LOOP}, streamed)" in str(exchange.body)


def _usage(exchange: Exchange) -> Iterator[tuple[int, int]]:
    """Yield the number of prompt tokens, and how many of them were cached, from a streamed answer of any dialect."""
    data = [line.removeprefix("data:") for line in exchange.answer.splitlines() if line.startswith("data:")]
    for event in (json.loads(line) for line in data if line.strip() != "[DONE]"):
        if usage := _usage_in(event):
            yield usage
            return


def _usage_in(event: dict[str, Any]) -> tuple[int, int] | None:
    if event.get("type") == "message_start":
        usage = event["message"]["usage"]
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    if event.get("type") == "response.completed":
        usage = event["response"]["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    if event.get("object") == "chat.completion.chunk" and event.get("usage"):
        return event["usage"]["prompt_tokens"], event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return None
