"""GPT-BigCode (Ben Allal et al. 2023, arXiv:2301.03988; StarCoder, arXiv:2305.06161): GPT-2 with one key-value head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    LearnedPositions,
    ModelConfig,
    NormConfig,
    NormSlots,
    StackConfig,
)
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields, head_width
from models.families.shared.gguf import GgufFamily, Settings, layer_eps
from models.families.shared.language_model import language_model, token_rules
from models.families.shared.megatron_layers import fused_projection_rules
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf)
    fields.refuse_unless("add_cross_attention", False)
    hidden, heads = fields.integer("n_embd", 768), fields.integer("n_head", 12)
    head_dim, norm = head_width(hidden, heads), NormConfig("layer", fields.number("layer_norm_epsilon", 1e-5))
    # These two settings only affect rounding in half precision. The softmax is always float32 here.
    for name in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        fields.flag(name, True)
    layer = LayerConfig(
        AttentionConfig(
            num_heads=heads,
            num_kv_heads=1 if fields.flag("multi_query", True) else heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0,
            causal=True,
        ),
        NormSlots(input=norm),
        FeedForwardConfig(
            fields.integer("n_inner", 4 * hidden), fields.activation("activation_function", "gelu_pytorch_tanh")
        ),
        NormSlots(input=norm),
    )
    positions = fields.integer("n_positions", 1024)
    embedding = EmbeddingConfig(fields.integer("vocab_size", 50257), positions=LearnedPositions(positions))
    decoder = StackConfig(embedding, (layer,) * fields.integer("n_layer", 12), final_norm=norm)
    return language_model(fields, hidden, decoder, positions, default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    assert model.decoder is not None
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    return (
        *token_rules(model, r"transformer\.wte"),
        Rename(r"transformer\.wpe\.weight", "decoder.embedding.positions.weight"),
        Rename(layer + r"ln_1\.(weight|bias)", ours + r"attention_norms.input.\2"),
        *fused_projection_rules(layer + r"attn\.c_attn", ours + "attention", model.decoder.first_attention),
        Rename(layer + r"attn\.c_proj\.(weight|bias)", ours + r"attention.output.\2"),
        Rename(layer + r"ln_2\.(weight|bias)", ours + r"feed_forward_norms.input.\2"),
        Rename(layer + r"mlp\.c_fc\.(weight|bias)", ours + r"feed_forward.up.\2"),
        Rename(layer + r"mlp\.c_proj\.(weight|bias)", ours + r"feed_forward.down.\2"),
        Rename(r"transformer\.ln_f\.(weight|bias)", r"decoder.final_norm.\1"),
    )


def gguf_settings(of: Metadata) -> Settings:
    return {
        "model_type": "gpt_bigcode",
        "vocab_size": of.rows("token_embd.weight"),
        "n_embd": of.integer("embedding_length"),
        "n_layer": of.layers,
        "n_head": of.integer("attention.head_count"),
        "multi_query": of.integer("attention.head_count_kv") == 1,
        "n_inner": of.rows("blk.0.ffn_up.weight"),
        "n_positions": of.rows("position_embd.weight"),
        "layer_norm_epsilon": layer_eps(of),
        "tie_word_embeddings": not of.has("output.weight"),
    }


FAMILY = decoder_family(
    "gpt_bigcode",
    "GPTBigCode",
    config,
    rules,
    answers=False,
    prefix=r"transformer\.",
    gguf=GgufFamily({"starcoder": gguf_settings}),
)
