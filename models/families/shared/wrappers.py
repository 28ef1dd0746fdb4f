"""Checkpoints that wrap a language model with parts for pictures or video. They are served without these parts.

`text_config` states the `model_type` of the language model. For requests without pictures, the other parts would change
nothing: they only compute embeddings that replace the embeddings of picture tokens.
Reasons: docs/decisions/0128-wrapped-language-models.md. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.config import ConfigError, ModelConfig
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width, short
from models.families.shared.rename_rules import renamed
from models.families.shared.transposed_experts import either_way_expert_rules
from weights.rules import Drop, Rule

_TEXT = r"(?:model\.language_model|language_model\.model|model\.text_model|model)\."
"""Regular expression for the prefixes of the language model's tensor names.

In order: transformers 5, published files, Idefics 3 and SmolVLM, and no prefix besides `model.`."""
_OTHER_PARTS = (
    "vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline|vision_projection|image_tower|video_tower"
    r"|visual_embeddings_table|vision_encoder|aligner|high_res_vision_\w+|vqmodel|generation_\w+|projector|merger|mm_projector|mlp1"
)


@dataclass(frozen=True)
class Wrapper:
    """A type of checkpoint that contains a language model.

    architecture: value of `architectures` in `config.json`.
    text: `model_type` of the language model if `text_config` does not state it.
    transposed: whether published files store the matrices of experts as [experts, in, out].
    """

    architecture: str
    text: str
    transposed: bool = False


WRAPPERS: Mapping[str, Wrapper] = {
    "mistral3": Wrapper("Mistral3ForConditionalGeneration", "mistral"),
    "qwen2_vl": Wrapper("Qwen2VLForConditionalGeneration", "qwen2"),
    "qwen2_5_vl": Wrapper("Qwen2_5_VLForConditionalGeneration", "qwen2"),
    "qwen3_vl": Wrapper("Qwen3VLForConditionalGeneration", "qwen3"),
    "lfm2_vl": Wrapper("Lfm2VlForConditionalGeneration", "lfm2"),
    "lfm3_vl": Wrapper("Lfm3VlForConditionalGeneration", "lfm3"),
    "idefics3": Wrapper("Idefics3ForConditionalGeneration", "llama"),
    "smolvlm": Wrapper("SmolVLMForConditionalGeneration", "llama"),
    "llava": Wrapper("LlavaForConditionalGeneration", "llama"),
    "llava_next": Wrapper("LlavaNextForConditionalGeneration", "llama"),
    "llava_onevision": Wrapper("LlavaOnevisionForConditionalGeneration", "qwen2"),
    "internvl": Wrapper("InternVLForConditionalGeneration", "qwen2"),
    "llava_next_video": Wrapper("LlavaNextVideoForConditionalGeneration", "llama"),
    "video_llava": Wrapper("VideoLlavaForConditionalGeneration", "llama"),
    "vipllava": Wrapper("VipLlavaForConditionalGeneration", "llama"),
    "ovis2": Wrapper("Ovis2ForConditionalGeneration", "qwen2"),
    "got_ocr2": Wrapper("GotOcr2ForConditionalGeneration", "qwen2"),
    "idefics2": Wrapper("Idefics2ForConditionalGeneration", "mistral"),
    "lighton_ocr": Wrapper("LightOnOcrForConditionalGeneration", "qwen3"),
    "video_llama_3": Wrapper("VideoLlama3ForConditionalGeneration", "qwen2"),
    "fast_vlm": Wrapper("FastVlmForConditionalGeneration", "qwen2"),
    "perception_lm": Wrapper("PerceptionLMForConditionalGeneration", "llama"),
    "deepseek_vl": Wrapper("DeepseekVLForConditionalGeneration", "llama"),
    "deepseek_vl_hybrid": Wrapper("DeepseekVLHybridForConditionalGeneration", "llama"),
    "janus": Wrapper("JanusForConditionalGeneration", "llama"),
    "qianfan_ocr": Wrapper("QianfanOCRForConditionalGeneration", "qwen3"),
    "qwen3_vl_moe": Wrapper("Qwen3VLMoeForConditionalGeneration", "qwen3_moe", transposed=True),
    "exaone4_5": Wrapper("Exaone4_5_ForConditionalGeneration", "exaone4"),
    "glm4v": Wrapper("Glm4vForConditionalGeneration", "glm4"),
    "glm46v": Wrapper("Glm46VForConditionalGeneration", "glm4"),
    "kimi_k25": Wrapper("Kimi_K25ForConditionalGeneration", "deepseek_v3"),
}
TEXT_FAMILIES = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "qwen3_moe", "lfm2", "lfm3"),
    *("exaone4", "glm4", "deepseek_v3"),
)
"""Families of language models that are served inside a wrapper. Tests compare each of them with transformers."""
_NAMES = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "exaone4_5_text": "exaone4",
    "glm4v_text": "glm4",
    "kimi_k2": "deepseek_v3",
}
"""Family of a language model by its `model_type` inside a wrapper, where this is not the family's usual one."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl": {"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "use_sliding_window": False}
    | {"rope_theta": 1000000.0},
    "qwen2_5_vl": {"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "use_sliding_window": False}
    | {"rope_theta": 1000000.0},
    "qwen3_vl": {"intermediate_size": 22016, "max_position_embeddings": 128000, "rope_theta": 500000.0},
    "qwen3_vl_moe": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16}
    | {"num_key_value_heads": 16, "max_position_embeddings": 128000, "rope_theta": 500000.0, "num_experts": 60}
    | {"num_experts_per_tok": 4, "moe_intermediate_size": 1408, "norm_topk_prob": True, "use_sliding_window": False},
    "glm4v": {"rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "partial_rotary_factor": 1.0},
    "glm46v": {"rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "partial_rotary_factor": 1.0},
}
"""Defaults of settings where the wrapped language model differs from its family, by the wrapper's `model_type`."""
_WITHOUT_TEXT: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {"vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40}
    | {"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": None},
    "idefics3": {"rms_norm_eps": 1e-5},
    "smolvlm": {"rms_norm_eps": 1e-5},
    "got_ocr2": {"vocab_size": 151860, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24}
    | {"num_attention_heads": 16, "num_key_value_heads": 16, "rope_theta": 1000000.0},
    "idefics2": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5},
    "lighton_ocr": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000.0},
    "fast_vlm": {"vocab_size": 152128, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4},
}
"""Settings of the language model that a `config.json` without `text_config` means, by the wrapper's `model_type`."""
_OUTSIDE = ("tie_word_embeddings", "tie_embedding")


