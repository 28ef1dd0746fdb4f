"""Fixtures: a client of the `openai` package, and the expected continuation of a story."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import transformers
from openai import OpenAI

from tests.clients.conftest import ClientServer
from tests.clients.models import DEMO

STORY = "Once upon a time"


@pytest.fixture(scope="session")
def client(server: ClientServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as made:
        yield made


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(DEMO / "story")


@cache
def told(count: int) -> str:
    """The text of the first `count` tokens that transformers generates after `STORY` with the demo story model."""
    from weights.demo.train.stories import continue_story

    return continue_story(STORY, count).removeprefix(STORY) if count else ""
