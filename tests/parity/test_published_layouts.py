"""Encoders load from the tensor names and settings of their first release as from those that transformers writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint.loader import load_model
from models.config import ConfigError
from models.families import family_of
from models.layers.positions import inverse_frequencies
from tests.parity.recent_encoder_cases import BODIES
from tests.parity.test_recent_encoders import batch_of, expected, found, one_by_one, reference

ALIBABA = "Alibaba-NLP/new-impl--"
JINA = "jinaai/xlm-roberta-flash-implementation--"
NEW = {
    "model_type": "new",
    "auto_map": {
        "AutoConfig": f"{ALIBABA}configuration.NewConfig",
        "AutoModel": f"{ALIBABA}modeling.NewModel",
        "AutoModelForMultipleChoice": f"{ALIBABA}modeling.NewForMultipleChoice",
        "AutoModelForTokenClassification": f"{ALIBABA}modeling.NewForTokenClassification",
    },
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_parameters": None,
    "rope_theta": 160000.0,
    "unpad_inputs": False,
}
SNOWFLAKE = {
    **NEW,
    "model_type": "gte",
    "auto_map": {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
    },
}
FLASH = {
    "model_type": "xlm-roberta",
    "auto_map": {
        "AutoConfig": f"{JINA}configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": f"{JINA}modeling_lora.XLMRobertaLoRA",
        "AutoModelForMaskedLM": f"{JINA}modeling_xlm_roberta.XLMRobertaForMaskedLM",
    },
    "position_embedding_type": "rotary",
    "rope_parameters": None,
    "rotary_emb_base": 20000.0,
}


def _fused(tensors: dict[str, Tensor], parts: tuple[str, ...], whole: str) -> dict[str, Tensor]:
    """Concatenate tensors whose names differ only in a part from `parts`.

    In the new name, `whole` replaces the part.
    """
    fused = {}
    for name, tensor in tensors.items():
        if parts[0] in name:
            fused[name.replace(parts[0], whole)] = torch.cat([tensors[name.replace(parts[0], part)] for part in parts])
        elif not any(part in name for part in parts):
            fused[name] = tensor
    return fused


def _renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    for old, new in names.items():
        tensors = {re.sub(old, new, name): tensor for name, tensor in tensors.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _as_new(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    tensors = _fused(tensors, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attention.qkv_proj")
    tensors = _fused(tensors, ("mlp.up_proj", "mlp.gate_proj"), "mlp.up_gate_proj")
    norms = {"post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln"}
    tensors = _renamed(tensors, {r"^layers": "encoder.layer", r"self_attn\.": "attention.", **norms, "^": "new."})
    return tensors | {"classifier.weight": torch.ones(1, 32), "classifier.bias": torch.ones(1)}


def _as_flash(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layout of Jina's checkpoints, which store each matrix together with its adapters for five tasks."""
    tensors = _fused(tensors, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "mixer.Wqkv")
    names = {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "self_attn.o_proj": "mixer.out_proj"}
    tensors = _renamed(
        tensors, {r"^layers": "encoder.layers", r"embeddings\.LayerNorm": "emb_ln", **names, "^": "roberta."}
    )
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            stem = name.removesuffix(".weight") + ".parametrizations.weight"
            stored |= {f"{stem}.original": tensor, f"{stem}.0.lora_A": torch.randn(5, 4, tensor.shape[1])}
        else:
            stored[name] = tensor
    return stored


def _with_picture_part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return _renamed(tensors, {"^": "language_model."}) | {"vision_tower.patches.weight": torch.ones(2, 2)}


def _multimodal(hf: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "embedding_gemma2", "architectures": ["EmbeddingGemma2Model"], "text_config": hf}


def _ultrabert(hf: dict[str, Any]) -> dict[str, Any]:
    """The settings of UltraBERT: one window (0: full attention) and one rotary base per layer."""
    left_out = ("layer_types", "sliding_window", "rope_parameters")
    older = {"attention_windows": [3, 3, 0], "rope_theta": [20000.0, 20000.0, 500.0]}
    return {name: value for name, value in hf.items() if name not in left_out} | older


LAYOUTS = {
    "gte-alibaba": ("gte-small", _as_new, {**NEW, "architectures": ["NewModel", "NewForTokenClassification"]}),
    "gte-snowflake": ("gte-small", _as_new, {**SNOWFLAKE, "architectures": ["GteModel"]}),
    "jina_embeddings_v3": ("jina_embeddings_v3-small", _as_flash, {**FLASH, "architectures": ["XLMRobertaModel"]}),
    "ultrabert": ("ultrabert-small", lambda tensors: tensors, _ultrabert),
    "embedding-gemma2": ("embedding-gemma2-small", _with_picture_part, _multimodal),
}


