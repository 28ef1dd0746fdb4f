"""In every family, a setting that is missing in `config.json` has the default of transformers' configuration class."""

from __future__ import annotations

import json

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError

from models.config import ConfigError, ModelConfig
from models.families import FAMILIES
from tests.parity import lara_mini

WITHOUT_A_CLASS = {
    "new": "GTE: transformers has a class for converted checkpoints only (`gte`); these are of the published code",
    "triptych": "our own format",
    "lara_mini": "transformers has it since 5.24, whose defaults are in `STORED`",
    **dict.fromkeys(
        ("bidirectional_pplx_qwen3", "exaone", "jina_bert", "jina_embeddings_v5", "llama_bidirec", "voyage_qwen3"),
        "their code is published with the checkpoints",
    ),
}
"""Values of `model_type` without a configuration class in transformers, each with the reason."""

STORED = {"lara_mini": lara_mini.oracle()["defaults"]}
"""Default settings of the configuration class, for families that only a newer version of transformers has."""

GIVEN = {
    "deepseek_v2": (
        {"num_experts_per_tok": 6},
        "the default of transformers is null, which builds no model",
    ),
    "glm4_moe": ({"head_dim": 128}, "without it, 4096 by default is not a multiple of the 96 default heads"),
    "lfm2_moe": (
        {"layer_types": ["conv"] * 32},
        "the default of transformers is null, which builds no model",
    ),
    "encoder-decoder": (
        {
            "encoder": {"model_type": "bert"},
            "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        },
        "a file without its two parts is refused",
    ),
    "t5gemma2": ({"encoder": {"text_config": {}}, "decoder": {}}, "a file without its two parts is refused"),
    "t5gemma": ({"encoder": {}, "decoder": {}}, "a file without its two parts is refused"),
    **dict.fromkeys(
        (
            "embedding_gemma2",
            "gemma3",
            "gemma3n",
            "gemma4",
            "gemma4_unified",
            "llama4",
            "modernvbert",
            "qwen3_5",
            "qwen3_5_moe",
        ),
        ({"text_config": {}}, "a file of a picture model without its text part is refused"),
    ),
}
"""Settings that a file must contain although transformers has a default for them, with the reason."""

DEVIATIONS = {
    ("umt5", "tie_word_embeddings"): "transformers 5 reads false as true; see docs/decisions/0013",
}
"""Family and setting → why the setting has another meaning than in transformers."""

COMMON = {*transformers.PreTrainedConfig().to_dict(), "is_decoder", "add_cross_attention"} - {"tie_word_embeddings"}
"""Settings that every configuration class has and that do not describe the model."""

WITHOUT_EFFECT = ("dropout", "initializer_range", "_std", "token_id", "use_cache", "_coef")
"""Suffixes of the names of settings that do not change the results of a model."""

MODEL_TYPES = [name for name in FAMILIES if name in STORED or name not in WITHOUT_A_CLASS]


def settings_of(model_type, changes):
    """All settings of a model: those in `changes`, and the defaults of transformers for the others."""
    given, _ = GIVEN.get(model_type, ({}, ""))
    if model_type in STORED:
        return {**STORED[model_type], **given, **changes}
    config = transformers.CONFIG_MAPPING[model_type](**given, **changes)
    named = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in named.items() if name not in ("architectures", "transformers_version")}


def build(model_type, settings, architecture=None) -> ModelConfig | None:
    """The configuration that a family builds from settings, or None if it refuses them."""
    family = FAMILIES[model_type]
    try:
        return family.config({**settings, "model_type": model_type}, architecture or next(iter(family.architectures)))
    except ConfigError:
        return None


def variations(settings):
    """Yield the name of each setting with other values: the opposite flag, twice the size, null."""
    for name, value in settings.items():
        if name in COMMON or name == "model_type" or name.endswith(WITHOUT_EFFECT):
            continue
        if isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int) and value > 0:
            yield name, 2 * value
        if value is not None:
            yield name, None


def test_every_family_without_a_class_is_named():
    missing = [name for name in FAMILIES if name not in transformers.CONFIG_MAPPING]
    assert sorted(missing) == sorted(WITHOUT_A_CLASS)
    assert set(STORED) <= set(WITHOUT_A_CLASS)
    assert set(GIVEN) <= set(FAMILIES) and {name for name, _ in DEVIATIONS} <= set(FAMILIES)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_empty_file_is_the_default_model_of_transformers(model_type):
    given, settings = GIVEN.get(model_type, ({}, ""))[0], settings_of(model_type, {})
    for architecture in FAMILIES[model_type].architectures:
        assert build(model_type, given, architecture) == build(model_type, settings, architecture), architecture
    assert build(model_type, settings) is not None


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_file_with_one_setting_has_the_other_defaults(model_type):
    """If a file has a single setting, all other settings have the defaults of transformers.

    Some defaults depend on other settings, and some settings are used only together with a flag.
    """
    given, differing = GIVEN.get(model_type, ({}, ""))[0], []
    for name, value in variations(settings_of(model_type, {})):
        if name in given or (model_type, name) in DEVIATIONS:
            continue
        try:
            settings = settings_of(model_type, {name: value})
        except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError):
            continue
        model = build(model_type, settings)
        if model is not None and build(model_type, {**given, name: value}) != model:
            differing.append((name, value))
    assert not differing
