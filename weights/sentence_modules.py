"""Where the files of a sentence-transformers checkpoint are, by its `modules.json`. Imports no torch.

Files as https://sbert.net writes them, old and new.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Literal

from weights.bounded_json import parse_json

SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Names of the settings of the transformer. The first one that exists is read."""
STATIC = "StaticEmbedding"
"""Class of a module that has one vector per token, and no transformer."""
ROOT_FILES = frozenset(("modules.json", "config_sentence_transformers.json", "SHA256SUMS"))
"""Files that are never in the folder of the transformer."""


def module_kinds(directory: Path) -> list[tuple[str, str]]:
    """Class name and folder of each module; empty without a `modules.json` that can be read."""
    try:
        listed = parse_json(directory / "modules.json")
        return [(str(part["type"]).rpartition(".")[2], str(part["path"])) for part in listed]
    except (ValueError, RecursionError, OSError, TypeError, KeyError):
        return []


def transformer_folder(directory: Path) -> str:
    """Folder of the configuration, the weights and the tokenizer; empty for the checkpoint directory itself."""
    modules = module_kinds(directory)
    has_folder = bool(modules) and modules[0][0] in ("Transformer", "MLMTransformer", STATIC)
    return "/".join(PurePath(modules[0][1]).parts) if has_folder else ""


def static_vectors(directory: Path) -> Literal["", "sentence-transformers", "model2vec"]:
    """Library that wrote a checkpoint of one vector per token (StaticEmbedding, Model2Vec); empty for other ones.

    Model2Vec also writes `modules.json`; it differs by its `config.json`, which sentence-transformers does not write.
    """
    modules = module_kinds(directory)
    if modules and modules[0][0] != STATIC:
        return ""
    settings = _settings(directory / transformer_folder(directory) / "config.json")
    if modules:
        return "sentence-transformers" if settings is None else "model2vec"
    return "model2vec" if settings is not None and settings.get("model_type") == "model2vec" else ""


def _settings(path: Path) -> dict[str, object] | None:
    try:
        content = parse_json(path)
    except (ValueError, RecursionError, OSError):
        return None
    return content if isinstance(content, dict) else None