def write_layout(directory: Path, layout: str) -> Any:
    """Write a checkpoint in a published layout. Returns the transformers model with the same weights."""
    body, convert, settings = LAYOUTS[layout]
    name, options = BODIES[body]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 20000.0 if "jina" in layout else 160000.0}
    if layout == "ultrabert":
        bases = {"sliding_attention": 20000.0, "full_attention": 500.0}
        rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    rope = {"rope_parameters": rope}
    model = reference(name, "", {**options, **({} if "gemma" in layout else rope)})
    model.save_pretrained(directory)
    save_file(convert(load_file(directory / "model.safetensors")), directory / "model.safetensors")
    hf = json.loads((directory / "config.json").read_text())
    hf = settings(hf) if callable(settings) else {**hf, **settings}
    (directory / "config.json").write_text(json.dumps(hf))
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.inference_mode()
def test_published_layout(layout: str, tmp_path: Path, device: torch.device):
    model = write_layout(tmp_path, layout)
    ours, batch = load_model(tmp_path, torch.float32, device), batch_of(model, device)
    theirs = expected(one_by_one(model, batch), "")
    torch.testing.assert_close(found(ours, batch, "").cpu(), theirs, atol=1e-4, rtol=0)
    assert ours.tasks == ("embed",)


def _gte(**changes: Any) -> dict[str, Any]:
    return {**NEW, "architectures": ["NewModel"], "hidden_size": 256, "num_attention_heads": 4, **changes}


def _build(hf: dict[str, Any]):
    family, architecture = family_of(hf)
    return family.config(hf, architecture)


def test_ntk_scaling_of_gte():
    """The published code multiplies the rotary base by the factor and divides frequencies by `factor ** (2 / dim)`.

    The test computes this in float64.
    """
    model = _build(_gte(rope_theta=20000.0, rope_scaling={"type": "ntk", "factor": 8.0}))
    exponents = torch.arange(0, 64, 2, dtype=torch.float64) / 64
    theirs = 1 / (20000.0 * 8) ** exponents / 8 ** (2 / 64)
    ours = inverse_frequencies(model.encoder.layers[0].attention.rope).double()
    torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.5}}, "mixed_b"),
        ({"rope_scaling": {"type": "ntk", "factor": 0.5}}, "rope_scaling"),
        ({"logn_attention_scale": True}, "logn_attention_scale"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type"),
        ({"auto_map": {"AutoModel": "somebody/new-impl--modeling.NewModel"}}, "auto_map"),
        ({"auto_map": {"AutoModel": "modeling_own.NewModel"}}, "auto_map"),
        ({"architectures": ["NewForTokenClassification", "NewModel"]}, "architectures"),
    ],
)
def test_refusals_of_gte(changes: dict[str, Any], name: str):
    with pytest.raises(ConfigError, match=name):
        _build(_gte(**changes))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"emb_pooler": "mean"}, "emb_pooler"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type"),
        ({"rope_theta": 500.0}, "rotary_emb_base"),
        ({"auto_map": {"AutoModel": "modeling_own.XLMRobertaLoRA"}}, "auto_map"),
    ],
)
def test_refusals_of_jina(changes: dict[str, Any], name: str):
    with pytest.raises(ConfigError, match=name):
        _build({**FLASH, "architectures": ["XLMRobertaModel"], **changes})


@pytest.mark.parametrize(
    ("hf", "name"),
    [
        (
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "intermediate_size": 48,
                "num_key_value_heads": 4,
                "is_causal": False,
            },
            "is_causal",
        ),
        ({"model_type": "gpt2", "architectures": ["GPT2Model"], "is_causal": False}, "is_causal"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], "is_causal": False}, "is_causal"),
        ({"model_type": "eurobert", "is_causal": True}, "is_causal"),
        ({"model_type": "ultrabert", "attention_windows": [3, 0, 5]}, "attention_windows"),
        ({"model_type": "ultrabert", "num_hidden_layers": 3, "rope_theta": [500.0, 600.0, 700.0]}, "rope_theta"),
        ({"model_type": "ultrabert", "is_causal": True}, "is_causal"),
        ({"model_type": "roformer", "rotary_value": True}, "rotary_value"),
        ({"model_type": "rembert", "architectures": ["RemBertForMaskedLM"], "tie_word_embeddings": True}, "tie_word"),
        ({"model_type": "squeezebert", "q_groups": 5}, "q_groups"),
        ({"model_type": "embedding_gemma2_text", "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    ],
)
def test_refusals_of_encoders(hf: dict[str, Any], name: str):
    with pytest.raises(ConfigError, match=name):
        _build({"vocab_size": 50, **hf})
