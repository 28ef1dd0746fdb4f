"""The text part of Gemma 4, which two families of checkpoints share.

It is Gemma 3 with a learned factor on each layer's output and with normed attention values. Some checkpoints also have
layers that reuse the keys and values of an earlier layer, layers whose values are their keys before the norm, and an
additional embedding vector per token for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    AttentionConfig,
    ConfigError,
    EmbeddingConfig,
    FeedForwardSumConfig,
    LanguageModelHead,
    LayerInputConfig,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    PerLayerEmbeddingConfig,
    QueryKeyNorm,
    RopeConfig,
    RouterConfig,
    StackConfig,
)
from models.families.shared.fields import Fields
from models.families.shared.gguf import Settings, decoder_settings, has_bias, num_experts, rms_eps
from models.families.shared.rename_rules import renamed
from models.families.shared.rope import rope_config, scaled_max_positions, with_rope_of
from models.families.shared.rotary_decoder import gated_feed_forward, rms_norm, rotary_rules
from models.families.shared.text_part import text_settings
from models.families.shared.transposed_experts import by_expert
from models.families.shared.windows import key_value_layers, windows_by_type
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "rms_norm_eps": 1e-06,
}
_FULL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25}


def gemma4_config(
    hf: Mapping[str, Any], multimodal: bool, *, default_max_positions: int, window: int, default_input_width: int = 0
) -> ModelConfig:
    """Configuration of the text part of a checkpoint.

    multimodal: whether `hf` describes a checkpoint with other parts besides the text part.
    default_max_positions: default of `max_position_embeddings`.
    window: default of `sliding_window`.
    default_input_width: default of `hidden_size_per_layer_input`, the width of the additional embedding vector of each
        layer; 0 for no such vectors.
    """
    text = {**_DEFAULTS, **(text_settings(hf) if multimodal else hf)}
    text["hidden_act"] = text.get("hidden_activation") or "gelu_pytorch_tanh"
    fields = Fields({**text, "rope_parameters": None, "rope_scaling": None})
    # With "vision", only the tokens of a picture attend to later ones.
    fields.refuse_unless("use_bidirectional_attention", "vision")
    Fields(hf).refuse_unless("rope_scaling")
    Fields(text).refuse_unless("rope_scaling")
    norm, width = rms_norm(fields), fields.integer("hidden_size")
    input_width = fields.integer("hidden_size_per_layer_input", default_input_width, least=0) or None
    vocab = fields.integer("vocab_size")
    per_layer = None
    if input_width is not None:
        rows = fields.integer("vocab_size_per_layer_input", 262144)
        per_layer = PerLayerEmbeddingConfig(rows, input_width, norm)
        if rows < vocab:
            raise ConfigError(f"'vocab_size_per_layer_input' must be at least the vocabulary of {vocab} tokens")
    windows = _windows(fields, window)
    attentions = _attentions(fields, text, norm, windows)
    shared_width = 2 if fields.flag("use_double_wide_mlp", False) else 1
    activation = fields.activation("hidden_act")

    def layer(attention: AttentionConfig) -> LayerInputConfig:
        times = 1 if attention.key_value_layer is None else shared_width
        norms = NormSlots(input=norm, output=norm)
        dense = gated_feed_forward(fields, times * fields.integer("intermediate_size"))
        mixture = _mixture(fields, norm) if fields.flag("enable_moe_block", False) else None
        return LayerInputConfig(
            attention,
            norms,
            dense if mixture is None else FeedForwardSumConfig(((dense, norms), (mixture, norms))),
            norms if mixture is None else NormSlots(output=norm),
            input_width=input_width,
            activation=activation,
            input_norm=None if input_width is None else norm,
            output_scale=True,
        )

    ropes = [attention.rope for attention in attentions if attention.rope is not None]
    positions = fields.integer("max_position_embeddings", default_max_positions)
    return ModelConfig(
        hidden_size=width,
        vocab_size=vocab,
        head=LanguageModelHead(
            tied=fields.flag("tie_word_embeddings", True), cap=fields.optional_positive("final_logit_softcapping")
        ),
        decoder=StackConfig(
            EmbeddingConfig(vocab, width**0.5),
            tuple(layer(attention) for attention in attentions),
            final_norm=norm,
            per_layer=per_layer,
        ),
        max_positions=min(scaled_max_positions(rope, positions) for rope in ropes),
    )


def _mixture(fields: Fields, norm: NormConfig) -> MixtureOfExpertsConfig:
    """The mixture of experts that runs in parallel to the dense feed-forward of a layer."""
    return MixtureOfExpertsConfig(
        gated_feed_forward(fields, fields.integer("moe_intermediate_size")),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("top_k_experts"),
        router=RouterConfig(normalized=True, input_norm=norm, expert_scale=True),
    )


def _windows(fields: Fields, default: int) -> list[int | None]:
    """Sliding window of each layer in tokens, None for full attention. The last layer always has full attention.

    default: width of the windows if the file has no `sliding_window`.
    """
    windows = windows_by_type(fields, fields.integer("sliding_window", default), lambda index: index % 6 == 5)
    return [*windows[:-1], None]


def _attentions(
    fields: Fields, text: Mapping[str, Any], norm: NormConfig, windows: Sequence[int | None]
) -> list[AttentionConfig]:
    kv_heads, bias = fields.integer("num_key_value_heads", 4), fields.flag("attention_bias", False)
    same_values = fields.flag("attention_k_eq_v", False)
    full_heads = fields.integer("num_global_key_value_heads", kv_heads) if same_values else kv_heads
    shapes = head_shapes(fields, windows, full_heads)
    sources = key_value_layers(windows, fields.integer("num_kv_shared_layers", 0, least=0))
    attentions: list[AttentionConfig] = []
    for window, (head_dim, num_kv_heads), source in zip(windows, shapes, sources, strict=True):
        attentions.append(
            AttentionConfig(
                num_heads=fields.integer("num_attention_heads"),
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=1.0,
                causal=True,
                query_bias=bias,
                key_bias=bias,
                value_bias=bias,
                output_bias=bias,
                rope=_rope(text, head_dim, window is None),
                query_key_norm=QueryKeyNorm(norm),
                window=window,
                value_norm=NormConfig("rms_unscaled", norm.eps, bias=False),
                values_of_keys=same_values and window is None and source is None,
                key_value_layer=source,
            )
        )
    return attentions


def _rope(text: Mapping[str, Any], head_dim: int, is_full: bool) -> RopeConfig:
    """Rotary positions of one type of layer.

    is_full: whether the layers have full attention. Otherwise they have a sliding window.
    """
    kind, theta = ("full_attention", 1000000.0) if is_full else ("sliding_attention", 10000.0)
    stated = text.get("rope_parameters")
    settings = {
        **text,
        "rope_scaling": None,
        "rope_parameters": {"full_attention": _FULL_ROPE} if stated is None else stated,
    }
    return rope_config(Fields(with_rope_of(settings, kind, theta)), head_dim)


def head_shapes(fields: Fields, windows: Sequence[int | None], full_heads: int) -> list[tuple[int, int]]:
    """Head width and number of key-value heads of each layer.

    Published files have separate settings for layers with full attention. transformers 5 writes `per_layer_config`
    instead: an object with the index of a layer as key and the settings in which this layer differs as value.

    windows: sliding window of each layer, None for full attention.
    full_heads: number of key-value heads of layers with full attention, for published files.
    Raises ConfigError for a `per_layer_config` of another form.
    """
    head_dim, kv_heads = fields.integer("head_dim", 256), fields.integer("num_key_value_heads", 4)
    by_layer = fields.raw("per_layer_config")
    if by_layer is None:
        full_dim = fields.integer("global_head_dim", 512)
        return [(full_dim, full_heads) if window is None else (head_dim, kv_heads) for window in windows]
    shapes = [(head_dim, kv_heads)] * len(windows)
    if not isinstance(by_layer, dict):
        raise ConfigError("'per_layer_config' must be an object")
    for index, settings in by_layer.items():
        known = isinstance(settings, dict) and settings.keys() <= {"head_dim", "num_key_value_heads"}
        if not known or not index.isdecimal() or int(index) >= len(windows):
            raise ConfigError("'per_layer_config' must have 'head_dim' or 'num_key_value_heads' by index of the layer")
        own = Fields(settings)
        shapes[int(index)] = own.integer("head_dim", head_dim), own.integer("num_key_value_heads", kv_heads)
    return shapes


def gemma4_rules(
    model: ModelConfig, hf: Mapping[str, Any], architecture: str, multimodal: bool, other_parts: str
) -> Sequence[Rule]:
    """Rules for the tensors of the text part.

    multimodal: whether the checkpoint has other parts.
    other_parts: regular expression for the names of these parts, whose tensors are dropped.
    """
    text = (
        *layer_input_rules(model),
        *_mixture_rules(model),
        Rename(r"model\.layers\.(\d+)\.layer_scalar", r"decoder.layers.\1.output_scale"),
        *rotary_rules(model, hf, architecture),
    )
    return text_part_rules(text, other_parts) if multimodal else text


def _mixture_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for layers in which a dense feed-forward and experts run in parallel; none for models without experts."""
    assert model.decoder is not None
    sums = [
        layer_config.feed_forward
        for layer_config in model.decoder.layers
        if isinstance(layer_config.feed_forward, FeedForwardSumConfig)
    ]
    if not sums:
        return ()
    mixture = sums[0].parts[1][0]
    assert isinstance(mixture, MixtureOfExpertsConfig)
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1.feed_forward."
    norms = (
        ("pre_feedforward_layernorm", "0.input"),
        ("post_feedforward_layernorm_1", "0.output"),
        ("pre_feedforward_layernorm_2", "1.input"),
        ("post_feedforward_layernorm_2", "1.output"),
    )
    return (
        *(Rename(layer + rf"{theirs}\.weight", f"{ours}norms.{name}.weight") for theirs, name in norms),
        Rename(layer + r"mlp\.(gate|up|down)_proj\.weight", ours + r"parts.0.\2.weight"),
        Rename(layer + r"router\.proj\.weight", ours + "parts.1.router.weight"),
        Rename(layer + r"router\.scale", ours + "parts.1.router.norm.weight"),
        Rename(layer + r"router\.per_expert_scale", ours + "parts.1.router.expert_scale"),
        *(
            Rule(
                layer + rf"experts\.{theirs}",
                tuple(
                    f"{ours}parts.1.experts.{expert}.{matrix}.weight"
                    for matrix in matrices
                    for expert in range(mixture.num_experts)
                ),
                (by_expert(mixture.num_experts, len(matrices)),),
            )
            for theirs, matrices in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",)))
        ),
    )


