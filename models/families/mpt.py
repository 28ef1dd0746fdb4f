"""MPT (MosaicML 2023): pre-norm decoder with ALiBi and without biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AlibiConfig,
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.alibi import mpt_slopes
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps
from models.families.shared.language_model import language_model, token_rules
from models.families.shared.published_code import PublishedCode
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule, Split

_ALIBI_BIAS = 8.0
_CODE = PublishedCode("mosaicml", "mpt", "MPT")


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, published_code=_CODE)
    fields.refuse_unless("expansion_ratio", 4)
    fields.refuse_unless("no_bias", True)
    # RMS norms are refused: their tensors look like those of a layer norm without biases.
    fields.refuse_unless("norm_type", "low_precision_layernorm", "layernorm")
    fields.refuse_unless("logit_scale")
    hidden, heads = fields.integer("d_model", 2048), fields.integer("n_heads", 16)
    norm = NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5), bias=False)
    attention_fields = _attention_fields(hf)
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=head_width(hidden, heads),
            scale=attention_fields.optional_positive("softmax_scale") or head_width(hidden, heads) ** -0.5,
            causal=True,
            query_bias=False,
            key_bias=False,
            value_bias=False,
            output_bias=False,
            clip=None if attention_fields.number("clip_qkv", 0.0) == 0 else attention_fields.positive("clip_qkv"),
        ),
        attention_norms=NormSlots(input=norm),
        feed_forward=FeedForwardConfig(4 * hidden, "gelu", bias=False),
        feed_forward_norms=NormSlots(input=norm),
    )
    decoder = StackConfig(
        EmbeddingConfig(fields.integer("vocab_size", 50368)),
        (layer,) * fields.integer("n_layers", 24),
        final_norm=norm,
        score_bias=AlibiConfig(mpt_slopes(heads)),
    )
    return language_model(fields, hidden, decoder, fields.integer("max_seq_len", 2048), default_tied=True)


def _attention_fields(hf: Mapping[str, Any]) -> Fields:
    """The settings in `attn_config`. Raises ConfigError if it is no object or a setting has an unsupported value."""
    inner = hf.get("attn_config") or {}
    if not isinstance(inner, dict):
        raise ConfigError("'attn_config' must be an object")
    fields = Fields(inner)
    fields.refuse_unless("attn_type", "multihead_attention")
    fields.refuse_unless("alibi", True)
    fields.refuse_unless("alibi_bias_max", 8)
    for name in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        fields.refuse_unless(name, False)
    return fields


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"transformer\.blocks\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"transformer\.wte"),
        Rename(layer + r"norm_1\.weight", ours + "attention_norms.input.weight"),
        Split(layer + r"attn\.Wqkv\.weight", [f"{ours}attention.{name}.weight" for name in ("query", "key", "value")]),
        Rename(layer + r"attn\.out_proj\.weight", ours + "attention.output.weight"),
        Rename(layer + r"norm_2\.weight", ours + "feed_forward_norms.input.weight"),
        Rename(layer + r"ffn\.up_proj\.weight", ours + "feed_forward.up.weight"),
        Rename(layer + r"ffn\.down_proj\.weight", ours + "feed_forward.down.weight"),
        Rename(r"transformer\.norm_f\.weight", "decoder.final_norm.weight"),
    )


def gguf_settings(of: Metadata) -> Settings:
    clip = of.optional("attention.clamp_kqv")
    if of.number("attention.max_alibi_bias", 0.0) != _ALIBI_BIAS:
        raise of.error("attention.max_alibi_bias", f"is not {_ALIBI_BIAS:g}, which is not supported")
    return {
        "model_type": "mpt",
        "vocab_size": of.rows("token_embd.weight"),
        "d_model": of.integer("embedding_length"),
        "n_layers": of.layers,
        "n_heads": of.integer("attention.head_count"),
        "max_seq_len": of.integer("context_length"),
        "layer_norm_epsilon": layer_eps(of),
        "attn_config": {"clip_qkv": None if clip is None else of.number("attention.clamp_kqv")},
        "tie_word_embeddings": not of.has("output.weight"),
    }


FAMILY = decoder_family(
    "mpt",
    "Mpt",
    config,
    rules,
    generating=("MptForCausalLM", "MPTForCausalLM"),
    prefix=r"transformer\.",
    gguf=GgufFamily({"mpt": gguf_settings}),
)
