"""The `openai` package against a running server: completions, chat, structured output, embeddings, and models."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import httpx
import numpy as np
import openai
import pytest
import transformers
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.conftest import ClientServer
from tests.clients.models import DEMO
from tests.clients.openai_story import STORY, client, tokenizer, told

__all__ = ["client", "tokenizer"]


class TestCompletions:
    def test_a_prompt(self, client: OpenAI) -> None:
        answer = client.completions.create(model="story", temperature=0, prompt=STORY, max_tokens=20)
        assert answer.id.startswith("cmpl-") and answer.object == "text_completion" and answer.model == "story"
        (choice,) = answer.choices
        assert choice.text == told(20) and choice.finish_reason == "length" and choice.logprobs is None
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 20
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20

    def test_sixteen_tokens_by_default(self, client: OpenAI) -> None:
        answer = client.completions.create(model="story", temperature=0, prompt=STORY)
        assert answer.usage is not None and answer.usage.completion_tokens == 16

    def test_prompts_in_all_forms(self, client: OpenAI, tokenizer) -> None:
        ids = tokenizer(STORY)["input_ids"]
        expected = told(8)
        for prompt, count in ((STORY, 1), ([STORY, STORY], 2), (ids, 1), ([ids, ids, ids], 3)):
            choices = client.completions.create(model="story", temperature=0, prompt=prompt, max_tokens=8).choices
            assert [(choice.index, choice.text) for choice in choices] == [(i, expected) for i in range(count)]

    def test_several_answers(self, client: OpenAI) -> None:
        options = {"model": "story", "prompt": STORY, "max_tokens": 12, "temperature": 1.0, "seed": 3}
        two = client.completions.create(**options, n=2).choices
        best = client.completions.create(**options, n=1, best_of=8, logprobs=0).choices
        eight = client.completions.create(**options, n=8, logprobs=0).choices
        assert [choice.index for choice in two] == [0, 1]
        assert two[0].text != two[1].text
        means = [np.mean(choice.logprobs.token_logprobs) for choice in eight]
        assert [choice.text for choice in best] == [eight[int(np.argmax(means))].text]

    def test_stop(self, client: OpenAI) -> None:
        answer = client.completions.create(
            model="story", temperature=0, prompt=STORY, max_tokens=64, stop=[" who", "."]
        )
        assert answer.choices[0].text == told(64).partition(" who")[0]
        assert answer.choices[0].finish_reason == "stop"

    def test_logprobs(self, client: OpenAI) -> None:
        answer = client.completions.create(model="story", temperature=0, prompt=STORY, max_tokens=6, logprobs=3)
        (choice,) = answer.choices
        logprobs = choice.logprobs
        assert "".join(logprobs.tokens) == choice.text
        assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:i])) for i in range(6)]
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            assert len(top) == 3
            assert max(top, key=top.get) == token and top[token] == logprob

    def test_echo_with_logprobs_scores_the_prompt(self, client: OpenAI, tokenizer) -> None:
        """A request as from lm-eval (token ids, echo) gets the log-probabilities of transformers."""
        import torch

        ids = tokenizer(STORY)["input_ids"]
        model = transformers.LlamaForCausalLM.from_pretrained(DEMO / "story")
        with torch.inference_mode():
            scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [float(scores[i, token]) for i, token in enumerate(ids[1:])]
        for max_tokens in (0, 1):
            (choice,) = client.completions.create(
                model="story", temperature=0, prompt=[ids], max_tokens=max_tokens, logprobs=1, echo=True
            ).choices
            logprobs = choice.logprobs
            assert choice.text == STORY + told(max_tokens) and choice.finish_reason == "length"
            assert len(logprobs.tokens) == len(ids) + max_tokens
            assert logprobs.tokens[0] == "<s>" and "".join(logprobs.tokens[1:]) == choice.text
            assert logprobs.text_offset[:2] == [0, 0] and logprobs.text_offset[2] == len(logprobs.tokens[1])
            assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
            assert logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)
            greedy = [token in top for token, top in zip(logprobs.tokens[1:], logprobs.top_logprobs[1:], strict=True)]
            assert all(greedy)

    def test_no_new_token(self, client: OpenAI) -> None:
        answer = client.completions.create(model="story", temperature=0, prompt=STORY, max_tokens=0, echo=True)
        assert answer.choices[0].text == STORY and answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.completion_tokens == 0
        streamed = client.completions.create(
            model="story", temperature=0, prompt=STORY, max_tokens=0, echo=True, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in streamed) == STORY

    def test_stream(self, client: OpenAI) -> None:
        chunks = list(
            client.completions.create(
                model="story",
                temperature=0,
                prompt=[STORY, "The old fox"],
                max_tokens=12,
                logprobs=1,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        *chunks, last = chunks
        assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 24
        assert len({chunk.id for chunk in (*chunks, last)}) == 1 and {chunk.model for chunk in chunks} == {"story"}
        assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
        for index in (0, 1):
            mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
            assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["length"]
            tokens = [token for choice in mine if choice.logprobs for token in choice.logprobs.tokens]
            offsets = [place for choice in mine if choice.logprobs for place in choice.logprobs.text_offset]
            assert "".join(choice.text for choice in mine) == "".join(tokens)
            assert offsets == [sum(map(len, tokens[:i])) for i in range(12)]

    def test_beam_search_as_an_extension(self, client: OpenAI) -> None:
        beams = {"num_beams": 4, "num_return_sequences": 2}
        answer = client.completions.create(model="story", prompt=STORY, max_tokens=8, extra_body=beams)
        assert len({choice.text for choice in answer.choices}) == 2

    def test_a_translator(self, client: OpenAI) -> None:
        answer = client.completions.create(model="translator-en-fr", prompt="I am a student.", max_tokens=32)
        assert answer.choices[0].text == "Je suis un étudiant."


class TestChat:
    def test_the_storyteller_continues_the_tale(self, client: OpenAI) -> None:
        messages = [{"role": "user", "content": STORY}]
        answer = client.chat.completions.create(model="story", temperature=0, messages=messages, max_tokens=20)
        assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == "story"
        (choice,) = answer.choices
        assert choice.message.role == "assistant" and choice.message.content == told(20)
        assert choice.finish_reason == "length" and choice.message.tool_calls is None
        assert answer.usage is not None and answer.usage.completion_tokens == 20

    def test_without_a_limit_the_answer_ends_by_itself(self, client: OpenAI) -> None:
        answer = client.chat.completions.create(
            model="story", temperature=0, messages=[{"role": "user", "content": STORY}]
        )
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content == told(400)

    def test_all_roles_and_parts(self, client: OpenAI, tokenizer) -> None:
        """The server renders the messages to a prompt with the same number of tokens as transformers."""
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "blue"},
            {"role": "assistant", "content": "It is blue.", "refusal": None},
            {"role": "user", "name": "Ann", "content": "And now?"},
        ]
        answer = client.chat.completions.create(model="caller", messages=messages, max_tokens=1)
        messages[0]["role"], messages[1]["content"] = "system", "Once\nupon"
        messages[2]["tool_calls"][0]["function"]["arguments"] = {"at": "sea"}
        from tests.clients.models import HERMES_TEMPLATE

        ids = tokenizer.apply_chat_template(
            messages, chat_template=HERMES_TEMPLATE, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)

    def test_stream_with_usage(self, client: OpenAI) -> None:
        messages = [{"role": "user", "content": STORY}]
        with client.chat.completions.create(
            model="story",
            temperature=0,
            messages=messages,
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            first, *chunks, last = stream
        assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
        assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 16
        assert all(chunk.object == "chat.completion.chunk" and chunk.id == first.id for chunk in (*chunks, last))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told(16)
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
        assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])

    def test_the_stream_helper_of_the_package(self, client: OpenAI) -> None:
        messages = [{"role": "user", "content": STORY}]
        with client.chat.completions.stream(model="story", temperature=0, messages=messages) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            answer = stream.get_final_completion()
        assert answer.choices[0].message.content == text == told(400)

    def test_several_answers_with_logprobs(self, client: OpenAI) -> None:
        options = {
            "model": "story",
            "messages": [{"role": "user", "content": STORY}],
            "max_completion_tokens": 8,
            "temperature": 0.9,
            "seed": 5,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
        }
        answer = client.chat.completions.create(**options)
        for choice in answer.choices:
            content = choice.logprobs.content
            assert b"".join(bytes(token.bytes) for token in content).decode() == choice.message.content
            assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content)
        streamed: dict[int, list] = {0: [], 1: []}
        for chunk in client.chat.completions.create(**options, stream=True):
            choice = chunk.choices[0]
            streamed[choice.index] += choice.logprobs.content if choice.logprobs else []
        assert streamed == {choice.index: choice.logprobs.content for choice in answer.choices}

    def test_the_last_message_can_be_continued(self, client: OpenAI) -> None:
        beginning = told(6)
        messages = [{"role": "user", "content": STORY}, {"role": "assistant", "content": beginning}]
        answer = client.chat.completions.create(
            model="story", temperature=0, messages=messages, max_tokens=6, extra_body={"continue_final_message": True}
        )
        assert beginning + answer.choices[0].message.content == told(12)

    def test_variables_of_the_template(self, client: OpenAI) -> None:
        def prompt_tokens(**variables: bool) -> int:
            answer = client.chat.completions.create(
                model="thinker",
                messages=[{"role": "user", "content": STORY}],
                max_tokens=1,
                extra_body={"chat_template_kwargs": variables},
            )
            assert answer.usage is not None
            return answer.usage.prompt_tokens

        assert prompt_tokens(enable_thinking=True) > prompt_tokens(enable_thinking=False) == prompt_tokens()

    def test_values_that_packages_send_unprompted(self, client: OpenAI) -> None:
        answer = client.chat.completions.create(
            model="story",
            messages=[{"role": "user", "content": STORY}],
            max_tokens=8,
            temperature=0,
            n=1,
            presence_penalty=0,
            frequency_penalty=0,
            logit_bias={},
            logprobs=False,
            stop=None,
            response_format={"type": "text"},
            tools=[],
            tool_choice="auto",
            parallel_tool_calls=True,
            service_tier="auto",
            modalities=["text"],
            store=True,
            metadata={"a": "b"},
            user="someone",
            stream=False,
        )
        assert answer.choices[0].message.content == told(8)


class Hero(BaseModel):
    """Schema of an answer with a limited length, because a small model might not end a free text."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Rose", "Otto", "the fox"]
    friends: Annotated[list[Literal["Emma", "Hugo"]], Field(max_length=2)]
    is_brave: bool


