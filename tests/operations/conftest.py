"""Fixtures for tests of operations: the application without a worker, and chats with an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.conftest import bench, http
from tests.operations.chat_bench import ChatBench, write_checkpoint
from tests.text.chat_templates import CHATML, FRONT_ONLY, FRONT_OR_NOTHING
from tests.text.tool_templates import BY_FORMAT, OPENS_THINKING, QWEN_3, SPECIAL_TOKENS

__all__ = ["bench", "http", "llm"]


@pytest.fixture
async def llm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ChatBench]:
    """A `ChatBench` with the chat template and the special tokens that the test names; by default those of `hermes`."""
    name = getattr(request, "param", "hermes")
    templates = {**BY_FORMAT, "qwen": QWEN_3, "opens-thinking": OPENS_THINKING, "none": CHATML}
    templates |= {"front-only": FRONT_ONLY, "front-or-nothing": FRONT_OR_NOTHING}
    special = SPECIAL_TOKENS.get(name, [])
    added = ["<tool_call>", "</tool_call>"] if name == "qwen" else []
    made = ChatBench(write_checkpoint(tmp_path / "llm", templates[name], special, added))
    yield made
    made.close()
