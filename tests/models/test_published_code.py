"""An `auto_map` in `config.json` is accepted if it names only the family's published code. Other code is refused."""

from __future__ import annotations

import pytest

from models.config import ConfigError
from models.families import FAMILIES
from tests.models.family_bases import BASES, build

PUBLISHED = {
    "phi": ("microsoft/phi-2", "phi", "Phi"),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", "phi3", "Phi3"),
    "mpt": ("mosaicml/mpt-7b", "mpt", "MPT"),
    "falcon": ("tiiuae/falcon-7b", "falcon", "Falcon"),
    "deepseek_v2": ("deepseek-ai/DeepSeek-V2-Lite", "deepseek", "DeepseekV2"),
    "deepseek_v3": ("deepseek-ai/DeepSeek-V3", "deepseek", "DeepseekV3"),
    "eurobert": ("EuroBERT/EuroBERT-210m", "eurobert", "EuroBert"),
    "internlm3": ("internlm/internlm3-8b-instruct", "internlm3", "InternLM3"),
    "iquestcoder": ("IQuestLab/IQuest-Coder-V1-7B-Instruct", "iquestcoder", "IQuestCoder"),
    "minicpm3": ("openbmb/MiniCPM3-4B", "minicpm", "MiniCPM3"),
    "youtu": ("tencent/Youtu-LLM-2B", "youtu", "Youtu"),
    "afmoe": ("arcee-ai/Trinity-Mini", "afmoe", "Afmoe"),
    "hunyuan_v1_moe": ("tencent/Hunyuan-A13B-Instruct", "hunyuan", "HunYuan"),
    "exaone": ("LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct", "exaone", "Exaone"),
    "hyperclovax": ("naver-hyperclovax/HyperCLOVAX-SEED-Think-14B", "hyperclovax", "HyperCLOVAX"),
    "phimoe": ("microsoft/Phi-3.5-MoE-instruct", "phimoe", "PhiMoE"),
}


def published(kind, prefix=""):
    _, file, stem = PUBLISHED[kind]
    code = f"{prefix}modeling_{file}.{stem}"
    return {
        "AutoConfig": f"{prefix}configuration_{file}.{stem}Config",
        "AutoModel": f"{code}Model",
        "AutoModelForCausalLM": f"{code}ForCausalLM",
        "AutoModelForSequenceClassification": f"{code}ForSequenceClassification",
    }


@pytest.mark.parametrize("kind", PUBLISHED)
def test_only_published_code_is_accepted(kind):
    base, (repository, file, stem) = BASES[kind], PUBLISHED[kind]
    for known in (published(kind), published(kind, f"{repository}--")):
        assert build({**base, "auto_map": known}) == build(base)
    model = f"modeling_{file}.{stem}ForCausalLM"
    for name, code in (
        ("AutoModel", "modeling_own.Model"),
        ("AutoModelForCausalLM", f"modeling_{file}.{stem}WithLoopsForCausalLM"),
        ("AutoModelForCausalLM", f"modeling_{file}.Own"),
        ("AutoModelForCausalLM", f"somebody/{kind}--{model}"),
        ("AutoModelForCausalLM", f"modeling_{file}x.{stem}ForCausalLM"),
        ("AutoModelForCausalLM", [model]),
        ("AutoModelForCausalLM", f"configuration_{file}.{stem}Config"),
        ("AutoConfig", model),
        ("AutoConfig", f"configuration_{file}.OwnConfig"),
        ("AutoTokenizer", f"modeling_{file}.{stem}Model"),
        ("AutoTokenizer", ["tokenization_own.Tokenizer", None]),
    ):
        with pytest.raises(ConfigError, match="auto_map"):
            build({**base, "auto_map": {**published(kind), name: code}})
    for wrong in (["modeling"], "modeling", {"AutoModel": ["modeling"]}):
        with pytest.raises(ConfigError, match="auto_map"):
            build({**base, "auto_map": wrong})


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_other_code_is_refused_for_every_family(kind):
    """Unknown code is refused for every family.

    For a family that was published without an `auto_map`, code with the names of its own classes is refused too.
    """
    family = FAMILIES[kind]
    for architecture in family.architectures:
        maps = [{"AutoModel": "modeling_own.Model"}, {"AutoConfig": "configuration_own.Config"}, ["modeling_own.Model"]]
        # The code of Voyage and of Jina Embeddings 5 is recognised by the name of its class.
        if kind not in (*PUBLISHED, "voyage_qwen3", "jina_embeddings_v5"):
            maps.append({"AutoModel": f"modeling_{kind}.{architecture}"})
        for auto_map in maps:
            hf = {**BASES.get(kind, {}), "model_type": kind, "architectures": [architecture], "auto_map": auto_map}
            hf = {**hf, "text_config": BASES["gemma3_text"]}
            with pytest.raises(ConfigError, match="auto_map"):
                family.config(hf, architecture)
