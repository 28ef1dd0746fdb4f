"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): all layers are state spaces, without attention or feed-forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import ConfigError, LanguageModelHead, ModelConfig, NormConfig, StateSpaceConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, has_bias
from models.families.shared.gguf_mixers import gguf_state_space_rules
from models.families.shared.layer_types import mixer_layer
from models.families.shared.rotary_decoder import rotary_decoder
from models.families.shared.state_space_layers import state_space_rules, time_step_limits
from weights.gguf.metadata import Metadata
from weights.rules import Rename, Rule


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64})
    fields.refuse_unless("hidden_act", "silu", "swish")
    norm = NormConfig("rms", fields.number("layer_norm_epsilon", 1e-5), bias=False)
    heads, head_dim = fields.integer("num_heads", 128), fields.integer("head_dim", 64)
    groups = fields.integer("n_groups", 8)
    bias, width = fields.flag("use_bias", False), fields.number("expand", 2) * fields.integer("hidden_size")
    if width != heads * head_dim:
        raise ConfigError(f"'expand' times hidden_size is {width:g}, but num_heads times head_dim {heads * head_dim}")
    mixer = StateSpaceConfig(
        num_heads=heads,
        head_dim=head_dim,
        state_size=fields.integer("state_size", 128),
        num_groups=groups,
        kernel_size=fields.integer("conv_kernel", 4, least=2),
        norm_eps=norm.eps,
        norm_groups=groups,
        convolution_bias=fields.flag("use_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
        chunk_time_steps=time_step_limits(fields),
    )
    layers = [mixer_layer(mixer, norm, None)] * fields.integer("num_hidden_layers")
    return rotary_decoder(fields, layers, norm, max_positions=None)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    tokens = "decoder.embedding.tokens.weight"
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    layer, ours = r"backbone\.layers\.(\d+)\.", r"decoder.layers.\1."
    return (
        Rename(r"backbone\.embeddings?\.weight", tokens),
        Rename(layer + r"norm\.weight", ours + "attention_norms.input.weight"),
        *state_space_rules(layer + r"mixer\.", ours + "mixer."),
        Rename(r"backbone\.norm_f\.weight", "decoder.final_norm.weight"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
    )


def gguf_settings(of: Metadata) -> Settings:
    heads = of.integer("ssm.time_step_rank")
    inner, hidden = of.integer("ssm.inner_size"), of.integer("embedding_length")
    return {
        "model_type": "mamba2",
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": hidden,
        "num_hidden_layers": of.layers,
        "num_heads": heads,
        "head_dim": inner // max(heads, 1),
        "expand": inner / hidden,
        "state_size": of.integer("ssm.state_size"),
        "n_groups": of.integer("ssm.group_count"),
        "conv_kernel": of.integer("ssm.conv_kernel"),
        "use_bias": has_bias(of, "ssm_in"),
        "use_conv_bias": has_bias(of, "ssm_conv1d"),
        "layer_norm_epsilon": of.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not of.has("output.weight"),
    }


FAMILY = decoder_family(
    "mamba2",
    "Mamba2",
    config,
    rules,
    texts=False,
    tokens=False,
    answers=False,
    prefix=r"backbone\.",
    gguf=GgufFamily({"mamba2": gguf_settings}, rules=lambda model: gguf_state_space_rules()),
)
