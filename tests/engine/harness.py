"""Helpers to run engines with tiny random checkpoints, and to get the reference results of transformers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.stepping.engine import Engine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import EngineOptions, ModelInfo, ModelSpec
from server.ipc.wire.encode_messages import Encode
from server.ipc.wire.generate_messages import Finished, Generate, Tokens, Vocabulary
from server.ipc.wire.logprobs import Logprobs, TokenLogprob
from server.ipc.wire.step_messages import Failed
from tests.engine.tiny_checkpoints import ENCODERS, GENERATING, VOCAB
from tests.ipc.one_row import one_row
from tests.parity.checkpoints import forget_short_texts, load, save
from tests.parity.native_twins import rewrite_as_native

PRINTABLE = [*[b""] * 3, *(bytes([33 + i]) for i in range(VOCAB - 3))]
"""Bytes of each token of the tiny checkpoints, for tests with grammars. The first three are special tokens."""


@dataclass(eq=False)
class Pair:
    """A checkpoint loaded by transformers (`oracle`) and by the engine (`loaded`)."""

    name: str
    oracle: torch.nn.Module
    loaded: LoadedCheckpoint

    @property
    def ends(self) -> list[int]:
        return [self.oracle.config.eos_token_id]

    @property
    def starts(self) -> list[int]:
        config = self.oracle.config
        return [config.decoder_start_token_id] if config.is_encoder_decoder else []

    def engine(self, **options) -> Engine:
        """A new engine with this model only. Its KV blocks are small, so that short texts have many."""
        settings = {"block_size": 4, "kv_cache_bytes": 1 << 22, **options}
        return engine([self], **settings)


def make_pair(name: str, directory: Path, device: torch.device) -> Pair:
    architecture, config = (GENERATING | ENCODERS)[name]
    oracle = save(directory, config, architecture).to(device)
    if name.startswith("native"):
        rewrite_as_native(directory)
    spec = ModelSpec(name, str(directory), "float32")
    return Pair(name, oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


def engine(pairs: list[Pair], **options) -> Engine:
    settings = EngineOptions(**options)
    models: dict[str, ModelEngine] = {}
    infos: dict[str, ModelInfo] = {}
    for pair in pairs:
        models[pair.name], infos[pair.name] = build(pair.loaded, settings, settings.kv_cache_bytes // len(pairs))
    made = Engine(models, pairs[0].loaded.device)
    for pair in pairs:
        made.set_vocabulary(Vocabulary(pair.name, PRINTABLE))
    return made


@dataclass
class Results:
    """The results in all outputs of an engine, by sequence id."""

    prompts: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    token_events: dict[int, list[Tokens]] = field(default_factory=dict)
    encoded: dict[tuple[int, int], bytes] = field(default_factory=dict)
    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    words: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    steps: int = 0

    def take(self, output) -> None:
        if output is None:
            return
        for event in output.prompts:
            assert event.sequence_id not in self.prompts | self.tokens | self.finished, "late or repeated"
            self.prompts[event.sequence_id] = list(Logprobs(event.logprobs))
        for event in output.tokens:
            assert event.sequence_id not in self.finished, "tokens after the end"
            self.tokens.setdefault(event.sequence_id, []).extend(event.token_ids)
            self.token_events.setdefault(event.sequence_id, []).append(event)
        for event in output.finished:
            assert event.sequence_id not in self.finished | self.failed, "ended twice"
            self.finished[event.sequence_id] = event
        for event in output.failed:
            assert event.sequence_id not in self.finished | self.failed, "ended twice"
            self.failed[event.sequence_id] = event
        for event in output.encoded:
            self.encoded[event.sequence_id, event.index] = event.values
            self.rows[event.sequence_id, event.index] = event.rows
            self.words[event.sequence_id, event.index] = event.token_ids

    def texts(self, sequence_id: int) -> list[list[int]]:
        return [hypothesis.token_ids for hypothesis in self.finished[sequence_id].hypotheses]


def run(engine: Engine, requests: list[Generate | Encode], every: int = 0) -> Results:
    """Run requests to their end, and check that all KV blocks are free afterwards.

    every: number of steps between two added requests; 0 adds all at once.
    """
    results = Results()
    waiting = iter(requests)
    for request in itertools.islice(waiting, 1 if every else None):
        engine.add(request)
    while True:
        if every and results.steps % every == 0:
            for request in itertools.islice(waiting, 1):
                engine.add(request)
        if not engine.has_work:
            rest = list(waiting)
            if not rest:
                break
            engine.add(rest[0])
            waiting = iter(rest[1:])
        results.take(engine.step())
        results.steps += 1
        assert results.steps < 20_000, "the engine does not finish"
    stats = engine.stats()
    assert set(stats.kv_blocks_used.values()) <= {0}, "blocks are still in use"
    assert stats.running == stats.waiting == stats.queue_tokens == 0
    return results


def generate(pair: Pair, sequence_id: int, prompt: list[int], **params) -> Generate:
    settings = {"max_new_tokens": 12, "end_token_ids": pair.ends, **params}
    return one_row(sequence_id, pair.name, prompt, pair.starts, **settings)


class CountPenalties(transformers.LogitsProcessor):
    """`presence_penalty` and `frequency_penalty` as defined in the OpenAI API reference, token by token."""

    def __init__(self, num_prompt_tokens: int, presence: float, frequency: float) -> None:
        self.num_prompt_tokens, self.presence, self.frequency = num_prompt_tokens, presence, frequency

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, tokens in zip(scores, input_ids[:, self.num_prompt_tokens :].tolist(), strict=True):
            for token in set(tokens):
                row[token] -= tokens.count(token) * self.frequency + self.presence
        return scores


def as_transformers_settings(pair: Pair, prompt: list[int], settings: dict) -> dict:
    """Translate our settings to arguments of transformers' `generate`."""
    names = {"suppress_token_ids": "suppress_tokens", "end_token_ids": "eos_token_id"}
    theirs = {names.get(name, name): value for name, value in settings.items()}
    if bias := theirs.pop("logit_bias", None):
        theirs["sequence_bias"] = {(token,): value for token, value in bias.items()}
    if allowed := theirs.pop("allowed_token_ids", None):
        theirs["prefix_allowed_tokens_fn"] = lambda batch, ids: allowed
    penalties = theirs.pop("presence_penalty", 0.0), theirs.pop("frequency_penalty", 0.0)
    if any(penalties):
        theirs["logits_processor"] = [CountPenalties(len(pair.starts) or len(prompt), *penalties)]
    return theirs


