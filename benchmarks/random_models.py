"""Models with random weights, batches for them, and the least bytes and operations that a step needs.

Speed depends on shapes, not on values. A model is created on its device, without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from models.config import MixtureOfExpertsConfig
from models.families import family_of
from models.stack import Stack
from models.steps.batch import AudioBatch, DecoderBatch, EncoderBatch
from models.steps.kv_cache import KVCache
from models.transformer import Transformer

BLOCK_SIZE = 32

_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _bart(hidden: int, layers: int, heads: int, middle: int) -> dict[str, Any]:
    """Sizes of an encoder and a decoder of the same size, as BART names them."""
    sides = ("encoder", "decoder")
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": middle}
    return {"d_model": hidden} | {f"{side}_{name}": size for side in sides for name, size in sizes.items()}


def _whisper(hidden: int, layers: int, heads: int, middle: int, mels: int, vocab: int) -> dict[str, Any]:
    names = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    return names | _bart(hidden, layers, heads, middle) | {"num_mel_bins": mels, "vocab_size": vocab}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama-1b": _LLAMA
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
    | {"tie_word_embeddings": True},
    "llama-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128}
    | {"tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12}
    | {"n_positions": 1024, "vocab_size": 50257},
    "t5-large": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 1024, "d_kv": 64}
    | {"d_ff": 4096, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 16, "vocab_size": 32128}
    | {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "relu"}
    | {"tie_word_embeddings": True},
    "bert-base": {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512, "vocab_size": 30522},
    "nllb-600m": {"model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"], "vocab_size": 256206}
    | _bart(1024, 12, 16, 4096)
    | {"activation_function": "relu", "max_position_embeddings": 1024, "scale_embedding": True},
    "whisper-small": _whisper(768, 12, 12, 3072, 80, 51865),
    "whisper-large-v3": _whisper(1280, 32, 20, 5120, 128, 51866),
    "moe-7b": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 50304}
    | {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16}
    | {"head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024}
    | {"max_position_embeddings": 8192},
}
"""Contents of `config.json` by name of the shape."""

ENCODER_DECODERS = frozenset({"t5-large", "nllb-600m"})
"""Names of the shapes in `CONFIGS` that are encoder-decoders."""

_TINY_LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 400}
_TINY_LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2}
_TINY: dict[str, dict[str, Any]] = {
    "llama-1b": _TINY_LLAMA,
    "llama-8b": _TINY_LLAMA,
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 400},
    "t5-large": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    | {"vocab_size": 400},
    "bert-base": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    | {"vocab_size": 400},
    "nllb-600m": _bart(64, 2, 4, 128) | {"vocab_size": 400},
    "whisper-small": _bart(64, 2, 4, 128) | {"num_mel_bins": 16, "vocab_size": 400},
    "whisper-large-v3": _bart(64, 2, 4, 128) | {"num_mel_bins": 16, "vocab_size": 400},
    "moe-7b": _TINY_LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


def config_of(shape: str, tiny: bool = False) -> dict[str, Any]:
    """Contents of `config.json` for a shape. tiny: return a model of the same family with few parameters instead."""
    return CONFIGS[shape] | (_TINY[shape] if tiny else {})


def random_model(hf: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Transformer:
    """A model whose weights are small random numbers, so that no value overflows. Biases are 0, and norm weights 1.

    hf: contents of `config.json`.
    """
    family, architecture = family_of(hf)
    with torch.device("meta"):
        model = Transformer(family.config(hf, architecture))
    model = model.to(dtype).to_empty(device=device)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=0.02)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    model.attention_dtype = dtype
    return model


class Cost(NamedTuple):
    """Lower bounds of a step: the number of bytes to read, and the number of multiplications plus additions."""

    bytes: float
    operations: float

    def seconds(self, bytes_per_second: float, operations_per_second: float) -> float:
        """The shortest possible time in seconds: the longer of the time to read and the time to compute."""
        return max(self.bytes / bytes_per_second, self.operations / operations_per_second)


def layers_cost(model: Transformer, stack: Stack, tokens: int, keys: int, outputs: int) -> Cost:
    """Least cost of a stack's layers and of the model's head in one step.

    The bytes are those of the weights. Embedding tables count only if they are also the head's matrix. The key and
    value matrices of cross-attention do not count, because a step reads their results from a cache. A mixture of
    experts computes some experts for each token, and reads those that a token chooses, on average.

    tokens: number of tokens in the step. keys: number of keys that a token attends to, summed over the tokens.
    outputs: number of rows of logits; 0 for a step without a head.
    """
    size = elements = 0.0
    for name, parameter in stack.named_parameters():
        parts = name.split(".")
        if parts[0] == "embedding" or ("cross_attention" in parts and parts[-2] in ("key", "value")):
            continue
        computed = read = 1.0
        if "experts" in parts:
            experts = stack.config.layers[int(parts[1])].feed_forward
            assert isinstance(experts, MixtureOfExpertsConfig)
            computed = experts.experts_per_token / experts.num_experts
            read = 1 - (1 - computed) ** tokens
        size += parameter.nbytes * read
        elements += parameter.numel() * computed if parameter.dim() > 1 else 0
    operations = 2 * elements * tokens
    if outputs:
        head = [parameter for parameter in model.head.parameters() if parameter.dim() > 1] if model.head else []
        table = head or [stack.tokens.weight]
        size += sum(parameter.nbytes for parameter in table)
        operations += 2 * outputs * sum(parameter.numel() for parameter in table)
    attention = stack.config.first_attention
    operations += 4 * len(stack.layers) * attention.num_heads * attention.head_dim * keys
    return Cost(size, operations)


def decode_cost(model: Transformer, rows: int, context: int, source: int, kv_dtype: torch.dtype) -> Cost:
    """Least cost of a decode step: the weights, and the keys and values of all rows.

    Must be called before the weights are packed.

    rows: number of rows. context: tokens of each row. source: source tokens of each row; 0 without an encoder.
    """
    assert model.decoder is not None
    layers = layers_cost(model, model.decoder, rows, rows * (context + source), rows)
    caches = rows * context * KVCache.block_bytes(model.self_attention_layers(), 1, kv_dtype)
    caches += rows * source * KVCache.block_bytes(model.cross_attention_layers(), 1, kv_dtype)
    return Cost(layers.bytes + caches, layers.operations)


def random_cache(model: Transformer, rows: int, context: int, dtype: torch.dtype, cross: bool = False) -> KVCache:
    """A KV cache for `rows` rows of `context` tokens, filled with random numbers.

    cross: whether it is the cache of cross-attention, not of self-attention.
    """
    layers = model.cross_attention_layers() if cross else model.self_attention_layers()
    cache = KVCache(layers, rows * -(-context // BLOCK_SIZE), BLOCK_SIZE, dtype, model.device)
    for tensor in cache.tensors:
        tensor.normal_()
    return cache


def decode_batch(
    rows: int,
    context: int,
    block_size: int,
    device: torch.device,
    vocab_size: int = 1000,
    source: int = 0,
) -> DecoderBatch:
    """Batch with one new, random token for each row. Every row has `context - 1` tokens in the cache.

    source: source tokens of each row in the cross-attention cache; 0 without an encoder.
    """
    tables = _tables(rows, context, block_size, device)
    last = context - 1
    return DecoderBatch(
        token_ids=torch.randint(vocab_size, (rows,), device=device),
        positions=torch.full((rows,), last, device=device),
        query_lens=(1,) * rows,
        key_lens=(context,) * rows,
        slot_mapping=tables[:, last // block_size] * block_size + last % block_size,
        block_tables=tables,
        source_lens=(source,) * rows if source else (),
        source_block_tables=_tables(rows, source, block_size, device) if source else None,
    )


def prefill_batch(tokens: int, device: torch.device, vocab_size: int) -> DecoderBatch:
    """Batch with one prompt of random tokens, for which only the last token's output is computed."""
    return DecoderBatch(
        token_ids=torch.randint(vocab_size, (tokens,), device=device),
        positions=torch.arange(tokens, device=device),
        query_lens=(tokens,),
        key_lens=(tokens,),
        slot_mapping=torch.arange(tokens, device=device),
        block_tables=_tables(1, tokens, BLOCK_SIZE, device),
        output_lens=(1,),
    )


def encoder_batch(texts: int, length: int, device: torch.device, vocab_size: int) -> EncoderBatch:
    """Batch of texts of random tokens, all of the same length."""
    return EncoderBatch(torch.randint(vocab_size, (texts * length,), device=device), (length,) * texts)


def recordings_batch(recordings: int, frames: int, num_mels: int, device: torch.device) -> AudioBatch:
    """Batch of recordings with random log-mel frames, all of the same length."""
    return AudioBatch(torch.randn(recordings * frames, num_mels, device=device), (frames,) * recordings)


def _tables(rows: int, length: int, block_size: int, device: torch.device) -> torch.Tensor:
    """Block tables with consecutive blocks for each row: [rows, blocks], int64. length: tokens of each row."""
    width = -(-length // block_size)
    return torch.arange(rows * width, device=device).view(rows, width)
