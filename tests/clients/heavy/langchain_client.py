"""langchain-openai: chat, stream, completions, embeddings and structured output."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

SERVER = {"base_url": os.environ["TRIPTYCH_URL"] + "/v1", "api_key": os.environ["TRIPTYCH_API_KEY"]}
STORY = "Once upon a time"


class Hero(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Literal["Rose", "Otto", "the fox"]


chat = ChatOpenAI(model="story", max_tokens=24, temperature=0, **SERVER)
answer = chat.invoke(STORY)
assert answer.content and answer.usage_metadata["output_tokens"] == 24
assert answer.response_metadata["finish_reason"] == "length"

chunks = list(chat.stream([SystemMessage("Tell tales."), HumanMessage(STORY)], stream_usage=True))
assert "".join(chunk.content for chunk in chunks) == answer.content
assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] == [24]
assert asyncio.run(chat.ainvoke(STORY)).content == answer.content
assert chat.invoke([HumanMessage(STORY), AIMessage(answer.content), HumanMessage("One day")]).content

structured = ChatOpenAI(model="story", max_tokens=64, temperature=0, **SERVER)
by_schema = structured.with_structured_output(Hero, method="json_schema", strict=True)
assert isinstance(by_schema.invoke(STORY), Hero)

by_responses = ChatOpenAI(model="story", max_tokens=24, temperature=0, use_responses_api=True, **SERVER)
assert by_responses.invoke(STORY).text == answer.content

completion = OpenAI(model="story", max_tokens=24, temperature=0, **SERVER)
assert completion.invoke(STORY) == answer.content
assert "".join(completion.stream(STORY)) == answer.content
assert completion.batch([STORY, "The old fox"])[0] == answer.content

# With `check_embedding_ctx_length`, the package would send token ids of OpenAI's tokenizer instead of texts.
embeddings = OpenAIEmbeddings(model="sentence-encoder", check_embedding_ctx_length=False, **SERVER)
one, other = embeddings.embed_documents(["The cat slept.", "The king left."])
assert len(one) == len(other) == len(embeddings.embed_query("The cat slept."))
assert sum(a * b for a, b in zip(one, embeddings.embed_query("The cat slept."), strict=True)) > 0.999
