"""The scripted model answers as its scripts say, with logits so far apart that sampling changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests import scripted_model
from tests.scripted_model import GENERAL, ScriptedCall, Step, write_scripted

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]
MARGIN = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted(tmp_path_factory.mktemp("scripted") / "model")


@pytest.fixture(scope="module")
def answer(directory: Path):
    """A function from messages to the model's answer: it renders the chat template and generates."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)

    def generate(*contents: str, tools=None, **variables) -> str:
        roles = ["user", *["assistant", "tool"] * len(contents)]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
        prompt = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **variables
        )
        inputs = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**inputs, max_new_tokens=100, output_logits=True, return_dict_in_generate=True)
        best = torch.stack(made.logits)[:, 0].topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > MARGIN
        return tokenizer.decode(made.sequences[0][inputs.input_ids.shape[1] :]).removesuffix("<|im_end|>")

    return generate


def test_text_reasoning_and_calls(answer) -> None:
    assert answer("[[script:text]]") == GENERAL["text"][0].content
    reasoned = "<think>\nSix times seven.\nThat is forty-two.\n</think>\n\nThe answer is 42."
    assert answer("[[script:reasoning]]") == reasoned
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert answer("[[script:tools]]", tools=TOOLS) == call
    assert answer("[[script:parallel]]", tools=TOOLS).count("<tool_call>") == 2


def test_the_step_follows_the_conversation(answer) -> None:
    call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "Europe/Zurich"}}\n</tool_call>'
    assert answer("[[script:tools]]", "a", "b", tools=TOOLS) == "Now the time.\n" + call
    assert answer("[[script:tools]]", "a", "b", "c", "d", tools=TOOLS) == "It is noon in Zürich, and sunny."
    assert answer("[[script:tools]]", *"abcdef", tools=TOOLS) == "It is noon in Zürich, and sunny."


def test_a_prompt_that_has_closed_the_reasoning(answer) -> None:
    assert answer("[[script:reasoning]]", enable_thinking=False) == "The answer is 42."
    assert answer("[[script:tools]]", tools=TOOLS, enable_thinking=False).strip().startswith("<tool_call>\n{")


def test_the_default_answer(answer) -> None:
    text = GENERAL[scripted_model.DEFAULT][0].content
    assert answer("No marker.") == text
    assert answer("[[script:unknown]]") == text
    assert answer("[[script:tools]]") == text, "its tool is not in the request"


def test_attention_finds_the_previous_token_at_every_distance() -> None:
    layer = scripted_model._layer(1.0)
    query, key = (layer[f"self_attn.{name}_proj.weight"][:64].sum(1) for name in "qk")
    angles = np.outer(np.arange(scripted_model.MAX_POSITIONS), 100.0 ** (-2.0 * np.arange(32) / 64))
    rotated = np.concatenate(
        [
            query[:32] * np.cos(angles) - query[32:] * np.sin(angles),
            query[32:] * np.cos(angles) + query[:32] * np.sin(angles),
        ],
        axis=1,
    )
    scores = rotated @ key / 8
    assert scores.argmax() == 1
    assert scores[1] - np.delete(scores, 1).max() > MARGIN


def test_texts_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="occurs elsewhere"):
        write_scripted(tmp_path, {"one": [Step("the")]})
    calls = tuple(ScriptedCall("f", {"x": index}) for index in range(60))
    with pytest.raises(ValueError, match="too many calls"):
        write_scripted(tmp_path, {"one": [Step(calls=calls)]})


def test_texts_with_equal_ends_are_told_apart() -> None:
    cutter = scripted_model._Cutter(set())
    texts = ["abcd-efgh-ijkl", "zzzz-efgh-ijkl", "efgh-ijkl"]
    pieces = [list(cutter.tokens([("text", text)])) for text in texts]
    assert ["".join(piece) for piece in pieces] == texts
    together = [piece for group in pieces for piece in group]
    assert len(set(together)) == len(together)
