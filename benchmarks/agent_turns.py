"""Turns of an agent over HTTP: time to first token, and how much of the previous prompt the prefix cache has.

    python -m benchmarks.agent_turns                       # Qwen3-0.6B, ten turns on a prompt of 25,000 tokens
    python -m benchmarks.agent_turns --shape qwen3-4b --quantize int4
    python -m benchmarks.agent_turns --shape tiny --prompt-tokens 2000 --turns 3

The checkpoint has the shape of the published one and random weights: times depend on shapes, not on values. The first
prompt has a system message, tools and a question. Each turn sends the whole conversation, reads a streamed answer,
and appends it with a call and the result of the call. The server has its default settings for memory.

The exit status is 1 if a turn after the first finds less than 95% of the previous prompt in the cache.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks import random_checkpoints, vocabulary
from benchmarks.process import REPOSITORY

MIN_CACHED_SHARE = 0.95
TOOL_TOKENS = 175
"""Approximate number of tokens of a tool's JSON without the description. Most bytes of this JSON are one token each."""
_QWEN3: Mapping[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "hidden_act": "silu",
    "attention_bias": False,
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "bos_token_id": vocabulary.BOS,
    "eos_token_id": vocabulary.EOS,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "qwen3-4b": {
        **_QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "tiny": {
        **_QWEN3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 20_000,
    },
}
"""Contents of `config.json` by name of the shape."""

TEMPLATE = """\
{%- if tools %}<s>system
{%- for tool in tools %} <tools>{{ tool | tojson }}</tools>{% endfor %}</s>{% endif %}
{%- for message in messages %}<s>{{ message.role + ' ' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
    {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}</s>{% endfor %}
{%- if add_generation_prompt %}<s>assistant{% endif %}
"""
"""Chat template that writes messages and tool calls like Qwen's, with the special tokens of the random vocabulary."""


@dataclass(frozen=True)
class Turn:
    """Measurements of one request of a conversation.

    cached_tokens: number of prompt tokens that the prefix cache had.
    first_token_seconds, seconds: time from sending to the first token, and to the end of the answer.
    content: text of the answer.
    """

    prompt_tokens: int
    cached_tokens: int
    first_token_seconds: float
    seconds: float
    content: str


def write(directory: Path, shape: str) -> Path:
    """Write a random checkpoint of a shape and its chat template, unless it exists. Returns `directory`."""
    random_checkpoints.write(directory, SHAPES[shape], torch.bfloat16, torch.device("cpu"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Start a server with these arguments and print its first lines. Yields its URL; stops the server at the end.

    Raises RuntimeError if it does not start.
    """
    command = [sys.executable, "-m", "server.cli", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = ""
            for line in process.stdout:
                if not line.strip():
                    break
                print(line, end="", flush=True)
                found = re.search(r"ready on (http://\S+)", line)
                url = found[1] if found else url
            if not url:
                raise RuntimeError("the server did not start")
            yield url
        finally:
            process.terminate()


class Conversation:
    """Messages and tools of an agent, with random texts.

    size: vocabulary size. tokens: approximate length of the first prompt in tokens, tools included.
    """

    def __init__(self, size: int, tokens: int, num_tools: int) -> None:
        self._random, self._size = random.Random(0), size
        described = max(tokens // 2 // num_tools - TOOL_TOKENS, 1)
        self.tools = [self._tool(number, described) for number in range(num_tools)]
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": self._text(tokens // 2)},
            {"role": "user", "content": self._text(20)},
        ]

    def answered(self, content: str, number: int, result_tokens: int) -> None:
        """Append an answer with a tool call, and a random result of the call with `result_tokens` tokens.

        content: text of the answer. number: index of the turn, which selects the tool.
        """
        function = {"name": f"tool_{number % len(self.tools)}", "arguments": '{"path":  "a"}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        self.messages += [
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self._text(result_tokens)},
        ]

    def _tool(self, number: int, tokens: int) -> dict[str, Any]:
        properties = {"path": {"type": "string", "description": "a file"}}
        schema = {"type": "object", "properties": properties, "required": ["path"]}
        described = {"name": f"tool_{number}", "description": self._text(tokens), "parameters": schema}
        return {"type": "function", "function": described}

    def _text(self, tokens: int) -> str:
        ids = range(vocabulary.FIRST_WORD, self._size)
        return vocabulary.text(self._random.choices(ids, k=tokens))


def play(url: str, conversation: Conversation, turns: int, new_tokens: int, result_tokens: int) -> Iterator[Turn]:
    """Send the conversation `turns` times, appending each answer and a tool result. Yields each turn's measurements.

    new_tokens: largest number of tokens of an answer. result_tokens: tokens of each tool result.
    Raises RuntimeError for another status than 200.
    """
    for number in range(turns):
        body = {
            "messages": conversation.messages,
            "tools": conversation.tools,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        turn = _ask(url, body)
        conversation.answered(turn.content, number, result_tokens)
        yield turn


def _ask(url: str, body: Mapping[str, Any]) -> Turn:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=3600)
    started, first, content, usage = time.perf_counter(), 0.0, "", None
    headers = {"content-type": "application/json", "x-timeout-ms": "3600000"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read()[:500].decode()}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            first = first or time.perf_counter()
            content += choice["delta"].get("content") or ""
    connection.close()
    if usage is None:
        raise RuntimeError("the stream has no usage")
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Turn(usage["prompt_tokens"], cached, first - started, time.perf_counter() - started, content)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_turns", description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--prompt-tokens", type=int, default=25_000, help="approximate length of the first prompt")
    parser.add_argument("--tools", type=int, default=30)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--result-tokens", type=int, default=400, help="tokens of the result of each call")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantize", default="", help="as for `triptych serve`")
    parser.add_argument("--checkpoints", type=Path, default=REPOSITORY / "build" / "agent-turns")
    options = parser.parse_args(arguments)

    directory = write(options.checkpoints / options.shape, options.shape)
    conversation = Conversation(SHAPES[options.shape]["vocab_size"], options.prompt_tokens, options.tools)
    flags = ["--dtype", options.dtype, "--max-timeout-seconds", "3600", "--no-access-log"]
    flags += ["--quantize", options.quantize] if options.quantize else []
    turns: list[Turn] = []
    with serving(f"m={directory}", *flags) as url:
        print("turn  prompt tokens   cached  of the previous prompt  first token   whole answer")
        for turn in play(url, conversation, options.turns, options.new_tokens, options.result_tokens):
            share = f"{turn.cached_tokens / turns[-1].prompt_tokens:.1%}" if turns else "-"
            turns.append(turn)
            print(
                f"{len(turns):4}  {turn.prompt_tokens:13,}  {turn.cached_tokens:7,}  {share:>22}"
                f"  {turn.first_token_seconds:9.2f} s  {turn.seconds:11.2f} s",
                flush=True,
            )
    found = [after.cached_tokens / before.prompt_tokens for before, after in pairwise(turns)]
    return int(min(found, default=1.0) < MIN_CACHED_SHARE)


if __name__ == "__main__":
    sys.exit(main())