def wrapped_family(hf: Mapping[str, Any], families: Mapping[str, Family]) -> Family | None:
    """Adapt the family of the language model inside a wrapper to the wrapper's settings and tensor names.

    hf: contents of `config.json`. families: all families, by `model_type`.
    Returns None for a checkpoint that is no wrapper.
    Raises ConfigError for a language model that is not supported in a wrapper.
    """
    kind = hf.get("model_type")
    wrapper = WRAPPERS.get(kind) if isinstance(kind, str) else None
    if wrapper is None or not isinstance(kind, str):
        return None
    text = _text_settings(hf, wrapper)
    inner = families[text["model_type"]]
    architecture = next(iter(inner.architectures))

    def config(_: Mapping[str, Any], __: str) -> ModelConfig:
        return inner.config(text, architecture)

    def rules(model: ModelConfig, _: Mapping[str, Any], __: str) -> Sequence[Rule]:
        experts = either_way_expert_rules(model, "mlp") if wrapper.transposed else ()
        layers = renamed((*experts, *inner.rules(model, text, architecture)), r"model\.", _TEXT)
        head = renamed(layers, "lm_head", r"(?:language_model\.)?lm_head")
        return (Drop(rf"(?:model\.)?(?:{_OTHER_PARTS})(?:\..*)?"), *head)

    # As in transformers, the head is a separate matrix if the file has one. Only a stated `false` requires it.
    untied = any(hf.get(name) is False for name in _OUTSIDE)
    tied = {} if untied else {"head.weight": "decoder.embedding.tokens.weight"}
    return replace(
        inner,
        name=kind,
        model_types=(kind,),
        architectures={wrapper.architecture: ("generate",)},
        config=config,
        rules=rules,
        tied_if_absent=tied,
        body=None,
        published_as={},
    )


def _text_settings(hf: Mapping[str, Any], wrapper: Wrapper) -> dict[str, Any]:
    """The settings of the language model, in `text_config` or, for the first Qwen-VL releases, at the top level.

    Raises ConfigError for a language model that is not supported in a wrapper.
    """
    kind = str(hf["model_type"])
    given = hf.get("text_config", dict(hf) if kind.startswith("qwen2") else {**_WITHOUT_TEXT.get(kind, {})})
    if not isinstance(given, dict):
        raise ConfigError("'text_config' must be an object")
    stated = given.get("model_type", wrapper.text)
    name = wrapper.text if given == hf else _NAMES.get(stated, stated) if isinstance(stated, str) else ""
    if name not in TEXT_FAMILIES:
        raise ConfigError(
            f"'text_config': 'model_type': {short(stated)} is not supported in {kind}, only {', '.join(TEXT_FAMILIES)}"
        )
    text = {**_DEFAULTS.get(kind, {}), **given, "model_type": name, "tie_word_embeddings": False}
    if stated == "glm4v_text":
        fields = Fields(text)
        width = head_width(fields.integer("hidden_size", 4096), fields.integer("num_attention_heads", 32))
        text = {"head_dim": width, **text}
    if "auto_map" in hf:
        text["auto_map"] = hf["auto_map"]  # code of its own, which the family refuses
    text.pop("tie_embedding", None)
    text.pop("vision_config", None)
    for setting in ("rope_scaling", "rope_parameters"):
        # For text alone, all axes of the rotary positions are equal, so that their sections make no difference.
        if isinstance(text.get(setting), dict):
            rope = {key: value for key, value in text[setting].items() if not key.startswith("mrope_")}
            for key in ("type", "rope_type"):
                if rope.get(key) == "mrope":
                    rope[key] = "default"
            text[setting] = rope
    return text
