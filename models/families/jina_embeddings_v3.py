"""Jina Embeddings 3 (Sturua et al. 2024, arXiv:2409.10173): XLM-RoBERTa with rotary positions.

The first checkpoints come with their own code and hold a LoRA adapter for each task; see docs/adapters.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    NormConfig,
    StackConfig,
)
from models.families.shared.bert_config import architectures, encoder_head, post_norm_layer
from models.families.shared.bert_rules import TOKENS, norm, roberta_head_rules
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, encoder_settings
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule, Split

_PREFIX = r"(?:roberta\.)?"
_WEIGHT = r"\.(?:parametrizations\.weight\.original|weight)"
"""Regular expression for the end of a weight's name, which is longer in checkpoints that hold adapters."""
PUBLISHED_CODE = PublishedCode(
    "jinaai",
    "xlm_roberta",
    "XLMRoberta",
    others=("configuration_xlm_roberta.XLMRobertaFlashConfig", "modeling_lora.XLMRobertaLoRA"),
)
_DEFAULTS = {
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    published = Fields(hf, PUBLISHED_CODE)
    published.refuse_unless("position_embedding_type", "rotary")
    published.refuse_unless("emb_pooler", None)
    published.refuse_unless("truncate_dim", None)
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    if settings.get("rope_theta") is None and "rotary_emb_base" in settings:
        settings["rope_theta"] = settings["rotary_emb_base"]
    fields = Fields(settings, defaults=_DEFAULTS)
    if fields.raw("rope_theta") != fields.raw("rotary_emb_base", fields.raw("rope_theta")):
        raise ConfigError("'rotary_emb_base' and 'rope_theta' differ")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim, layer_norm = head_width(hidden, heads), NormConfig("layer", fields.number("layer_norm_eps"))
    rope = rope_config(fields, head_dim, 20000.0)
    layer = post_norm_layer(
        AttentionConfig(heads, heads, head_dim, head_dim**-0.5, causal=False, rope=rope),
        FeedForwardConfig(fields.integer("intermediate_size"), fields.activation("hidden_act")),
        layer_norm,
    )
    embedding = EmbeddingConfig(
        fields.integer("vocab_size"), num_token_types=fields.integer("type_vocab_size"), norm=layer_norm
    )
    return ModelConfig(
        hidden,
        embedding.vocab_size,
        encoder_head(fields, architecture, MaskedLanguageModelHead("gelu", layer_norm), dense="tanh"),
        encoder=StackConfig(embedding, (layer,) * fields.integer("num_hidden_layers")),
        max_positions=scaled_max_positions(rope, fields.integer("max_position_embeddings")),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = rf"{_PREFIX}(?:encoder\.)?layers\.(\d+)\.", r"encoder.layers.\1."
    projections = [f"{ours}attention.{part}" for part in ("query", "key", "value")]
    return (
        Rename(rf"{_PREFIX}embeddings\.word_embeddings{_WEIGHT}", TOKENS),
        Rename(rf"{_PREFIX}embeddings\.token_type_embeddings{_WEIGHT}", "encoder.embedding.token_types.weight"),
        *norm(rf"{_PREFIX}(?:embeddings\.LayerNorm|emb_ln)", "encoder.embedding.norm"),
        *(
            rule
            for theirs, name in zip("qkv", projections, strict=True)
            for rule in _linear(rf"{layer}self_attn\.{theirs}_proj", name)
        ),
        Split(rf"{layer}mixer\.Wqkv{_WEIGHT}", [f"{name}.weight" for name in projections]),
        Split(rf"{layer}mixer\.Wqkv\.bias", [f"{name}.bias" for name in projections]),
        *_linear(rf"{layer}(?:self_attn\.o_proj|mixer\.out_proj)", f"{ours}attention.output"),
        *norm(rf"{layer}(?:post_attention_layernorm|norm1)", f"{ours}attention_norms.residual"),
        *_linear(rf"{layer}mlp\.fc1", f"{ours}feed_forward.up"),
        *_linear(rf"{layer}mlp\.fc2", f"{ours}feed_forward.down"),
        *norm(rf"{layer}(?:post_mlp_layernorm|norm2)", f"{ours}feed_forward_norms.residual"),
        Drop(rf"{_PREFIX}pooler\..*|.*\.parametrizations\.weight\.0\.lora_[AB]"),
        *roberta_head_rules(model.head),
    )


def _linear(pattern: str, name: str) -> tuple[Rule, Rule]:
    """Rules for the weight and the bias of a linear layer.

    pattern: regular expression for the layer's name in the checkpoint. name: its name in the model.
    """
    return Rename(rf"{pattern}{_WEIGHT}", f"{name}.weight"), Rename(rf"{pattern}\.bias", f"{name}.bias")


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file, without the adapters, which are separate files."""
    return encoder_settings(of, "jina_embeddings_v3", "JinaEmbeddingsV3Model")


FAMILY = Family(
    name="jina_embeddings_v3",
    model_types=("jina_embeddings_v3",),
    # The published code has the class names of XLM-RoBERTa.
    architectures=architectures("JinaEmbeddingsV3") | {"XLMRobertaModel": ("embed",), "XLMRobertaLoRA": ("embed",)},
    config=_config,
    rules=_rules,
    published_as={"xlm-roberta": PUBLISHED_CODE},
    gguf=GgufFamily({"jina-bert-v3": gguf_settings}),
)