def layer_input_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the additional embedding vectors, and for layers that reuse another layer's keys and values.

    An additional embedding vector is one vector per token for each layer.
    """
    assert model.decoder is not None
    layer, ours = r"model\.layers\.(\d+)\.", r"decoder.layers.\1."
    readers = [
        index
        for index, layer_config in enumerate(model.decoder.layers)
        if layer_config.attention is not None and layer_config.attention.key_value_layer is not None
    ]
    return (
        # A layer that reads the keys and values of another layer may also have projections, which are not used.
        Drop(rf"model\.layers\.(?:{_numbers(readers)})\.self_attn\.(?:[kv]_proj|[kv]_norm)\..*"),
        Rename(layer + r"per_layer_input_gate\.weight", ours + "input_gate.weight"),
        Rename(layer + r"per_layer_projection\.weight", ours + "input_projection.weight"),
        Rename(layer + r"post_per_layer_input_norm\.weight", ours + "input_norm.weight"),
        Rename(r"model\.embed_tokens_per_layer\.weight", "decoder.per_layer.tokens.weight"),
        Rename(r"model\.per_layer_model_projection\.weight", "decoder.per_layer.projection.weight"),
        Rename(r"model\.per_layer_projection_norm\.weight", "decoder.per_layer.norm.weight"),
    )


def text_part_rules(text: Sequence[Rule], other_parts: str) -> Sequence[Rule]:
    """Rules for a checkpoint with other parts besides the text part, from the rules `text` for the text part alone.

    other_parts: regular expression for the names of the other parts, whose tensors are dropped.
    """
    return (*renamed(text, r"model\.", r"model\.language_model\."), Drop(rf"(?:model\.)?(?:{other_parts})\..*"))


def _numbers(layers: Sequence[int]) -> str:
    """Regular expression that matches the indices of these layers; it matches no index for an empty list."""
    return "|".join(map(str, layers)) or "none"


# ---------------------------------------------------------------------------------------------------------- GGUF files


def layer_input_gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` about windows, shared keys and values, and additional vectors, from GGUF metadata.

    The additional vectors are one embedding vector per token for each layer (`hidden_size_per_layer_input`).
    """
    sliding, cap = of.by_layer("attention.sliding_window_pattern"), of.optional("final_logit_softcapping")
    width = of.integer("embedding_length_per_layer_input", 0)
    rows = {"vocab_size_per_layer_input": of.rows("per_layer_token_embd.weight")} if width else {}
    return {
        "layer_types": ["sliding_attention" if is_sliding else "full_attention" for is_sliding in sliding],
        "sliding_window": of.integer("attention.sliding_window"),
        "num_kv_shared_layers": of.integer("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": width,
        **rows,
        "attention_bias": has_bias(of, "attn_q"),
        "final_logit_softcapping": None if cap is None else of.number("final_logit_softcapping"),
        **rms_eps(of),
    }


def layer_input_gguf_rules() -> Sequence[Rule]:
    """Rules for the additional embedding vectors of each layer in GGUF files."""
    layer, ours = r"blk\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(layer + r"inp_gate\.weight", ours + "input_gate.weight"),
        Rename(layer + r"proj\.weight", ours + "input_projection.weight"),
        Rename(layer + r"post_norm\.weight", ours + "input_norm.weight"),
        Rename(r"per_layer_token_embd\.weight", "decoder.per_layer.tokens.weight"),
        Rename(r"per_layer_model_proj\.weight", "decoder.per_layer.projection.weight"),
        Rename(r"per_layer_proj_norm\.weight", "decoder.per_layer.norm.weight"),
    )