def reset_dynamic_rope(oracle: torch.nn.Module) -> None:
    """Reset the dynamic RoPE of transformers, which otherwise depends on the longest text of all earlier calls."""
    for module in oracle.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.max_seq_len_cached = module.original_max_seq_len
            module.inv_freq = module.original_inv_freq


def reference(pair: Pair, prompt: list[int], **settings):
    """Result of `generate` in transformers: new tokens of each hypothesis, with the end token, and beam scores."""
    forget_short_texts(pair.oracle)
    device = next(pair.oracle.parameters()).device
    reset_dynamic_rope(pair.oracle)
    settings = {"do_sample": False, "num_beams": 1, "pad_token_id": 0, "eos_token_id": pair.ends, **settings}
    ends = settings["eos_token_id"] if isinstance(settings["eos_token_id"], list) else [settings["eos_token_id"]]
    with torch.inference_mode():
        output = pair.oracle.generate(
            torch.tensor([prompt], device=device),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=device),
            return_dict_in_generate=True,
            output_scores=True,
            **settings,
        )
    skip = len(pair.starts) or len(prompt)
    texts = []
    for row in output.sequences[:, skip:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        texts.append(row[:end])
    scores = output.sequences_scores.tolist() if settings["num_beams"] > 1 else None
    return texts, scores
