"""`config.json` of a GGUF model, with the setting names of Hugging Face transformers, from its metadata.

The names of metadata keys begin with the architecture, for example `llama.block_count`. Some settings that a family
needs are not in the metadata and are derived from the tensors: biases, a tied output matrix, the number of rows of a
table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weights.errors import GgufError
from weights.gguf.container import Gguf
from weights.gguf.metadata import Metadata
from weights.gguf.rope import llama3_scaling, longrope, rope_scaling

_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
_POOLING_NONE = 0


HfConfig = dict[str, Any]


def _decoder(of: Metadata, **more: Any) -> HfConfig:
    """The settings that all decoders have."""
    heads = of.integer("attention.head_count")
    if of.integer("attention.value_length", of.head_dim) != of.head_dim:
        raise of.error("attention.value_length", "differs from the length of keys, which is not supported")
    return {
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "num_hidden_layers": of.integer("block_count"),
        "intermediate_size": of.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": of.integer("attention.head_count_kv", heads),
        "head_dim": of.head_dim,
        "max_position_embeddings": of.integer("context_length"),
        "tie_word_embeddings": not of.has("output.weight"),
        **more,
    }


def _rotary(of: Metadata, **more: Any) -> HfConfig:
    """The settings of decoders whose heads rotate as a whole."""
    if of.integer("rope.dimension_count", of.head_dim) != of.head_dim:
        raise of.error("rope.dimension_count", "is not the width of a head, which is not supported")
    theta = of.number("rope.freq_base", 10000.0)
    scaling = rope_scaling(of) or llama3_scaling(of.gguf, theta, of.head_dim)
    return _decoder(of, rope_theta=theta, **({"rope_scaling": scaling} if scaling else {}), **more)


def _partly_rotary(of: Metadata, default_dim: int | None = None, **more: Any) -> HfConfig:
    """The settings of decoders that rotate only a part of each head."""
    share = of.integer("rope.dimension_count", default_dim or of.head_dim) / of.head_dim
    settings = _decoder(of, rope_theta=of.number("rope.freq_base", 10000.0), partial_rotary_factor=share, **more)
    scaling = rope_scaling(of)
    return {**settings, **({"rope_scaling": scaling} if scaling else {})}


def _rms(of: Metadata) -> HfConfig:
    return {"rms_norm_eps": of.number("attention.layer_norm_rms_epsilon")}


def _layer_eps(of: Metadata) -> float:
    return of.number("attention.layer_norm_epsilon")


def _window(of: Metadata) -> int | None:
    """The sliding window, None for full attention, which some files write as zero."""
    return of.integer("attention.sliding_window", 0) or None


def _llama(of: Metadata) -> HfConfig:
    biases = {"attention_bias": of.has("blk.0.attn_q.bias"), "mlp_bias": of.has("blk.0.ffn_up.bias")}
    if of.integer("expert_count", 0):
        return _rotary(
            of,
            model_type="mixtral",
            num_local_experts=of.integer("expert_count"),
            num_experts_per_tok=of.integer("expert_used_count"),
            sliding_window=_window(of),
            **_rms(of),
        )
    if _window(of) is not None:
        return _rotary(of, model_type="mistral", sliding_window=_window(of), **_rms(of))
    return _rotary(of, model_type="llama", **biases, **_rms(of))


def _mistral(of: Metadata) -> HfConfig:
    if of.optional("attention.temperature_scale"):
        raise of.error("attention.temperature_scale", "is not supported")
    return _rotary(of, model_type="mistral", sliding_window=_window(of), **_rms(of))


def _qwen2(of: Metadata) -> HfConfig:
    return _rotary(of, model_type="qwen2", use_sliding_window=False, **_rms(of))


def _qwen3(of: Metadata) -> HfConfig:
    return _rotary(
        of, model_type="qwen3", use_sliding_window=False, attention_bias=of.has("blk.0.attn_q.bias"), **_rms(of)
    )


def _experts(of: Metadata) -> HfConfig:
    """Experts of Qwen. Layers without a router are dense."""
    layers = range(of.integer("block_count"))
    return {
        "num_experts": of.integer("expert_count"),
        "num_experts_per_tok": of.integer("expert_used_count"),
        "moe_intermediate_size": of.integer("expert_feed_forward_length", 0) or _expert_width(of),
        "mlp_only_layers": [layer for layer in layers if not of.has(f"blk.{layer}.ffn_gate_inp.weight")],
    }


def _expert_width(of: Metadata) -> int:
    """Width of an expert. Older files do not state it."""
    tensors = of.gguf.tensors.items()
    found = [tensor.shape for name, tensor in tensors if name.endswith(".ffn_gate_exps.weight")]
    if not found or len(found[0]) != 3:
        raise of.error("expert_feed_forward_length", "is missing")
    return found[0][1]


def _qwen2_moe(of: Metadata) -> HfConfig:
    shared = of.integer("expert_shared_feed_forward_length", 0) or of.integer("feed_forward_length")
    return _rotary(
        of,
        model_type="qwen2_moe",
        norm_topk_prob=False,
        shared_expert_intermediate_size=shared,
        use_sliding_window=False,
        **_experts(of),
        **_rms(of),
    )


def _qwen3_moe(of: Metadata) -> HfConfig:
    return _rotary(
        of, model_type="qwen3_moe", norm_topk_prob=True, use_sliding_window=False, **_experts(of), **_rms(of)
    )


def _gemma(of: Metadata) -> HfConfig:
    return _rotary(of, model_type="gemma", **_rms(of))


def _query_scalar(of: Metadata, largest: int) -> int:
    """Divisor of the scores, squared: the width of a head, except in the largest model, recognised by its layers.

    The metadata lacks it. Source: `llama-model.cpp` of https://github.com/ggml-org/llama.cpp.
    """
    if of.integer("block_count") == largest:
        return of.integer("embedding_length") // of.integer("attention.head_count")
    return of.head_dim


def _gemma2(of: Metadata) -> HfConfig:
    return _rotary(
        of,
        model_type="gemma2",
        sliding_window=of.integer("attention.sliding_window", 4096),
        attn_logit_softcapping=of.number("attn_logit_softcapping", 50.0),
        final_logit_softcapping=of.number("final_logit_softcapping", 30.0),
        query_pre_attn_scalar=_query_scalar(of, 46),
        **_rms(of),
    )


def _gemma3(of: Metadata) -> HfConfig:
    cap, pattern = of.optional("final_logit_softcapping"), of.gguf.get("gemma3.attention.sliding_window_pattern", 6)
    if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
        raise of.error("attention.sliding_window_pattern", "is not a number of layers")
    settings = _rotary(
        of,
        model_type="gemma3_text",
        sliding_window=of.integer("attention.sliding_window", 0) or None,
        sliding_window_pattern=pattern if _window(of) else 1,
        rope_local_base_freq=of.number("rope.freq_base_swa", 10000.0),
        query_pre_attn_scalar=_query_scalar(of, 62),
        **_rms(of),
    )
    settings["rope_theta"] = of.number("rope.freq_base", 1000000.0)
    return {**settings, **({} if cap is None else {"final_logit_softcapping": of.number("final_logit_softcapping")})}


def _phi2(of: Metadata) -> HfConfig:
    return _partly_rotary(of, model_type="phi", layer_norm_eps=_layer_eps(of))


def _phi3(of: Metadata) -> HfConfig:
    settings = _partly_rotary(of, model_type="phi3", sliding_window=_window(of), **_rms(of))
    settings["original_max_position_embeddings"] = of.integer(
        "rope.scaling.original_context_length", of.integer("context_length")
    )
    scaling = longrope(of, settings["original_max_position_embeddings"])
    return {**settings, **({"rope_scaling": scaling} if scaling else {})}


def _starcoder2(of: Metadata) -> HfConfig:
    return _rotary(
        of,
        model_type="starcoder2",
        norm_epsilon=_layer_eps(of),
        use_bias=of.has("blk.0.attn_q.bias"),
        sliding_window=_window(of),
    )


def _gpt2(of: Metadata) -> HfConfig:
    return {
        "model_type": "gpt2",
        "vocab_size": of.rows("token_embd.weight"),
        "n_embd": of.integer("embedding_length"),
        "n_layer": of.integer("block_count"),
        "n_head": of.integer("attention.head_count"),
        "n_inner": of.integer("feed_forward_length"),
        "n_positions": of.rows("position_embd.weight"),
        "layer_norm_epsilon": _layer_eps(of),
        "tie_word_embeddings": not of.has("output.weight"),
    }


def _gpt_neox(of: Metadata) -> HfConfig:
    return _partly_rotary(
        of,
        model_type="gpt_neox",
        layer_norm_eps=_layer_eps(of),
        use_parallel_residual=bool(of.optional("use_parallel_residual")),
    )


def _falcon(of: Metadata) -> HfConfig:
    """The `config.json` of Falcon. Its variants are recognised by their key heads and norms.

    Falcon 7B has one key head, Falcon 40B has groups of key heads and two norms, Falcon 2 has groups and one norm.
    """
    kv_heads = of.integer("attention.head_count_kv", 1)
    return _rotary(
        of,
        model_type="falcon",
        layer_norm_epsilon=_layer_eps(of),
        new_decoder_architecture=kv_heads > 1,
        num_kv_heads=kv_heads,
        multi_query=True,
        ffn_hidden_size=of.integer("feed_forward_length"),
        bias=of.has("blk.0.attn_qkv.bias"),
        **({"num_ln_in_parallel_attn": 2 if of.has("blk.0.attn_norm_2.weight") else 1} if kv_heads > 1 else {}),
    )


def _stablelm(of: Metadata) -> HfConfig:
    return _partly_rotary(
        of,
        model_type="stablelm",
        layer_norm_eps=_layer_eps(of),
        use_qkv_bias=of.has("blk.0.attn_q.bias"),
        qk_layernorm=of.has("blk.0.attn_q_norm.weight"),
        use_parallel_residual=not of.has("blk.0.ffn_norm.weight"),
    )


def _smollm3(of: Metadata) -> HfConfig:
    return _rotary(of, model_type="smollm3", **_rms(of))


def _encoder(of: Metadata, model_type: str) -> HfConfig:
    """The settings of BERT, and of NomicBERT, which rotates its heads instead of adding positions from a table.

    RoBERTa and XLM-RoBERTa have the same layers as BERT. Their files leave out the unused rows of the position table.
    """
    if of.integer("moe_every_n_layers", 0) or of.integer("expert_count", 0):
        raise of.error("expert_count", "is not supported for encoders")
    if any(of.has(name) for name in ("cls.weight", "cls.output.weight")):
        raise GgufError(f"{of.gguf.name!r} has a classification head, which is not supported in GGUF files")
    learned = of.has("position_embd.weight")
    return {
        "model_type": model_type,
        "architectures": ["BertModel" if model_type == "bert" else "NomicBertModel"],
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "num_hidden_layers": of.integer("block_count"),
        "num_attention_heads": of.integer("attention.head_count"),
        "intermediate_size": of.integer("feed_forward_length"),
        "max_position_embeddings": of.rows("position_embd.weight") if learned else of.integer("context_length"),
        "type_vocab_size": of.rows("token_types.weight"),
        "layer_norm_eps": _layer_eps(of),
        **({} if learned else {"rope_theta": of.number("rope.freq_base", 10000.0)}),
    }


def _bert(of: Metadata) -> HfConfig:
    return _encoder(of, "bert")


def _nomic_bert(of: Metadata) -> HfConfig:
    return _encoder(of, "nomic_bert")


ARCHITECTURES: Mapping[str, Callable[[Metadata], HfConfig]] = {
    "llama": _llama,
    "mistral3": _mistral,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi2": _phi2,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "falcon": _falcon,
    "stablelm": _stablelm,
    "smollm3": _smollm3,
    "bert": _bert,
    "nomic-bert": _nomic_bert,
}
"""Functions that build `config.json` from the metadata, by `general.architecture`."""


def hf_config(gguf: Gguf) -> HfConfig:
    """The contents of `config.json`. Raises GgufError for an architecture that is not supported."""
    if gguf.get("general.type", "model") != "model":
        raise GgufError(f"{gguf.name!r} is not a model: 'general.type' is {str(gguf.get('general.type'))[:40]!r}")
    of = Metadata(gguf)
    build = ARCHITECTURES.get(of.architecture)
    if build is None:
        supported = ", ".join(ARCHITECTURES)
        raise GgufError(
            f"{gguf.name!r}: architecture {of.architecture[:40]!r} is not supported in GGUF files, only {supported}"
        )
    if of.optional("attention.causal") is False and "bert" not in of.architecture:
        raise of.error("attention.causal", "is false, which is not supported for decoders")
    return build(of)


def pooling(gguf: Gguf) -> str | None:
    """How the model makes one vector of a text, with the names of sentence-transformers; None if the file does not
    state it.

    Raises GgufError for a model that ranks texts.
    """
    of = Metadata(gguf)
    kind = of.integer("pooling_type", _POOLING_NONE)
    if kind == _POOLING_NONE:
        return None
    if kind not in _POOLING:
        raise of.error("pooling_type", "is not supported, only mean, cls and last")
    return _POOLING[kind]