def gemma4_gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` from the metadata of a GGUF file.

    Layers with full attention can have another head width and another number of heads than layers with a window.
    """
    common, heads = layer_input_gguf_settings(of), of.by_layer("attention.head_count_kv")
    full = [layer for layer, kind in enumerate(common["layer_types"]) if kind == "full_attention"]
    sliding = [heads[layer] for layer in range(of.layers) if layer not in full]
    own = [layer for layer in full if layer < of.layers - common["num_kv_shared_layers"]]
    widths = of.by_layer("feed_forward_length")
    experts = {
        "enable_moe_block": True,
        "num_experts": num_experts(of),
        "top_k_experts": of.integer("expert_used_count", 0),
        "moe_intermediate_size": of.integer("expert_feed_forward_length", 0),
    }
    # The number of pairs that rotate: the file divides the frequencies of the others by a large number.
    divisors = of.gguf.floats("rope_freqs.weight") if of.has("rope_freqs.weight") else ()
    share = sum(divisor == 1.0 for divisor in divisors) / len(divisors) if divisors else 1.0
    return {
        **decoder_settings(of, model_type="gemma4_text", intermediate_size=widths[0]),
        **common,
        "head_dim": of.integer("attention.key_length_swa", of.head_dim),
        "global_head_dim": of.head_dim,
        "num_key_value_heads": (sliding or [heads[-1]])[0],
        "num_global_key_value_heads": heads[full[0]] if full else None,
        "attention_k_eq_v": not {*of.layers_with("attn_v.weight"), *of.layers_with("attn_qkv.weight")}.issuperset(own),
        "use_double_wide_mlp": len(set(widths)) > 1,
        **(experts if num_experts(of) else {}),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": share,
                "rope_theta": of.number("rope.freq_base", 1000000.0),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": of.number("rope.freq_base_swa", 10000.0)},
        },
    }


def gemma4_gguf_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for the tensors of Gemma 4 in GGUF files."""
    assert model.decoder is not None
    layer, ours = r"blk\.(\d+)\.", r"decoder.layers.\1."
    rules = (*layer_input_gguf_rules(), Rename(layer + r"layer_output_scale\.weight", ours + "output_scale"))
    if not any(isinstance(layer_config.feed_forward, FeedForwardSumConfig) for layer_config in model.decoder.layers):
        return rules
    norms = {
        "ffn_norm": "0.input",
        "post_ffw_norm_1": "0.output",
        "pre_ffw_norm_2": "1.input",
        "post_ffw_norm_2": "1.output",
    }
    inside = ours + "feed_forward."
    return (
        *rules,
        *(Rename(layer + rf"{theirs}\.weight", f"{inside}norms.{name}.weight") for theirs, name in norms.items()),
        Rename(layer + r"ffn_(gate|up|down)\.weight", inside + r"parts.0.\2.weight"),
        Rename(layer + r"ffn_gate_inp\.scale", inside + "parts.1.router.norm.weight"),
        Rename(layer + r"ffn_down_exps\.scale", inside + "parts.1.router.expert_scale"),
    )
