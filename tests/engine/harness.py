"""A whole engine over tiny random checkpoints, and the oracle beside it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from server.engine.engine import Engine, ModelEngine
from server.engine.loading import Loaded, build
from server.ipc.messages import (
    Encode,
    EngineOptions,
    Failed,
    Finished,
    Generate,
    GenerationParams,
    ModelInfo,
    ModelSpec,
    TokenLogprob,
    Tokens,
    Vocabulary,
)
from tests.parity.checkpoints import forget_short_texts, load, save
from tests.parity.native_twins import rewrite_as_native

VOCAB = 97
PRINTABLE = [*[b""] * 3, *(bytes([33 + i]) for i in range(VOCAB - 3))]
"""How the tokens of these checkpoints are spelled, for grammars: three are no text."""
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 24,
}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NEO = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "num_heads": 4,
    "window_size": 6,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "bos_token_id": 1, "eos_token_id": 2}
_MPT = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "n_layers": 2,
    "max_seq_len": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FALCON = {name: value for name, value in _LLAMA.items() if name != "intermediate_size"}
_OPT = {name: value for name, value in _LLAMA.items() if name != "intermediate_size"} | {"ffn_dim": 48}
_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "decoder_start_token_id": 0}
_BART = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
_LED = {name: value for name, value in _BART.items() if name != "max_position_embeddings"} | {
    "max_encoder_position_embeddings": 128,
    "max_decoder_position_embeddings": 128,
    "attention_window": 8,
}
_MARIAN = _BART | {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "eos_token_id": 0}
_M2M = {name: value for name, value in _BART.items() if name != "forced_eos_token_id"}
_TWO_LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
_DEEP_ENCODER = {"encoder_layers": 3, "decoder_layers": 1, "scale_embedding": True}

DECODERS = {
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2)),
    "gpt2-untied": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2, tie_word_embeddings=False)),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, num_key_value_heads=2)),
    "llama-tied": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, tie_word_embeddings=True)),
    "mistral": (
        "MistralForCausalLM",
        transformers.MistralConfig(**_LLAMA, num_key_value_heads=2, sliding_window=6),
    ),
    "mistral-full": (
        "MistralForCausalLM",
        transformers.MistralConfig(**_LLAMA, num_key_value_heads=4, sliding_window=None),
    ),
    "qwen2": ("Qwen2ForCausalLM", transformers.Qwen2Config(**_LLAMA, num_key_value_heads=2)),
    "qwen2-tied": (
        "Qwen2ForCausalLM",
        transformers.Qwen2Config(**_LLAMA, num_key_value_heads=1, tie_word_embeddings=True),
    ),
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**_LLAMA, num_key_value_heads=2, head_dim=12)),
    "gpt-neox": ("GPTNeoXForCausalLM", transformers.GPTNeoXConfig(**_LLAMA)),
    "gptj": ("GPTJForCausalLM", transformers.GPTJConfig(**_GPT2, rotary_dim=4)),
    "phi": ("PhiForCausalLM", transformers.PhiConfig(**_LLAMA)),
    "phi3": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2, sliding_window=6),
    ),
    "gemma": ("GemmaForCausalLM", transformers.GemmaConfig(**_LLAMA, num_key_value_heads=1, head_dim=12)),
    "gemma2": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(
            **_LLAMA, num_key_value_heads=2, head_dim=12, sliding_window=6, attn_logit_softcapping=2.0
        ),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **_LLAMA,
            num_key_value_heads=2,
            head_dim=12,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2, no_rope_layer_interval=2),
    ),
    "mixtral": (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**_LLAMA, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig(
            **_LLAMA,
            num_key_value_heads=2,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=20,
            mlp_only_layers=[0],
        ),
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(
            **_LLAMA,
            num_key_value_heads=2,
            head_dim=12,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
        ),
    ),
    "llama-dynamic": (
        "LlamaForCausalLM",
        transformers.LlamaConfig(
            **{**_LLAMA, "max_position_embeddings": 24},
            num_key_value_heads=2,
            rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0},
        ),
    ),
    "llama-long": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, rope_parameters=_LONG)),
    "phi3-long": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(
            **_LLAMA,
            pad_token_id=0,
            num_key_value_heads=2,
            original_max_position_embeddings=24,
            rope_parameters={**_LONG, "partial_rotary_factor": 1.0},
        ),
    ),
    "olmo2": ("Olmo2ForCausalLM", transformers.Olmo2Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2)),
    "stablelm": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(**_LLAMA, num_key_value_heads=2, use_parallel_residual=True),
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config(**_LLAMA, num_key_value_heads=2, sliding_window=6),
    ),
    "gpt-neo": ("GPTNeoForCausalLM", transformers.GPTNeoConfig(**_NEO)),
    "openai-gpt": ("OpenAIGPTLMHeadModel", transformers.OpenAIGPTConfig(**_GPT2)),
    "bloom": ("BloomForCausalLM", transformers.BloomConfig(**_BLOOM, n_head=4)),
    "mpt": ("MptForCausalLM", transformers.MptConfig(**_MPT, n_heads=4)),
    "falcon": (
        "FalconForCausalLM",
        transformers.FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "opt": ("OPTForCausalLM", transformers.OPTConfig(**_OPT)),
    "opt-narrow": (
        "OPTForCausalLM",
        transformers.OPTConfig(**_OPT, word_embed_proj_dim=20, do_layer_norm_before=False),
    ),
    "native-decoder": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2)),
}
SEQ2SEQ = {
    "t5": ("T5ForConditionalGeneration", transformers.T5Config(**_T5, num_layers=2)),
    "t5-gated-untied": (
        "T5ForConditionalGeneration",
        transformers.T5Config(
            **_T5, num_layers=3, num_decoder_layers=1, feed_forward_proj="gated-gelu", tie_word_embeddings=False
        ),
    ),
    "bart": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_TWO_LAYERS)),
    "bart-deep-encoder": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_DEEP_ENCODER)),
    "native": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_DEEP_ENCODER)),
    "bigbird-pegasus": (
        "BigBirdPegasusForConditionalGeneration",
        transformers.BigBirdPegasusConfig(**_BART, **_TWO_LAYERS, block_size=2, num_random_blocks=1, use_bias=True),
    ),
    "longt5": (
        "LongT5ForConditionalGeneration",
        transformers.LongT5Config(
            **_T5, num_layers=2, local_radius=3, encoder_attention_type="transient-global", global_block_size=4
        ),
    ),
    "longt5-local": (
        "LongT5ForConditionalGeneration",
        transformers.LongT5Config(**_T5, num_layers=2, num_decoder_layers=1, local_radius=5),
    ),
    "led": ("LEDForConditionalGeneration", transformers.LEDConfig(**_LED, **_TWO_LAYERS)),
    "marian": ("MarianMTModel", transformers.MarianConfig(**_MARIAN, **_TWO_LAYERS)),
    "marian-deep-encoder": ("MarianMTModel", transformers.MarianConfig(**_MARIAN, **_DEEP_ENCODER)),
    "ul2": (
        "T5ForConditionalGeneration",
        transformers.T5Config(**_T5, num_layers=2, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    ),
    "mt5": ("MT5ForConditionalGeneration", transformers.MT5Config(**_T5, num_layers=2)),
    "umt5": ("UMT5ForConditionalGeneration", transformers.UMT5Config(**_T5, num_layers=2)),
    "mbart": (
        "MBartForConditionalGeneration",
        transformers.MBartConfig(**_BART, **_TWO_LAYERS, decoder_start_token_id=7),
    ),
    "mbart-50": (
        "MBartForConditionalGeneration",
        transformers.MBartConfig(**_BART, **_DEEP_ENCODER, decoder_start_token_id=2),
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", transformers.M2M100Config(**_M2M, **_TWO_LAYERS)),
    "pegasus": ("PegasusForConditionalGeneration", transformers.PegasusConfig(**_BART, **_DEEP_ENCODER)),
    "blenderbot": ("BlenderbotForConditionalGeneration", transformers.BlenderbotConfig(**_BART, **_TWO_LAYERS)),
    "blenderbot-small": (
        "BlenderbotSmallForConditionalGeneration",
        transformers.BlenderbotSmallConfig(**_BART, **_TWO_LAYERS),
    ),
}
_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
ENCODERS = {
    "bert": ("BertModel", transformers.BertConfig(**_BERT)),
    "classifier": ("BertForSequenceClassification", transformers.BertConfig(**_BERT, num_labels=5)),
    "tagger": ("BertForTokenClassification", transformers.BertConfig(**_BERT, num_labels=5)),
    "masked": ("BertForMaskedLM", transformers.BertConfig(**_BERT)),
}
GENERATING = DECODERS | SEQ2SEQ


@dataclass
class Pair:
    """A checkpoint as transformers reads it, and as we do."""

    name: str
    oracle: torch.nn.Module
    loaded: Loaded

    @property
    def ends(self) -> list[int]:
        return [self.oracle.config.eos_token_id]

    @property
    def starts(self) -> list[int]:
        config = self.oracle.config
        return [config.decoder_start_token_id] if config.is_encoder_decoder else []

    def engine(self, **options) -> Engine:
        """An engine of its own with this one model, whose blocks are small so that much happens."""
        settings = {"block_size": 4, "kv_cache_bytes": 1 << 22, **options}
        return engine([self], **settings)


def make_pair(name: str, directory: Path, device: torch.device) -> Pair:
    architecture, config = (GENERATING | ENCODERS)[name]
    oracle = save(directory, config, architecture).to(device)
    if name.startswith("native"):
        rewrite_as_native(directory)
    spec = ModelSpec(name, str(directory), "float32")
    return Pair(name, oracle, Loaded(spec, load(directory, device), torch.float32, device, 0.0))


def engine(pairs: list[Pair], **options) -> Engine:
    settings = EngineOptions(**options)
    models: dict[str, ModelEngine] = {}
    infos: dict[str, ModelInfo] = {}
    for pair in pairs:
        models[pair.name], infos[pair.name] = build(pair.loaded, settings, settings.kv_cache_bytes // len(pairs))
    made = Engine(models, pairs[0].loaded.device)
    for pair in pairs:
        made.teach(Vocabulary(pair.name, PRINTABLE))
    return made


@dataclass
class Results:
    """Everything an engine said, by request."""

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
            assert event.request_id not in self.prompts | self.tokens | self.finished, "late, or twice"
            self.prompts[event.request_id] = event.logprobs
        for event in output.tokens:
            assert event.request_id not in self.finished, "tokens after the end"
            self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
            self.token_events.setdefault(event.request_id, []).append(event)
        for event in output.finished:
            assert event.request_id not in self.finished | self.failed, "two ends"
            self.finished[event.request_id] = event
        for event in output.failed:
            assert event.request_id not in self.finished | self.failed, "two ends"
            self.failed[event.request_id] = event
        for event in output.encoded:
            self.encoded[event.request_id, event.index] = event.values
            self.rows[event.request_id, event.index] = event.rows
            self.words[event.request_id, event.index] = event.token_ids

    def texts(self, request_id: int) -> list[list[int]]:
        return [hypothesis.token_ids for hypothesis in self.finished[request_id].hypotheses]


def run(engine: Engine, requests: list[Generate | Encode], every: int = 0) -> Results:
    """Add requests, all at once or one every few steps; step until nothing is left. All blocks must then be free."""
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
        assert results.steps < 20_000, "the engine does not come to an end"
    stats = engine.stats()
    assert set(stats.kv_blocks_used.values()) <= {0}, "blocks are left behind"
    assert stats.running == stats.waiting == stats.queue_tokens == 0
    return results


def generate(pair: Pair, request_id: int, prompt: list[int], **params) -> Generate:
    settings = {"max_new_tokens": 12, "end_token_ids": pair.ends, **params}
    return Generate(request_id, pair.name, prompt, pair.starts, GenerationParams(**settings))


class CountPenalties(transformers.LogitsProcessor):
    """What the OpenAI API reference says of `presence_penalty` and `frequency_penalty`, token by token."""

    def __init__(self, num_prompt_tokens: int, presence: float, frequency: float) -> None:
        self.num_prompt_tokens, self.presence, self.frequency = num_prompt_tokens, presence, frequency

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, tokens in zip(scores, input_ids[:, self.num_prompt_tokens :].tolist(), strict=True):
            for token in set(tokens):
                row[token] -= tokens.count(token) * self.frequency + self.presence
        return scores


def in_their_words(pair: Pair, prompt: list[int], settings: dict) -> dict:
    """Our settings of a request as arguments of transformers' `generate`."""
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


def forget_longer_texts(oracle: torch.nn.Module) -> None:
    """transformers rotates a text like the longest that it ever saw, unless that is reset."""
    for module in oracle.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.max_seq_len_cached = module.original_max_seq_len
            module.inv_freq = module.original_inv_freq


def reference(pair: Pair, prompt: list[int], **settings):
    """transformers' own `generate`: its new tokens, each hypothesis up to and with its end token, and their scores."""
    forget_short_texts(pair.oracle)
    device = next(pair.oracle.parameters()).device
    forget_longer_texts(pair.oracle)
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
