"""Where the files of a sentence-transformers checkpoint are, by its `modules.json`. Imports no torch.

Files as https://sbert.net writes them, old and new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

from weights.bounded_json import parse_json, read_bounded

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
MAX_MODULES_BYTES = 1 << 16
"""Largest `modules.json`, and settings of a router. Published ones have 2 KB."""
Module = tuple[str, str]
"""Class name and folder of a module."""
Side = Literal["query", "document"]
SIDES: tuple[Side, ...] = ("query", "document")
ROUTERS = ("Router", "Asym")
CLIP = "CLIPModel"
"""Class of a module that gives the vector of a text, by older releases. Newer ones have a Transformer in its place."""
STATIC = "StaticEmbedding"
"""Class of a module that has one vector per token, and no transformer."""
STATIC_WEIGHTS = "SparseStaticEmbedding"
"""Class of a module that has one weight per token, for queries (inference-free SPLADE)."""
ROOT_FILES = frozenset(("modules.json", "config_sentence_transformers.json", "SHA256SUMS"))
"""Files that are never in the folder of the transformer."""


def module_kinds(directory: Path) -> list[Module]:
    """The modules through which a document goes; empty without a `modules.json` that can be read."""
    return side_modules(directory, "document")


def side_modules(directory: Path, side: Side | None) -> list[Module]:
    """The modules through which a text goes; empty without a `modules.json` that can be read, or such a side.

    side: role of the text; None for a text without one.
    """
    try:
        modules = _modules(_parsed(directory / "modules.json"))
        if not modules or modules[0][0] not in ROUTERS:
            return modules
        return [*_route(directory, modules[0][1], side), *modules[1:]]
    except (ValueError, RecursionError, OSError, TypeError, KeyError, AttributeError):
        return []


def is_routed(directory: Path) -> bool:
    """Whether queries and documents go through modules of their own (`Router`, in older files `Asym`)."""
    try:
        return _modules(_parsed(directory / "modules.json"))[0][0] in ROUTERS
    except (ValueError, RecursionError, OSError, TypeError, KeyError, IndexError):
        return False


def _parsed(path: Path) -> Any:
    """The contents of a small JSON file. These files are read again whenever a file of the checkpoint is looked up."""
    return json.loads(read_bounded(path, MAX_MODULES_BYTES))


def _modules(listed: Any) -> list[Module]:
    return [(_class(part["type"]), str(part["path"])) for part in listed]


def _class(name: Any) -> str:
    return str(name).rpartition(".")[2]


def _route(directory: Path, folder: str, side: Side | None) -> list[Module]:
    """The modules of a router for a text. Source: `Router` of sentence-transformers 6.2."""
    path = directory / folder / "router_config.json"
    content = _parsed(path if path.exists() else directory / folder / "config.json")
    settings, structure = content.get("parameters") or {}, content["structure"]
    name = _route_name(settings.get("route_mappings") or {}, structure, side)
    if name is None and side is not None:
        return []
    if name is None:
        name = settings.get("default_route")
    if name is None and settings.get("allow_empty_key", True):
        name = next(iter(structure))
    return [(_class(content["types"][part]), str(PurePath(folder) / part)) for part in structure[name]]


def _route_name(mappings: Mapping[str, str], structure: Mapping[str, Any], side: Side | None) -> str | None:
    """Name of the route of a text, by the mappings of (task, modality), then by the task, then by the modality."""
    keys = [(side, "text"), (side, None), (None, "text"), (None, None)]
    mapped = next((mappings[str(key)] for key in keys if str(key) in mappings), None)
    return mapped or next((name for name in (side, "text") if name in structure), None)


def transformer_folder(directory: Path) -> str:
    """Folder of the configuration, the weights and the tokenizer; empty for the checkpoint directory itself."""
    modules = module_kinds(directory)
    has_folder = bool(modules) and modules[0][0] in ("Transformer", "MLMTransformer", CLIP, STATIC)
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
