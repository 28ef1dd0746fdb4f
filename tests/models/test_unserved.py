"""Each `model_type` of transformers is served, or refused with its own reason and the nearest served family."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from models.config import ConfigError
from models.families import FAMILIES, family_of
from models.families.shared.refused import REFUSED
from models.families.shared.unserved import NEAREST_OF_REFUSED, UNSERVED
from models.families.shared.wrappers import WRAPPERS

SERVED = FAMILIES.keys() | WRAPPERS.keys()
RELEASE = "5.23.0"
"""The release of transformers that the table covers. A newer release may have further types."""


def refusal(kind: object, **settings: object) -> str:
    with pytest.raises(ConfigError) as raised:
        family_of({"model_type": kind, **settings})
    return str(raised.value)


def test_every_type_of_transformers_has_a_reason():
    if version("transformers") != RELEASE:
        pytest.skip(f"the table covers transformers {RELEASE}")
    others = [kind for kind in CONFIG_MAPPING_NAMES if kind not in SERVED]
    messages = {kind: refusal(kind) for kind in others}
    assert len(others) > 600
    assert [kind for kind, message in messages.items() if "is not supported: it" not in message] == []
    near = ("the nearest served family is ", "no served family is near to it")
    assert [kind for kind, message in messages.items() if not any(name in message for name in near)] == []
    assert max(map(len, messages.values())) < 240


@pytest.mark.parametrize(
    "kind",
    [
        *("apertus1p5", "apertus1p5_text", "dory", "hy_v4_vl", "hy_v4_vl_text", "hy_v4_vl_vision", "inkling2_loop"),
        *("inkling2_loop_text", "omniasr", "omniasr_audio", "omniasr_ctc", "sarvam_mla", "sarvam_moe", "wavtokenizer"),
        "apertus1p5_vision_tokenizer",
    ],
)
def test_types_that_transformers_5_24_added(kind: str):
    assert "is not supported: it" in (message := refusal(kind)) and "nearest served family is " in message


def test_the_nearest_family_is_served():
    nearest = {entry.nearest for entry in UNSERVED.values()} | set(NEAREST_OF_REFUSED.values())
    assert nearest - SERVED == {""}
    assert not UNSERVED.keys() & (SERVED | REFUSED.keys()), "these are served now, or refused elsewhere"
    assert NEAREST_OF_REFUSED.keys() == REFUSED.keys()


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("bitnet", "llama"),
        ("clip_vision_model", "part of a checkpoint of the type 'clip'"),
        ("siglip_text_model", "part of a checkpoint of the type 'siglip'"),
        ("qwen3_vl_text", "nearest served family is qwen3_vl"),
        ("kosmos_2_text_model", "'kosmos-2'"),
        ("sew", "nearest served family is wav2vec2"),
        ("parakeet_rnnt", "transducer"),
        ("canary", "nearest served family is cohere_asr"),
        ("qwen", "nearest served family is qwen2"),
        ("chatglm", "nearest served family is glm"),
        ("t5gemma2_encoder", "nearest served family is t5gemma2"),
        ("vit", "no served family is near"),
    ],
)
def test_reasons(kind: str, near: str):
    assert near in refusal(kind)


def test_unknown_types_are_not_answered_by_a_wall_of_names():
    assert "names like it: " in (message := refusal("lama3")) and "llama" in message and len(message) < 200
    assert refusal("zzz") == "'model_type': 'zzz' is not known; `triptych models` lists the families"
    assert "must be the name" in refusal(None)
    message = refusal("my_llama", architectures=["LlamaForCausalLM"])
    assert "its architecture LlamaForCausalLM is that of 'llama'" in message
    assert "that of 'llama': write this 'model_type'" in refusal(None, architectures=["LlamaForCausalLM"])