class TestStructuredOutput:
    def test_parse(self, client: OpenAI) -> None:
        answer = client.chat.completions.parse(
            model="story",
            temperature=0,
            messages=[{"role": "user", "content": STORY}],
            response_format=Hero,
            max_tokens=200,
            seed=1,
        )
        assert isinstance(answer.choices[0].message.parsed, Hero)

    @pytest.mark.parametrize(
        "form",
        [
            {"type": "json_schema", "json_schema": {"name": "Hero", "schema": Hero.model_json_schema()}},
            {"type": "json_object", "value": Hero.model_json_schema()},
        ],
        ids=["not strict", "huggingface_hub"],
    )
    def test_schemas_in_other_forms(self, client: OpenAI, form: dict) -> None:
        answer = client.chat.completions.create(
            model="story",
            temperature=0,
            messages=[{"role": "user", "content": STORY}],
            response_format=form,
            max_tokens=200,
        )
        Hero.model_validate_json(answer.choices[0].message.content)

    def test_any_object(self, client: OpenAI) -> None:
        answer = client.chat.completions.create(
            model="story",
            messages=[{"role": "user", "content": STORY}],
            temperature=0,
            response_format={"type": "json_object"},
            max_tokens=8,
        )
        assert answer.choices[0].message.content.startswith("{")


