"""POST /v1/completions with the `openai` package: how likely a model finds the tokens of a text."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
)
model = os.environ.get("TRIPTYCH_MODEL", "story")

answer = client.completions.create(model=model, prompt="The old fox slept.", max_tokens=0, echo=True, logprobs=1)
logprobs = answer.choices[0].logprobs
for token, logprob in zip(logprobs.tokens, logprobs.token_logprobs, strict=True):
    print(f"{token!r:>10}", "" if logprob is None else f"{logprob:.2f}")
