"""Parakeet-CTC (Rekesh et al. 2023, arXiv:2305.05084): a FastConformer encoder with a CTC head over subwords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import CtcHead, ModelConfig, StackConfig
from models.families.shared.family import Family
from models.families.shared.fast_conformer import (
    embedding_config,
    encoder_fields,
    encoder_rules,
    layer_configs,
    pointwise_rules,
)
from models.families.shared.fields import Fields
from weights.rules import Rule

_ENCODER_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "silu",
    "attention_bias": True,
    "convolution_bias": True,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 256,
    "num_mel_bins": 80,
    "subsampling_conv_kernel_size": 3,
    "scale_input": True,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields, encoder = Fields(hf, defaults={"vocab_size": 1025}), encoder_fields(hf, _ENCODER_DEFAULTS)
    vocab_size = fields.integer("vocab_size")
    stack = StackConfig(embedding_config(encoder), layer_configs(encoder))
    return ModelConfig(encoder.integer("hidden_size"), vocab_size, CtcHead(vocab_size), encoder=stack)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    return (*encoder_rules(model.encoder), *pointwise_rules(r"ctc_head", "head.output", 1))


FAMILY = Family(
    name="parakeet",
    model_types=("parakeet_ctc",),
    architectures={"ParakeetForCTC": ("transcribe",)},
    config=config,
    rules=rules,
)
