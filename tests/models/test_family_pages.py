"""The documentation of families is correct: its tables equal the registry, and named files and symbols exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from models.families import FAMILIES
from models.families.shared.refused import REFUSED
from models.families.shared.wrappers import WRAPPERS

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "encoder": "bert roberta distilbert xlm-roberta camembert electra albert mpnet modernbert nomic_bert deberta "
    "deberta-v2 longformer big_bird xlm-roberta-xl data2vec-text roberta-prelayernorm megatron-bert ernie rembert "
    "roformer squeezebert mobilebert convbert eurobert gte jina_embeddings_v3 jina_embeddings_v5 embedding_gemma2 "
    "jina_bert llama_bidirec openai_privacy_filter bidirectional_pplx_qwen3 ultrabert voyage_qwen3 "
    "wav2vec2 hubert unispeech unispeech-sat",
    "decoder": "openai-gpt gpt2 gpt_neo gptj gpt_neox opt bloom mpt falcon llama mistral mixtral qwen2 "
    "qwen2_moe qwen3 qwen3_moe phi phi3 gemma gemma2 gemma3 olmo2 smollm3 stablelm starcoder2 "
    "granite granitemoe cohere cohere2 glm glm4 glm4_moe exaone4 ernie4_5 ernie4_5_moe olmo olmo3 olmoe "
    "nemotron helium arcee hunyuan_v1_dense seed_oss apertus phimoe ministral3 "
    "gpt_bigcode xglm biogpt persimmon modernbert-decoder gemma3n gemma4 gemma4_unified gpt_oss deepseek_v2 "
    "deepseek_v3 mistral4 llama4 "
    "cwm internlm3 iquestcoder vaultgemma granite_swa jais2 granitemoeshared youtu minicpm3 glm4_moe_lite "
    "granitemoe_swa mellum cohere2_moe hunyuan_v1_moe hy_v3 afmoe exaone "
    "lfm2 lfm2_moe lfm3 granitemoehybrid falcon_h1 nemotron_h bamba mamba2 olmo_hybrid qwen3_next qwen3_5 qwen3_5_moe",
    "encoder-decoder": "t5 mt5 umt5 bart plbart mvp marian mbart m2m_100 pegasus pegasus_x blenderbot blenderbot-small "
    "led longt5 bigbird_pegasus t5gemma t5gemma2 encoder-decoder switch_transformers whisper",
    "any of them": "triptych",
}


def table() -> str:
    title = "| family | `model_type` | stacks | architectures in `config.json`, with their tasks |"
    rows = [title, "|---|---|---|---|"]
    group_of = {name: group for group, names in GROUPS.items() for name in names.split()}
    families = {family.name: family for family in FAMILIES.values()}
    for name, family in families.items():
        does = "; ".join(
            f"`{architecture}`: {', '.join(tasks)}" for architecture, tasks in family.architectures.items()
        )
        types = ", ".join(f"`{model_type}`" for model_type in family.model_types)
        rows.append(f"| {name} | {types} | {group_of[name]} | {does} |")
    return "\n".join(rows)


def wrapper_table() -> str:
    rows = [f"| `{kind}` | `{wrapper.architecture}` | {wrapper.text} |" for kind, wrapper in WRAPPERS.items()]
    return "\n".join(
        ["| `model_type` | architecture in `config.json` | usual language model |", "|---|---|---|", *rows]
    )


def refused_table() -> str:
    types = {reason: [refused for refused, other in REFUSED.items() if other == reason] for reason in REFUSED.values()}
    rows = [f"| {', '.join(f'`{name}`' for name in names)} | {reason} |" for reason, names in types.items()]
    return "\n".join(["| `model_type` | reason |", "|---|---|", *rows])


@pytest.mark.parametrize(
    ("name", "make"), [("families", table), ("wrappers", wrapper_table), ("refused", refused_table)]
)
def test_the_tables_equal_the_registry(name: str, make: Callable[[], str]) -> None:
    _, _, rest = (ROOT / "docs" / "families.md").read_text().partition(f"<!-- {name}: begin -->\n")
    printed, _, _ = rest.partition(f"\n<!-- {name}: end -->")
    assert printed == make(), f"the table in docs/families.md should be:\n{make()}"


def test_the_list_for_new_families_names_existing_files() -> None:
    page = (ROOT / "docs" / "adding-a-family.md").read_text()
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`", page)) | set(re.findall(r"`(docs/[\w./-]+)", page))
    assert len(named) >= 15
    homes = [ROOT, *(ROOT / home for home in ("models/families", "server/text", "tests/parity", "tests/text"))]
    missing = [name for name in named if not any((home / name.rstrip(".,")).exists() for home in homes)]
    assert not missing
    for symbol, file in (
        ("_REQUIRED", "models/families/native.py"),
        ("REFUSED", "tests/models/test_refused_settings.py"),
        ("REFUSED", "tests/parity/test_native.py"),
        ("test_wrong_setting_without_a_tensor_is_detected", "tests/parity/test_native.py"),
        ("WRITERS", "tests/text/conftest.py"),
    ):
        assert symbol in page and symbol in (ROOT / file).read_text()
    assert "docs/adding-a-family.md" in (ROOT / "CONTRIBUTING.md").read_text()
