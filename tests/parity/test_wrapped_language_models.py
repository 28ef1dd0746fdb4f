"""The language model inside checkpoints that also read pictures equals transformers. We do not load other parts."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.config import ConfigError
from models.families import FAMILIES, family_of
from models.families.shared.wrappers import TEXT_FAMILIES, WRAPPERS
from tests.parity.checkpoints import edit_config, load, random_ids, save
from tests.parity.paged import Rows, chunked, greedy

VOCAB = 97
LENGTHS = (1, 7, 23, 12)
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_HEADS = {"head_dim": 8}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.1,
}
_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
_SMALL = {"image_size": 28, "patch_size": 14}
_PIXTRAL = {"model_type": "pixtral", **_TOWER, **_SMALL, "head_dim": 8}
_CLIP = {"model_type": "clip_vision_model", **_TOWER, **_SMALL, "projection_dim": 16}
_SIGLIP = {"model_type": "siglip_vision_model", **_TOWER, **_SMALL}
_SIGLIP2 = {"model_type": "siglip2_vision_model", **_TOWER, "num_patches": 16, "patch_size": 4}
_QWEN_TOWER = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 2,
}
_DEEP = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
_QWEN2_TOWER = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 2}
_LFM = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}
_INDICES = {"image_token_index": 5, "video_token_index": 6}
_SAM = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 24, "image_size": 32},
    **{"patch_size": 16, "output_channels": 8, "window_size": 2, "global_attn_indexes": [0]},
}
_PERCEIVER = {
    **{"resampler_n_latents": 2, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8},
    **{"num_key_value_heads": 1, "hidden_size": 32},
}
_VQ = {
    **{"embed_dim": 4, "num_embeddings": 8, "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1},
    **{"projection_dim": 32, "image_token_embed_dim": 32, "num_hidden_layers": 1, "hidden_size": 16, "num_patches": 4},
    **{"latent_channels": 8},
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": []}
_PARTLY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
_GLM_TOWER = {
    **{"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 24},
    **{"patch_size": 2, "image_size": 8},
}
_LATENT = {
    **{"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8},
    **{"v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 2},
    **{"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1},
}
_IDS = {"image_token_id": VOCAB - 1, "video_token_id": VOCAB - 2}
_MARKS = {"vision_start_token_id": VOCAB - 3, "vision_end_token_id": VOCAB - 4}

CASES = {
    "mistral3": ("mistral3", {"model_type": "mistral", **_TEXT, **_HEADS, "sliding_window": None}, _PIXTRAL, {}),
    "mistral3-of-ministral3": (
        "mistral3",
        {"model_type": "ministral3", **_TEXT, **_HEADS, "rope_parameters": _YARN},
        _PIXTRAL,
        {"tie_word_embeddings": False},
    ),
    "qwen2_vl": ("qwen2_vl", {**_TEXT, "rope_parameters": _MROPE}, _QWEN2_TOWER, {**_IDS, **_MARKS}),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {**_TEXT, "rope_parameters": _MROPE},
        {**_QWEN_TOWER, "fullatt_block_indexes": [1]},
        {**_IDS, **_MARKS, "tie_word_embeddings": True},
    ),
    "qwen3_vl": (
        "qwen3_vl",
        {**_TEXT, **_HEADS, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        {**_QWEN_TOWER, **_DEEP},
        {**_IDS, **_MARKS},
    ),
    "lfm2_vl": ("lfm2_vl", {"model_type": "lfm2", **_TEXT, **_LFM}, _SIGLIP2, {"projector_hidden_size": 24}),
    "lfm3_vl": (
        "lfm3_vl",
        {"model_type": "lfm3", **_TEXT, **_HEADS, "layer_types": ["conv", "full_attention"]},
        {**_TOWER, "num_key_value_heads": 1, "patch_size": 4},
        {"projector_hidden_size": 24, **_IDS, **_MARKS},
    ),
    "idefics3": ("idefics3", {"model_type": "llama", **_TEXT}, {**_TOWER, **_SMALL}, {"scale_factor": 1}),
    "smolvlm": ("smolvlm", {"model_type": "llama", **_TEXT}, {**_TOWER, **_SMALL}, {"tie_word_embeddings": True}),
    "llava": ("llava", {"model_type": "llama", **_TEXT}, _CLIP, {"image_token_index": 5}),
    "llava-of-mistral": ("llava", {"model_type": "mistral", **_TEXT}, _PIXTRAL, {"image_token_index": 5}),
    "llava_next": ("llava_next", {"model_type": "mistral", **_TEXT}, _CLIP, {"image_token_index": 5}),
    "llava_onevision": ("llava_onevision", {"model_type": "qwen2", **_TEXT}, _SIGLIP, {}),
    "internvl": (
        "internvl",
        {"model_type": "qwen3", **_TEXT, **_HEADS},
        {**_TOWER, "image_size": [28, 28], "patch_size": [14, 14]},
        {},
    ),
    "llava_next_video": ("llava_next_video", {"model_type": "llama", **_TEXT}, _CLIP, _INDICES),
    "video_llava": ("video_llava", {"model_type": "llama", **_TEXT}, _CLIP, _INDICES),
    "vipllava": ("vipllava", {"model_type": "llama", **_TEXT}, _CLIP, {"vision_feature_layers": [-1]}),
    "ovis2": (
        "ovis2",
        {"model_type": "qwen2", **_TEXT},
        {**_TOWER, **_SMALL, "vocab_size": 40, "num_visual_indicator_tokens": 5, "hidden_stride": 1},
        {"image_token_id": 5, "visual_indicator_token_ids": [6, 7, 8, 9, 10]},
    ),
    "got_ocr2": ("got_ocr2", {"model_type": "qwen2", **_TEXT}, _SAM, {"image_token_id": 5}),
    "idefics2": (
        "idefics2",
        {"model_type": "mistral", **_TEXT, "sliding_window": None},
        {**_TOWER, **_SMALL},
        {"image_token_id": 5, "perceiver_config": _PERCEIVER},
    ),
    "lighton_ocr": ("lighton_ocr", {"model_type": "qwen3", **_TEXT, **_HEADS}, _PIXTRAL, {"image_token_id": 5}),
    "video_llama_3": (
        "video_llama_3",
        {"model_type": "qwen2", **_TEXT},
        {**_TOWER, "patch_size": 4},
        {"image_token_id": 5, "video_token_id": 6},
    ),
    "deepseek_vl": ("deepseek_vl", {"model_type": "llama", **_TEXT}, _SIGLIP, {"image_token_id": 5}),
    "deepseek_vl_hybrid": (
        "deepseek_vl_hybrid",
        {"model_type": "llama", **_TEXT},
        _SIGLIP,
        {"image_token_id": 5, "high_res_vision_config": {"model_type": "sam_vision_model", **_SAM}},
    ),
    "janus": (
        "janus",
        {"model_type": "llama", **_TEXT},
        {**_TOWER, **_SMALL, "mlp_ratio": 1.5, "projection_dim": 32},
        {"image_token_id": 5, "vq_config": _VQ},
    ),
    "qianfan_ocr": (
        "qianfan_ocr",
        {"model_type": "qwen3", **_TEXT, **_HEADS},
        {**_TOWER, "image_size": [28, 28], "patch_size": [14, 14]},
        {},
    ),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {**_TEXT, **_HEADS, **_EXPERTS, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
        {**_QWEN_TOWER, **_DEEP},
        {**_IDS, **_MARKS},
    ),
    "exaone4_5": (
        "exaone4_5",
        {"model_type": "exaone4", **_TEXT, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        {**_QWEN_TOWER, "fullatt_block_indexes": [1], "num_key_value_heads": 1},
        {"image_token_id": 5, "video_token_id": 6},
    ),
    "glm4v": ("glm4v", {**_TEXT, "rope_parameters": _PARTLY}, _GLM_TOWER, _IDS),
    "glm46v": (
        "glm46v",
        {"model_type": "glm4v_text", **_TEXT, "rope_parameters": _PARTLY},
        {"model_type": "glm4v_vision", **_GLM_TOWER},
        _IDS,
    ),
    "kimi_k25": ("kimi_k25", {"model_type": "deepseek_v3", **_TEXT, **_LATENT}, _TOWER, {"image_token_id": 5}),
}
NEED_TIMM = {"fast_vlm": "qwen2", "perception_lm": "llama"}
"""Model types whose vision part needs the library timm, each with the model type of its language model."""
_SAVED_NAMES = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "language_model.model.encoder.layers.": "language_model.model.layers.",
}
"""Parts of tensor names that transformers 5.23 writes by mistake, each with the part in the published files."""


def case(name: str):
    """Class name and configuration of a small model that wraps a language model."""
    kind, text, tower, more = CASES[name]
    config_class = transformers.AutoConfig.for_model(kind).__class__
    return WRAPPERS[kind].architecture, config_class(text_config=dict(text), vision_config=dict(tower), **more)


def compare(oracle, model, device) -> None:
    """Assert that the logits, computed in chunks, and the greedy text equal transformers."""
    texts = random_ids(VOCAB - 8, LENGTHS, low=8)
    for text, hidden in zip(texts, chunked(Rows(model), texts), strict=True):
        expected = oracle(torch.tensor([text], device=device)).logits[0]
        torch.testing.assert_close(model.logits(hidden), expected, atol=1e-4, rtol=1e-4)
    for prompt, answer in zip(texts, greedy(Rows(model), texts, 12), strict=True):
        logits = oracle(torch.tensor([prompt + answer], device=device)).logits[0]
        assert answer == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_language_model(name, tmp_path, device):
    architecture, config = case(name)
    oracle = save(tmp_path, config, architecture).to(device)
    assert any(re.search("vis|image|high_res", key) for key in load_file(tmp_path / "model.safetensors"))
    _rename(tmp_path, _SAVED_NAMES)
    loaded = load(tmp_path, device)
    assert (loaded.family, loaded.tasks) == (CASES[name][0], ("generate",))
    assert any("pictures" in note for note in loaded.notes)
    compare(oracle, loaded.transformer, device)


def _rename(directory, names):
    """Rename the tensors of a checkpoint. names: maps an old part of a name to the new one."""
    stored = load_file(directory / "model.safetensors")
    for old, new in names.items():
        stored = {key.replace(old, new): tensor for key, tensor in stored.items()}
    save_file(stored, directory / "model.safetensors")


@pytest.mark.parametrize("kind", NEED_TIMM)
@torch.inference_mode()
def test_wrappers_of_a_tower_of_timm(kind, tmp_path, device):
    config = transformers.AutoConfig.for_model(NEED_TIMM[kind], **_TEXT)
    oracle = save(tmp_path, config, type(transformers.AutoModelForCausalLM.from_config(config)).__name__).to(device)
    _rename(tmp_path, {"model.": "model.language_model."})
    stored = load_file(tmp_path / "model.safetensors")
    others = {f"model.{part}.weight": torch.ones(3) for part in ("vision_tower.stem", "multi_modal_projector.linear_1")}
    save_file(stored | others, tmp_path / "model.safetensors")
    settings = {"model_type": kind, "architectures": [WRAPPERS[kind].architecture], "text_config": config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = load(tmp_path, device)
    assert (loaded.family, loaded.tasks) == (kind, ("generate",))
    compare(oracle, loaded.transformer, device)


@torch.inference_mode()
def test_published_experts_of_qwen3_vl_moe_are_transposed(tmp_path, device):
    architecture, config = case("qwen3_vl_moe")
    oracle = save(tmp_path, config, architecture).to(device)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum("experts" in key for key in stored) == 4
    turned = {key: t.transpose(1, 2).contiguous() if "experts" in key else t for key, t in stored.items()}
    save_file(turned, tmp_path / "model.safetensors")
    compare(oracle, load(tmp_path, device).transformer, device)


@pytest.mark.parametrize("name", ["mistral3", "qwen3_vl", "smolvlm"])
@torch.inference_mode()
def test_names_in_memory(name, tmp_path, device):
    """Files may have the tensor names of transformers 5 instead of the older names of published files."""
    architecture, config = case(name)
    oracle = save(tmp_path, config, architecture).to(device)
    save_file(
        {key: tensor.contiguous() for key, tensor in oracle.state_dict().items() if "lm_head" not in key},
        tmp_path / "model.safetensors",
    )
    if "lm_head.weight" in oracle.state_dict():
        stored = load_file(tmp_path / "model.safetensors") | {"lm_head.weight": oracle.lm_head.weight.clone()}
        save_file(stored, tmp_path / "model.safetensors")
    compare(oracle, load(tmp_path, device).transformer, device)


@torch.inference_mode()
def test_flat_settings_of_the_first_qwen_vl(tmp_path, device):
    """The first releases have no `text_config`, have the rope type `mrope`, and no `language_model` in tensor names."""
    architecture, config = case("qwen2_5_vl")
    oracle = save(tmp_path, config, architecture).to(device)
    settings = json.loads((tmp_path / "config.json").read_text())
    text = {
        key: value for key, value in settings.pop("text_config").items() if key not in ("model_type", "architectures")
    }
    text |= {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 10000.0}
    del text["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**text, **settings}))
    stored = load_file(tmp_path / "model.safetensors")
    stored = {
        key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): t
        for key, t in stored.items()
    }
    save_file(stored, tmp_path / "model.safetensors")
    compare(oracle, load(tmp_path, device).transformer, device)


def test_every_wrapper_and_every_language_model_is_compared():
    assert {kind for kind, *_ in CASES.values()} | NEED_TIMM.keys() == set(WRAPPERS)
    families = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
    families |= {"glm4v": "glm4", "glm46v": "glm4"}
    assert {families.get(kind) or text["model_type"] for kind, text, *_ in CASES.values()} == set(TEXT_FAMILIES)
    assert not set(WRAPPERS) & set(FAMILIES)


@pytest.mark.parametrize("text", [None, {}, {"num_hidden_layers": 3}], ids=["none", "empty", "one"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_settings_that_are_left_out_have_the_defaults_of_transformers(kind, text):
    """The configuration is the same whether `text_config` has all settings, only a few, or is missing."""
    config_class = type(transformers.AutoConfig.for_model(kind))
    model_type = config_class().text_config.model_type
    stated = {} if text is None else {"text_config": {"model_type": model_type, **text}}
    whole = json.loads(config_class(**stated).to_json_string(use_diff=False))
    assert len(whole["text_config"]) > 10
    found = []
    for settings in (stated, whole):
        family, architecture = family_of(hf := {**settings, "model_type": kind, "architectures": None})
        found.append(family.config(hf, architecture))
    assert found[0] == found[1]


def test_other_language_models_are_refused_by_name():
    """Only listed language models are accepted. Others scale embeddings or logits, which their wrappers do not."""
    hf = {"model_type": "llava", "text_config": {"model_type": "granite"}}
    with pytest.raises(ConfigError, match=r"'granite' is not supported in llava, only llama, mistral"):
        family_of(hf)
    with pytest.raises(ConfigError, match="only one of LlavaForConditionalGeneration"):
        family_of({"model_type": "llava", "text_config": {}, "architectures": ["LlavaModel"]})


def test_code_of_a_checkpoint_is_refused():
    hf = {"model_type": "llava", "text_config": {"model_type": "llama", "intermediate_size": 8}}
    hf["auto_map"] = {"AutoModel": "modeling_stranger.StrangerModel"}
    family, architecture = family_of(hf)
    with pytest.raises(ConfigError, match="auto_map"):
        family.config(hf, architecture)


def test_a_head_that_is_stated_must_be_in_the_file(tmp_path, device):
    architecture, config = case("smolvlm")
    save(tmp_path, config, architecture)
    load(tmp_path, device)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(Exception, match=r"1 missing \(head.weight"):
        load(tmp_path, device)
