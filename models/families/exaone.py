"""EXAONE 3 to 3.5 (LG AI Research 2024, arXiv:2412.04862): LLaMA whose settings and tensors have other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LanguageModelHead, ModelConfig
from models.families.shared.decoder_family import decoder_family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, rotary_settings
from models.families.shared.published_code import PublishedCode
from models.families.shared.rotary_decoder import gated_feed_forward, llama_decoder
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule

_PUBLISHED = PublishedCode("LGAI-EXAONE", "exaone", "Exaone")
_NAMES = {
    "num_layers": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
"""Names of settings in LLaMA, by their names in EXAONE."""
_DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    given = Fields(hf, _PUBLISHED)
    renamed = {new: given.raw(old, given.raw(new)) for old, new in _NAMES.items()}
    settings = {name: value for name, value in hf.items() if name != "auto_map"}
    fields = Fields({**settings, **renamed}, defaults=_DEFAULTS)
    fields.refuse_unless("attention_bias", False)
    fields.refuse_unless("mlp_bias", False)
    width = fields.integer("intermediate_size", 4 * fields.integer("hidden_size"))
    return llama_decoder(fields, gated_feed_forward(fields, width), default_tied=True)


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = r"transformer\.h\.(\d+)\.", r"decoder.layers.\1."
    tokens, attention = "decoder.embedding.tokens.weight", layer + r"attn\.attention\."
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    inner = {"c_fc_0": "gate", "c_fc_1": "up", "c_proj": "down"}
    tied = isinstance(model.head, LanguageModelHead) and model.head.tied
    return (
        Rename(r"transformer\.wte\.weight", tokens),
        Rename(layer + r"ln_1\.weight", ours + "attention_norms.input.weight"),
        *(Rename(rf"{attention}{old}\.weight", f"{ours}attention.{new}.weight") for old, new in parts.items()),
        Rename(layer + r"ln_2\.weight", ours + "feed_forward_norms.input.weight"),
        *(Rename(rf"{layer}mlp\.{old}\.weight", f"{ours}feed_forward.{new}.weight") for old, new in inner.items()),
        Rename(r"transformer\.ln_f\.weight", "decoder.final_norm.weight"),
        Rename(r"lm_head\.weight", tokens if tied else "head.weight"),
        Drop(attention + r"rotary(?:_emb)?\.inv_freq"),
    )


def gguf_settings(of: Metadata) -> Settings:
    # Newer converters write the epsilon under the key of layer norms, because the checkpoint has that name.
    rms, layer = (f"attention.layer_norm_{kind}epsilon" for kind in ("rms_", ""))
    eps = of.number(rms if of.optional(layer) is None else layer)
    return rotary_settings(of, model_type="exaone", rms_norm_eps=eps)


FAMILY = decoder_family(
    "exaone",
    "Exaone",
    config,
    rules,
    tokens=False,
    answers=False,
    prefix=r"transformer\.",
    pad_token_id=0,
    gguf=GgufFamily({"exaone": gguf_settings}),
)
