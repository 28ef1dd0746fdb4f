"""A mix of requests to the demo models: every operation, several dialects, with and without streaming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PROMPTS = ("Once upon a time", "The old fox", "A little girl", "The king")
GREEDY = {"temperature": 0}
"""Field that turns off sampling, for dialects that sample by default, because answers are compared."""
NUMBERS = {"type": "regex", "pattern": "[0-9]{3,8}"}


@dataclass(frozen=True)
class Request:
    """A POST request."""

    path: str
    body: dict[str, Any]


def request(i: int, new_tokens: int = 8) -> Request:
    """The request with index `i` of the mix. Prompts and seeds differ, so that a cached answer would be wrong."""
    text = f"{PROMPTS[i % 4]} {i}"
    chat = [{"role": "user", "content": text}]
    chosen = [
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens}),
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens, "temperature": 0.9, "seed": i}),
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens, "stream": True}),
        ("/translate", {"inputs": [f"The dog sleeps {i}."], "source_lang": "en", "target_lang": "fr"}),
        ("/embed", {"inputs": [text, "The dog chased the cat."]}),
        ("/classify", {"inputs": text}),
        ("/v1/completions", {"model": "story", "prompt": text, "max_tokens": new_tokens, "stream": True, **GREEDY}),
        ("/tokenize", {"model": "story", "inputs": text}),
        ("/v1/embeddings", {"model": "sentence-encoder", "input": text}),
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens, "num_beams": 3}),
        ("/generate", {"prompt": text, "temperature": "hot"}),
        ("/v1/chat/completions", {"model": "story", "messages": chat, "max_tokens": new_tokens, **GREEDY}),
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens, "n": 3, "temperature": 1.0, "stream": True}),
        ("/generate", {"prompt": text, "max_new_tokens": new_tokens, "response_format": NUMBERS}),
        (f"/nowhere/{i}", {"prompt": text}),
    ][i % 15]
    return Request(*chosen)


KINDS = 15
"""Number of kinds of requests in the mix."""
