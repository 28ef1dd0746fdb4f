"""T5Gemma 2 (Zhang et al. 2025, arXiv:2512.14856): an encoder and a decoder with the layers of Gemma 3.

The decoder attends to its own tokens and to the encoder output in one softmax. Encoder and decoder share one token
table. Checkpoints are served without their vision part, which changes nothing for requests without a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    JointAttentionConfig,
    LanguageModelHead,
    LayerConfig,
    ModelConfig,
    NormSlots,
    OwnVectorEmbeddingConfig,
    QueryKeyNorm,
    StackConfig,
)
from models.config.sparse_attention import BandedAttentionConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config, scaled_max_positions, with_rope_of
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, rms_norm
from models.families.shared.t5_layers import TOKENS
from models.families.shared.windows import patterned_windows
from weights.rules import Drop, Rename, Rule

_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "head_dim": 256,
    "query_pre_attn_scalar": 256.0,
    "rms_norm_eps": 1e-06,
}
_END_OF_IMAGE = 256000


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    whole = _part(hf, "encoder")
    sides = {"encoder": _part(whole, "text_config"), "decoder": _part(hf, "decoder")}
    end_of_image = Fields(whole).integer("eoi_token_index", _END_OF_IMAGE, least=0)
    (encoder, max_source), (decoder, max_positions) = (
        _stack(settings, side, end_of_image) for side, settings in sides.items()
    )
    own, source = (Fields(sides[side], defaults=_DEFAULTS) for side in ("decoder", "encoder"))
    for name in ("hidden_size", "vocab_size"):
        if own.integer(name) != source.integer(name):
            raise ConfigError(f"{name!r} of the decoder, {own.integer(name)}, must be that of the encoder")
    Fields(hf).refuse_unless("tie_word_embeddings", True)
    return ModelConfig(
        hidden_size=own.integer("hidden_size"),
        vocab_size=own.integer("vocab_size"),
        head=LanguageModelHead(tied=True, cap=own.optional_positive("final_logit_softcapping")),
        encoder=encoder,
        decoder=decoder,
        shared_embeddings=True,
        max_positions=max_positions,
        max_source_positions=max_source,
    )


def _part(hf: Mapping[str, Any], name: str) -> dict[str, Any]:
    settings = hf.get(name)
    if not isinstance(settings, dict):
        raise ConfigError(f"{name!r} must be an object")
    return settings


def _stack(settings: dict[str, Any], side: str, end_of_image: int) -> tuple[StackConfig, int]:
    """The configuration of the encoder or the decoder, and its longest text in tokens.

    side: `encoder` or `decoder`.
    end_of_image: id of the token whose vector is stored outside the token table.
    """
    settings = {**settings, "hidden_act": settings.get("hidden_activation") or "gelu_pytorch_tanh"}
    Fields(settings).refuse_unless("attn_logit_softcapping", None)
    bases = {"full_attention": 1000000.0, "sliding_attention": 10000.0}
    by_type = {
        name: Fields(with_rope_of(settings, name, settings.get(older) or bases[name]), defaults=_DEFAULTS)
        for name, older in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq"))
    }
    own = by_type["full_attention"]
    head_dim, bias, norm = head_dim_of(own), own.flag("attention_bias", False), rms_norm(own, "rms_from_one")
    ropes = {name: rope_config(fields, head_dim) for name, fields in by_type.items()}
    norms, feed_forward = NormSlots(input=norm, output=norm), gated_feed_forward(own)

    def attention(window: int | None) -> AttentionConfig:
        shared: dict[str, Any] = {
            "num_heads": own.integer("num_attention_heads"),
            "num_kv_heads": own.integer("num_key_value_heads"),
            "head_dim": head_dim,
            "scale": own.positive("query_pre_attn_scalar") ** -0.5,
            "causal": side == "decoder",
            **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), bias),
            "rope": ropes["full_attention" if window is None else "sliding_attention"],
            "query_key_norm": QueryKeyNorm(norm),
        }
        if side == "decoder":
            return JointAttentionConfig(**shared, window=window)
        if window is None:
            return AttentionConfig(**shared)
        # The encoder's window includes the query. If its width is even, it has one token more after the query.
        return BandedAttentionConfig(**shared, window=window // 2 + 1, back_window=(window + 1) // 2)

    vocab, width = own.integer("vocab_size"), own.integer("hidden_size")
    embedding = EmbeddingConfig(vocab, width**0.5)
    if end_of_image < vocab:
        embedding = OwnVectorEmbeddingConfig(vocab, width**0.5, token_id=end_of_image)
    windows = patterned_windows(own, own.optional_integer("sliding_window", absent=4096), default=6)
    layers = tuple(LayerConfig(attention(window), norms, feed_forward, norms) for window in windows)
    limit = min(scaled_max_positions(rope, own.integer("max_position_embeddings", 131072)) for rope in ropes.values())
    return StackConfig(embedding, layers, final_norm=norm), limit


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    side = r"model\.(encoder|decoder)\.(?:text_model\.)?"
    layer, ours = side + r"layers\.(\d+)\.", r"\1.layers.\2."
    parts = {"q": "query", "k": "key", "v": "value", "o": "output"}
    norms = {"self_attn": "attention", "feedforward": "feed_forward"}
    return (
        # The head and both stacks have the same table.
        Rename(r"(?:" + side + r"embed_tokens|lm_head\.out_proj)\.weight", TOKENS),
        Rename(side + r"embed_tokens\.eoi_embedding", r"\1.embedding.own_vector"),
        *(
            Rename(layer + rf"self_attn\.{short}_proj\.(weight|bias)", ours + rf"attention.{long}.\3")
            for short, long in parts.items()
        ),
        Rename(layer + r"self_attn\.q_norm\.weight", ours + "attention.query_norm.weight"),
        Rename(layer + r"self_attn\.k_norm\.weight", ours + "attention.key_norm.weight"),
        *(
            Rename(layer + rf"{when}_{theirs}_layernorm\.weight", ours + f"{name}_norms.{slot}.weight")
            for theirs, name in norms.items()
            for when, slot in (("pre", "input"), ("post", "output"))
        ),
        Rename(layer + r"mlp\.(gate|up|down)_proj\.weight", ours + r"feed_forward.\3.weight"),
        Rename(side + r"norm\.weight", r"\1.final_norm.weight"),
        Drop(r"model\.encoder\.(?:vision_tower|multi_modal_projector)\..*"),
    )


FAMILY = Family(
    name="t5gemma2",
    model_types=("t5gemma2",),
    architectures={"T5Gemma2ForConditionalGeneration": ("generate",)},
    config=_config,
    rules=_rules,
    tied_if_absent={"decoder.embedding.own_vector": "encoder.embedding.own_vector"},
    refused_dtypes={"float16": "Gemma 3's residual stream can exceed float16; use bfloat16 or float32"},
)
