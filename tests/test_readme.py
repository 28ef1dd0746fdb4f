"""The README's facts: its table of families is the registry's, its settings file is one."""

from __future__ import annotations

import re
from pathlib import Path

from models.families import FAMILIES
from server import settings

README = Path(__file__).resolve().parents[1] / "README.md"
KINDS = {
    "encoder": "bert roberta distilbert xlm-roberta camembert electra albert mpnet modernbert nomic_bert deberta "
    "deberta-v2",
    "decoder": "openai-gpt gpt2 gpt_neo gptj gpt_neox opt bloom mpt falcon llama mistral qwen2 qwen3 phi phi3 gemma "
    "gemma2 olmo2 stablelm starcoder2",
    "encoder-decoder": "t5 mt5 umt5 bart marian mbart m2m_100 pegasus blenderbot blenderbot-small whisper",
}


def table() -> str:
    rows = ["| family | kind | architectures of `config.json`, and what each does |", "|---|---|---|"]
    kind_of = {name: kind for kind, names in KINDS.items() for name in names.split()}
    families = {family.name: family for family in FAMILIES.values()}
    for name, family in families.items():
        does = "; ".join(f"`{one}`: {', '.join(tasks)}" for one, tasks in family.architectures.items())
        rows.append(f"| {name} | {kind_of[name]} | {does} |")
    return "\n".join(rows)


def test_the_table_of_families_is_the_registry() -> None:
    _, _, rest = README.read_text().partition("<!-- families: begin -->\n")
    printed, _, _ = rest.partition("\n<!-- families: end -->")
    assert printed == table(), f"the README should say:\n{table()}"


def test_the_settings_file_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    file = tmp_path / "triptych.toml"
    file.write_text(block)
    read = settings.load({}, file)
    assert (read.port, read.dtype, read.kv_cache_memory) == (9000, "bfloat16", 4 << 30)
    assert read.models == ["mt=/path/opus-mt-en-de", "embed=sentence-transformers/all-MiniLM-L6-v2"]
