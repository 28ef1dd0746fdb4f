"""Function calls of a real worker with a small random LLaMA, over HTTP, in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import psutil
import pytest
import transformers

from server.text.tool_formats import TOOL_FORMATS
from tests.e2e.conftest import RunningServer, serving
from tests.operations.chat_bench import write_checkpoint
from tests.operations.tool_cases import SCHEMAS, TOOLS
from tests.parity.checkpoints import write_model
from tests.text.tool_templates import BY_FORMAT, SPECIAL_TOKENS

NAMES = [row.name for row in TOOL_FORMATS]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("tools")
    for name in NAMES:
        directory = write_checkpoint(root / name, BY_FORMAT[name], SPECIAL_TOKENS[name])
        size = max(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"].values()) + 16
        config = transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=1,
        )
        write_model(directory, config, "LlamaForCausalLM", std=0.3)
    with serving(root / "log", *(f"{name}={root / name}" for name in NAMES)) as running:
        yield running


def body(name: str, seed: int, **more: Any) -> dict[str, Any]:
    own = {"temperature": 0.0} if seed == 0 else {"temperature": 1.5, "seed": seed}
    tools = [tool.for_template() for tool in TOOLS]
    settings = {"model": name, "messages": QUESTION, "tools": tools, "max_tokens": 400, "logit_bias": {"37": 3}}
    return {**settings, "tool_choice": "required", "parallel_tool_calls": False, **own, **more}


def streamed(server: RunningServer, request: dict[str, Any]) -> dict[str, Any]:
    """The message and finish reason that the events of a stream add up to."""
    text = server.post("/v1/chat/completions", json={**request, "stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    reason = None
    for choice in (choice for event in events for choice in event["choices"]):
        message["content"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or []:
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments") or ""
        reason = choice["finish_reason"] or reason
    return {**message, "finish_reason": reason}


@pytest.mark.parametrize("name", NAMES)
def test_forced_calls_match_their_schemas_and_streams_add_up(server: RunningServer, name: str) -> None:
    finished = 0
    for seed in range(4):
        request = body(name, seed)
        answer = server.post("/v1/chat/completions", json=request)
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        calls = [call["function"] for call in choice["message"]["tool_calls"] or []]
        assert not choice["message"]["content"]
        if choice["finish_reason"] == "tool_calls":
            finished += 1
            for call in calls:
                jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        whole = streamed(server, request)
        assert whole["tool_calls"] == [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        assert (whole["content"], whole["finish_reason"]) == ("", choice["finish_reason"])
    assert finished >= 1


def test_a_named_function_and_bad_tools(server: RunningServer) -> None:
    named = {"tool_choice": {"type": "function", "function": {"name": "get"}}}
    answer = server.post("/v1/chat/completions", json=body("hermes", 1, **named)).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": "{}"} and call["id"].startswith("call_")
    bad = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "y"}}}},
        }
    ]
    refused = server.post("/v1/chat/completions", json=body("hermes", 1, tools=bad))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"


def test_the_process_of_templates_ends_with_the_server(server: RunningServer) -> None:
    """This test is the last one in the file, because it stops the shared server."""
    server.post("/v1/chat/completions", json=body("hermes", 0, max_tokens=1))
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert any("chat_process.py" in " ".join(child.cmdline()) for child in children)
    server.stop()
    assert not any(child.is_running() for child in children)
