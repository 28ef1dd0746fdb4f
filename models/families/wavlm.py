"""WavLM with a CTC head (Chen et al. 2021, arXiv:2110.13900): wav2vec 2.0 with a gated relative position bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import AttentionConfig, BucketBiasConfig, GatedBiasAttentionConfig, ModelConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.waveform_encoder import ctc_config, ctc_rules
from weights.rules import Rename, Rule

_PREFIX = r"wavlm\."
_DEFAULTS: Mapping[str, Any] = {"num_buckets": 320, "max_bucket_distance": 800}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, defaults=_DEFAULTS)
    buckets = BucketBiasConfig(fields.integer("num_buckets"), fields.integer("max_bucket_distance"), bidirectional=True)
    model = ctc_config(hf)
    assert model.encoder is not None
    layers = tuple(replace(layer, attention=_gated(layer.attention)) for layer in model.encoder.layers)
    return replace(model, encoder=replace(model.encoder, layers=layers, score_bias=buckets))


def _gated(attention: AttentionConfig | None) -> GatedBiasAttentionConfig:
    assert attention is not None
    return GatedBiasAttentionConfig(**vars(attention))


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = _PREFIX + r"encoder\.layers\.(\d+)\.attention\.", r"encoder.layers.\1.attention."
    first = _PREFIX + r"encoder\.layers\.0\.attention\."
    return (
        # The first layer has the table, and all layers use it.
        Rename(first + r"rel_attn_embed\.weight", "encoder.score_bias.weight"),
        Rename(layer + r"gru_rel_pos_linear\.(weight|bias)", ours + r"bias_gate.\2"),
        Rename(layer + r"gru_rel_pos_const", ours + "bias_gate_scale"),
        *ctc_rules(model, _PREFIX),
    )


FAMILY = Family(
    name="wavlm",
    model_types=("wavlm",),
    architectures={"WavLMForCTC": ("transcribe",)},
    config=config,
    rules=rules,
)