class TestEmbeddings:
    TEXTS = ("The cat was chased by the dog.", "The king gave the book to the queen.")

    def test_both_encodings_are_those_of_sentence_transformers(self, client: OpenAI) -> None:
        from sentence_transformers import SentenceTransformer

        expected = SentenceTransformer(str(DEMO / "sentence-encoder"), device="cpu").encode(list(self.TEXTS))
        plain = client.embeddings.create(model="sentence-encoder", input=self.TEXTS, encoding_format="float")
        packed = client.embeddings.create(model="sentence-encoder", input=self.TEXTS)
        for answer in (plain, packed):
            assert [item.index for item in answer.data] == [0, 1] and answer.model == "sentence-encoder"
            np.testing.assert_allclose([item.embedding for item in answer.data], expected, atol=1e-5)
        assert plain.usage.prompt_tokens == plain.usage.total_tokens == packed.usage.prompt_tokens > 10

    def test_base64_is_little_endian_float32(self, server: ClientServer) -> None:
        body = {"model": "sentence-encoder", "input": self.TEXTS[0]}
        one, other = (
            httpx.post(f"{server.url}/v1/embeddings", json=body | {"encoding_format": form}, headers=server.headers)
            for form in ("float", "base64")
        )
        numbers = np.frombuffer(base64.b64decode(other.json()["data"][0]["embedding"]), "<f4")
        np.testing.assert_allclose(numbers, one.json()["data"][0]["embedding"], rtol=1e-6)

    def test_token_ids_and_dimensions(self, client: OpenAI) -> None:
        ids = transformers.AutoTokenizer.from_pretrained(DEMO / "sentence-encoder")(list(self.TEXTS))["input_ids"]
        by_text, by_ids = (
            client.embeddings.create(model="sentence-encoder", input=inputs) for inputs in (self.TEXTS, ids)
        )
        assert by_text == by_ids
        short = client.embeddings.create(model="sentence-encoder", input=self.TEXTS[0], dimensions=8)
        assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-5)
        whole = np.array(by_text.data[0].embedding[:8])
        np.testing.assert_allclose(short.data[0].embedding, whole / np.linalg.norm(whole), atol=1e-5)

    def test_a_long_text_is_refused(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=r"`input` contains a text of \d+ tokens") as caught:
            client.embeddings.create(model="sentence-encoder", input="a cat " * 1000)
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "input"


def test_models(client: OpenAI, server: ClientServer) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "story" and "sentence-encoder" in names
    assert client.models.retrieve("story").owned_by == "triptych"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"


async def test_the_async_client(server: ClientServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client:
        messages = [{"role": "user", "content": STORY}]
        answer = await client.chat.completions.create(model="story", temperature=0, messages=messages, max_tokens=12)
        assert answer.choices[0].message.content == told(12)
        stream = await client.chat.completions.create(
            model="story", temperature=0, messages=messages, max_tokens=12, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == told(12)
