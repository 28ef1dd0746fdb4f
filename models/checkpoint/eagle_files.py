"""The files of an EAGLE-3 head: its configuration, and the rules for its tensors.

A head is a separate checkpoint, as published by the authors of EAGLE-3, or in the format of the library speculators.
Source: Li et al. 2025, arXiv:2503.01840, and the published code of its authors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.settings_files import read_settings
from models.config import ConfigError, ModelConfig
from models.config.draft_head import EagleHeadConfig
from models.families.shared.fields import Fields
from models.families.shared.rope import rope_config
from models.families.shared.rotary_decoder import gated_feed_forward, head_dim_of, rms_norm, rotary_layer
from weights.rules import Drop, Rename, Rule, Split

_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "max_position_embeddings": 2048}
_LAYER = r"(?:model\.)?(?:midlayer|layers\.0)\."
_TOKENS = ("embed_tokens.weight", "model.embed_tokens.weight")
_OURS = "decoder.layers.0."


def eagle_config(directory: Path, stored: Collection[str], target: ModelConfig) -> EagleHeadConfig:
    """The configuration of an EAGLE-3 head.

    stored: names of the tensors of the head. target: configuration of the model for which it drafts.
    Raises ConfigError for settings that are not supported, or that do not fit the target.
    """
    hf = read_settings(directory, "config.json") or {}
    layer_settings = hf.get("transformer_layer_config", hf)
    if not isinstance(layer_settings, dict):
        raise ConfigError("'transformer_layer_config' must be an object")
    fields = Fields(layer_settings, defaults=_DEFAULTS)
    fields.refuse_unless("num_hidden_layers", 1)
    Fields({"norm_before_fc": hf.get("norm_before_fc")}).refuse_unless("norm_before_fc", False)
    own = Fields({**layer_settings, **hf})
    assert target.decoder is not None
    head_dim, norm = head_dim_of(fields), rms_norm(fields)
    rope = rope_config(fields, head_dim)
    if rope.depends_on_length:
        raise ConfigError("the rotation of an EAGLE-3 head must not depend on the length of the text")
    bias = fields.flag("attention_bias", False)
    layer = rotary_layer(
        fields,
        head_dim=head_dim,
        num_kv_heads=fields.integer("num_key_value_heads", fields.integer("num_attention_heads")),
        rope=rope,
        norm=norm,
        feed_forward=gated_feed_forward(fields, bias=fields.flag("mlp_bias", False)),
        qkv_bias=bias,
        output_bias=bias,
    )
    vocab_size = fields.integer("vocab_size")
    config = EagleHeadConfig(
        vocab_size=vocab_size,
        hidden_size=fields.integer("hidden_size"),
        layer=layer,
        norm=norm,
        logits_size=own.optional_integer("draft_vocab_size") or vocab_size,
        layers=_layers(hf, len(target.decoder.layers)),
        target_size=target.hidden_size,
        target_tokens=not any(name in stored for name in _TOKENS),
        normed_residual=own.flag("norm_before_residual", False),
        input_bias=any(name in stored for name in ("fc.bias", "model.fc.bias")),
    )
    _check_target(config, target)
    return config


def _layers(hf: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Indices of the target's layers whose inputs a head reads. count: number of layers of the target.

    At the top level of the file, `eagle_aux_hidden_state_layer_ids` lists layers whose inputs are read. Inside
    `eagle_config` (SpecForge, Model Optimizer) it lists layers whose outputs are read: the inputs of the next layers.
    Without the setting, the layers are 2, `count // 2` and `count - 3`.
    """
    nested = hf.get("eagle_config")
    name = "eagle_aux_hidden_state_layer_ids"
    outputs = nested.get(name) if isinstance(nested, dict) else None
    inputs = hf.get(name)
    if inputs is None and outputs is None:
        return 2, count // 2, count - 3
    found = inputs if inputs is not None else outputs
    if not isinstance(found, list) or not all(type(index) is int for index in found):
        raise ConfigError(f"{name!r} must be a list of integers")
    return tuple(found) if inputs is not None else tuple(index + 1 for index in found)


def _check_target(config: EagleHeadConfig, target: ModelConfig) -> None:
    """Raise ConfigError if a head cannot draft for a model."""
    assert target.decoder is not None
    if config.vocab_size < target.vocab_size:
        raise ConfigError(f"the head has {config.vocab_size:,} tokens, the model has {target.vocab_size:,}")
    if target.decoder.streams is not None:
        raise ConfigError(f"the model has {target.decoder.streams.count} hidden states per token")
    wrong = [index for index in config.layers if index >= len(target.decoder.layers)]
    if wrong:
        raise ConfigError(
            f"the head reads the input of layer {wrong[0]}, the model has {len(target.decoder.layers)} layers"
        )


def eagle_rules() -> tuple[Rule, ...]:
    """Rules for the tensors of an EAGLE-3 head, except the map of its vocabulary (`d2t`)."""
    attention = _OURS + "attention."
    return (
        *(
            rule
            for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value"))
            for rule in (
                Split(
                    rf"{_LAYER}self_attn\.{theirs}_proj\.weight",
                    [f"{attention}of_{part}.{ours}.weight" for part in ("tokens", "states")],
                    dim=1,
                ),
                Rename(rf"{_LAYER}self_attn\.{theirs}_proj\.bias", f"{attention}of_tokens.{ours}.bias"),
            )
        ),
        Rename(_LAYER + r"self_attn\.o_proj\.(weight|bias)", attention + r"output.\1"),
        Rename(_LAYER + r"hidden_norm\.weight", _OURS + "attention_norms.input.weight"),
        Rename(_LAYER + r"input_layernorm\.weight", "decoder.inputs.token_norm.weight"),
        Rename(_LAYER + r"post_attention_layernorm\.weight", _OURS + "feed_forward_norms.input.weight"),
        Rename(_LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)", _OURS + r"feed_forward.\1.\2"),
        Rename(r"(?:model\.)?fc\.(weight|bias)", r"combine.\1"),
        Rename(r"(?:model\.)?norm\.weight", "norm.weight"),
        Rename(r"lm_head\.weight", "head.weight"),
        Rename(r"(?:model\.)?embed_tokens\.weight", "decoder.inputs.own_tokens.weight"),
        Drop(rf"d2t|t2d|{_LAYER}self_attn\.rotary_emb\.inv_freq"),
    )
