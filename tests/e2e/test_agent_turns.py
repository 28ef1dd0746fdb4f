"""The prefix cache has at least 95% of the previous prompt in each turn of an agent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.e2e.agent import Agent, text
from tests.e2e.conftest import RunningServer, serving
from tests.operations.chat_bench import write_checkpoint
from tests.parity.checkpoints import write_model
from tests.text.tool_templates import HERMES, LLAMA_3, MISTRAL, OPENS_THINKING, QWEN_3, SPECIAL_TOKENS

CONTEXT = 16_384
TURNS = 10
MIN_SHARE = 0.95
_SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 16}
_LAST_USER = """{%- set found = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set found.last = loop.index0 %}{%- endif %}
{%- endfor %}
"""
MISTRAL_TOOLS = _LAST_USER + MISTRAL.replace("tools and loop.last", "tools and loop.index0 == found.last")
"""Mistral's chat template as published: it writes the tools before the last user message, even if others follow."""
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any], str, str]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_hidden_layers": 2}, LLAMA_3, "llama-3"),
    "qwen": ("Qwen3ForCausalLM", "Qwen3Config", {"num_hidden_layers": 2}, QWEN_3, "hermes"),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {"num_hidden_layers": 2, "sliding_window": 100},
        MISTRAL_TOOLS,
        "mistral",
    ),
    "gemma": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"num_hidden_layers": 2, "sliding_window": 96, "layer_types": ["sliding_attention", "full_attention"]},
        HERMES,
        "hermes",
    ),
    "delta": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**_DELTA, "num_hidden_layers": 3, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1, 2]},
        QWEN_3,
        "hermes",
    ),
    "mamba-attention": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            **_MAMBA,
            "num_hidden_layers": 3,
            "shared_intermediate_size": 40,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 0,
        },
        OPENS_THINKING,
        "hermes",
    ),
    "mamba": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"num_hidden_layers": 2, "state_size": 12, "chunk_size": 16, "num_heads": 8, "head_dim": 8, "n_groups": 2},
        HERMES,
        "hermes",
    ),
    "convolution": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        HERMES,
        "hermes",
    ),
}


def write(directory: Path, name: str) -> Path:
    architecture, config, settings, template, special = MODELS[name]
    write_checkpoint(directory, template, SPECIAL_TOKENS[special])
    size = max(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"].values()) + 16
    made = getattr(transformers, config)(**{**_SIZES, "vocab_size": size, **settings})
    write_model(directory, made, architecture, std=0.2)
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("agents")
    models = [f"{name}={write(root / name, name)}" for name in MODELS]
    with serving(root / "log", *models) as running:
        yield running


@pytest.mark.parametrize("name", MODELS)
def test_each_turn_finds_the_previous_prompt(server: RunningServer, name: str) -> None:
    counts = list(Agent(server, name).play(TURNS))
    for (before, _), (_, cached) in pairwise(counts):
        assert cached >= MIN_SHARE * before, counts


def test_the_other_dialects_report_what_was_found(server: RunningServer) -> None:
    prompt = text(random.Random(3), 3000)
    history = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "I did."}]
    question = [{"role": "user", "content": "Go on."}]
    counts: dict[str, list[int]] = {}
    for messages in (history[:1], history + question):
        body = {"model": "llama", "temperature": 0, "system": "Be short.", "messages": messages}
        usage = server.post("/v1/messages", json={**body, "max_tokens": 4}).json()["usage"]
        counts.setdefault("messages", []).extend((usage["input_tokens"], usage["cache_read_input_tokens"]))
        body = {"model": "llama", "temperature": 0, "instructions": "Be long.", "input": messages}
        usage = server.post("/v1/responses", json={**body, "max_output_tokens": 4}).json()["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        counts.setdefault("responses", []).extend((usage["input_tokens"] - cached, cached))
    for first, nothing, rest, cached in counts.values():
        assert nothing == 0 and cached >= MIN_SHARE * first and rest < 100
