"""litellm with its OpenAI-compatible providers: chat, stream, text completion, embeddings, responses and errors."""

from __future__ import annotations

import asyncio
import os

import litellm

SERVER = {"api_base": os.environ["TRIPTYCH_URL"] + "/v1", "api_key": os.environ["TRIPTYCH_API_KEY"]}
GREEDY = {"max_tokens": 24, "temperature": 0}
MESSAGES = [{"role": "system", "content": "Tell tales."}, {"role": "user", "content": "Once upon a time"}]
litellm.num_retries = 0

answer = litellm.completion("openai/story", MESSAGES, **GREEDY, **SERVER)
text = answer.choices[0].message.content
assert text and answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 24

stream = litellm.completion(
    "openai/story", MESSAGES, **GREEDY, stream=True, stream_options={"include_usage": True}, **SERVER
)
chunks = list(stream)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
assert litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.content == text
assert asyncio.run(litellm.acompletion("openai/story", MESSAGES, **GREEDY, **SERVER)).choices == answer.choices

written = litellm.text_completion(model="text-completion-openai/story", prompt="Once upon a time", **GREEDY, **SERVER)
assert written.choices[0].text == text

vector = litellm.embedding("openai/sentence-encoder", ["The cat slept."], **SERVER).data[0]["embedding"]
assert len(vector) > 8

response = litellm.responses(
    model="openai/story",
    input="Once upon a time",
    instructions="Tell tales.",
    max_output_tokens=24,
    temperature=0,
    **SERVER,
)
assert response.output[0].content[0].text == text

try:
    litellm.completion("openai/no-such-model", MESSAGES, **SERVER)
except litellm.NotFoundError as error:
    assert "no model has this name" in str(error)
else:
    raise AssertionError("an unknown model has to be an error")
