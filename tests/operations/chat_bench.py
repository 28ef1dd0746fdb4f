"""The chat operation with a real engine in this process. The fake model has random logits, or follows a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.backends.logits import DecoderOutput, LogitsRequest
from server.api.telemetry.telemetry import Telemetry
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.schedule import Schedule
from server.engine.scheduling.scheduler import Scheduler
from server.engine.stepping.engine import Engine
from server.engine.stepping.generation_engine import GenerationEngine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.client.call import Call
from server.ipc.client.client import EngineClient
from server.ipc.wire.descriptions import GenerationInfo, ModelInfo
from server.ipc.wire.generate_messages import Generate, Vocabulary
from server.ipc.wire.step_messages import Abort
from server.metrics import Metrics
from server.operations.chatting.chat import ChatDelta, ChatResult, ChatSpec, chat
from server.operations.runtime import Runtime
from server.text import checkpoint_text
from tests.engine.stored_logits import StoredLogits
from tests.grammar_compiler import COMPILER
from tests.wire.checkpoints import byte_alphabet

CONTEXT = 4096
MERGED = [
    *('{"', '":', '": ', '", "', '"}', '"}}', "}}", '{"name', '":"', ' {"', '[{"', "}]", "\n{", "name", "arguments"),
    *("_call>\n", '>\n{"', "<tool", "tool_call", "</", "think>", "think>\n\n", "\n\n", "[TOOL", "_CALLS]", "[ARGS]{"),
    *("get", "_weather", "city", "Paris", " the", "Let me", "é", "日本"),
]
"""Texts of the tokens, in addition to all single bytes. Some contain the end of a marker and the text after it."""


def write_checkpoint(directory: Path, template: str, special: Sequence[str] = (), added: Sequence[str] = ()) -> Path:
    """Write a checkpoint with a byte-level tokenizer and a chat template.

    special: further special tokens. added: added tokens that count as text, such as Qwen's `<tool_call>`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    letters = dict(zip(range(256), byte_alphabet(), strict=True))
    pieces = ["".join(letters[byte] for byte in text.encode()) for text in MERGED]
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2}
    for piece in (*byte_alphabet(), *dict.fromkeys(pieces)):
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", *special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    (directory / "config.json").write_text("{}")
    return directory


class ScriptedRunner:
    """Runner of a fake model. The tokens of a script have by far the highest logits; after it, logits are random.

    script: token ids. likely: ids of tokens with higher logits after the script. seed: seed of the random logits.
    """

    captured = None

    def __init__(self, vocab_size: int, script: Sequence[int], likely: Sequence[int], seed: int) -> None:
        self.model = StoredLogits()
        self.vocab_size, self.script, self.likely, self.seed = vocab_size, script, list(likely), seed
        self.prompt_length = 0

    def run(self, schedule: Schedule, logits: LogitsRequest | None = None) -> tuple[DecoderOutput, torch.Tensor]:
        rows = [row.sequence.tokens for row in schedule.rows if row.needs_logits]
        stored = torch.stack([self.logits_after(tokens) for tokens in rows])
        output = DecoderOutput(stored, *(self.model.logits_top_k(stored, logits) if logits is not None else ()))
        return output, torch.zeros(sum(row.num_tokens for row in schedule.rows), 1)

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *tokens)) % (1 << 62))
        logits = torch.randn(self.vocab_size, generator=generator) * 2
        logits[self.likely] += 4
        place = len(tokens) - self.prompt_length
        if place < len(self.script):
            logits[self.script[place]] = 1000.0
        return logits

    def clear(self, *blocks: object) -> None: ...


class ChatBench:
    """A runtime with one chat model `llm`, whose messages go to an engine in this process."""

    def __init__(self, directory: Path, seed: int = 0, speculation: object = None) -> None:
        self.metrics = Metrics()
        self.client = EngineClient(Telemetry(self.metrics), 256, 1 << 20)
        text = checkpoint_text.load("llm", directory)
        self.tokenizer = text.tokenizer
        self.runtime = Runtime(self.client, self.metrics, {"llm": text}, 1 << 20, grammar_compiler=COMPILER)
        self.vocab_size = text.tokenizer.vocab_size
        closing = [i for i, data in enumerate(text.tokenizer.token_bytes.by_id) if data in (b'"', b"}", b"]", b'"}')]
        self.runner = ScriptedRunner(self.vocab_size, [], [1, *closing], seed)
        scheduler = Scheduler(BlockTables(BlockManager(4096, 16), None), 4096, 64)
        limits = ModelLimits(self.vocab_size, CONTEXT)
        self.engine = Engine(
            {"llm": ModelEngine("llm", GenerationEngine("llm", scheduler, self.runner, limits))}, torch.device("cpu")
        )
        self.sent: list[Generate] = []
        self._stepping: asyncio.Task[None] | None = None
        self.client.on_ready([_info(self.vocab_size)], "cpu", self._receive)

    def follow(self, script: Sequence[str | int] | str) -> None:
        """Make the model generate a script. script: a text, or a list of tokens, each as its text or its id."""
        ids = (
            self.tokenizer.encode([script], add_special_tokens=False)[0].ids
            if isinstance(script, str)
            else [piece if isinstance(piece, int) else self.id_of(piece) for piece in script]
        )
        self.runner.script = ids

    def id_of(self, text: str) -> int:
        """The id of the token with this text."""
        found = self.tokenizer.token_to_id(text)
        return self.tokenizer.token_bytes.by_id.index(text.encode()) if found is None else found

    async def ask(self, spec: ChatSpec, deadline: float | None = None) -> tuple[ChatResult, list[ChatDelta]]:
        """Run a chat to its end. Returns its result and all deltas."""
        deltas: list[ChatDelta] = []

        def sink(new: list[ChatDelta]) -> bool:
            deltas.extend(new)
            return True

        with Call(self.client, deadline) as call:
            run = await chat(self.runtime, call, spec)
            deltas += await run.begin()
            await run.forward(sink)
            return run.result(), deltas

    def close(self) -> None:
        self.runtime.pools.close()
        self.runtime.chat_renderer.close()

    def _receive(self, message: Any) -> None:
        if isinstance(message, Vocabulary):
            self.engine.set_vocabulary(message)
        elif isinstance(message, Abort):
            self.engine.abort(message.sequence_id)
        else:
            self.sent.append(message)
            self.runner.prompt_length = len(message.prompts[0])
            self.engine.add(message)
            if self._stepping is None or self._stepping.done():
                self._stepping = asyncio.get_running_loop().create_task(self._step())

    async def _step(self) -> None:
        while self.engine.has_work:
            output = self.engine.step()
            if output is not None:
                self.client.on_output(msgspec.structs.replace(output, epoch=1))
            await asyncio.sleep(0)


def _info(vocab_size: int) -> ModelInfo:
    return ModelInfo(
        name="llm",
        family="fake",
        architecture="FakeModel",
        tasks=["generate"],
        dtype="float32",
        parameters=1000,
        weight_bytes=4000,
        vocab_size=vocab_size,
        hidden_size=4,
        context_tokens=CONTEXT,
        source_tokens=0,
        block_size=16,
        kv_blocks={"self": 4096},
        is_encoder_decoder=False,
        generation=GenerationInfo(end_token_ids=[1]),
        labels=[],
        problem_type=None,
        load_seconds=0.01,
        execution="program",
    )
