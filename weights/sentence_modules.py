"""Where the files of a sentence-transformers checkpoint are, by its `modules.json`. Imports no torch.

Files as https://sbert.net writes them, old and new.
"""

from __future__ import annotations

from pathlib import Path, PurePath

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
    is_transformer = bool(modules) and modules[0][0] in ("Transformer", "MLMTransformer")
    return "/".join(PurePath(modules[0][1]).parts) if is_transformer else ""
