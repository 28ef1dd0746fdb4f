"""Read the `modules.json` of a sentence-transformers checkpoint: which modules it has, and in which folders.

Reads the files of old and new releases of sentence-transformers (https://sbert.net). Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

from weights.bounded_json import parse_json, read_bounded
from weights.gguf.choose import is_gguf

SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""File names of the transformer module's settings, such as the longest text. The first file that exists is read."""
_PACKAGES = ("sentence_transformers", "pylate", "")
"""Packages of the modules that are known. Views of a router (`router_views`) name no package."""
MAX_MODULES_BYTES = 1 << 16
"""Largest `modules.json`, and largest settings file of a router, in bytes. Published files have up to 2 KB."""
Module = tuple[str, str]
"""Class name of a module, and its folder in the checkpoint."""
Side = Literal["query", "document"]
SIDES: tuple[Side, ...] = ("query", "document")
ROUTERS = ("Router", "Asym")
CLIP = "CLIPModel"
"""Class of a module that gives the vector of a text, in older releases. Newer releases use `Transformer` instead."""
STATIC = "StaticEmbedding"
"""Class of a module that is a table of token vectors, without a transformer."""
STATIC_WEIGHTS = "SparseStaticEmbedding"
"""Class of a module that is a table with one weight per token, for queries (inference-free SPLADE)."""
ROOT_FILES = frozenset(("modules.json", "config_sentence_transformers.json", "SHA256SUMS"))
"""Files that are always at the top level of the checkpoint, even if the transformer has a folder."""


def module_kinds(directory: Path) -> list[Module]:
    """The modules that process a document, in order; empty without a readable `modules.json`."""
    return side_modules(directory, "document")


def side_modules(directory: Path, side: Side | None) -> list[Module]:
    """The modules that process a text, in order; empty without a readable `modules.json`, or without such a route.

    side: `query` or `document`; None for a text of unknown role.
    """
    try:
        modules = _listed(directory)
        if not modules or modules[0][0] not in ROUTERS:
            return modules
        return [*_route(directory, modules[0][1], side), *modules[1:]]
    except (ValueError, RecursionError, OSError, TypeError, KeyError, AttributeError):
        return []


def is_routed(directory: Path) -> bool:
    """Whether the first module is a router (`Router`, in older files `Asym`), so that queries have other modules than
    documents.
    """
    try:
        return _listed(directory)[0][0] in ROUTERS
    except (ValueError, RecursionError, OSError, TypeError, KeyError, IndexError):
        return False


def _parsed(path: Path) -> Any:
    """The contents of a JSON file, which must be small, because every lookup of a checkpoint's file reads it again."""
    return json.loads(read_bounded(path, MAX_MODULES_BYTES))


def _listed(directory: Path) -> list[Module]:
    """The modules of a checkpoint: those in its `modules.json`, or those that its GGUF file describes.

    directory: path of a directory or of a GGUF file.
    Raises OSError for a missing file, and ValueError, KeyError or TypeError for a malformed one.
    """
    if is_gguf(directory):
        from weights.gguf.container import read_gguf
        from weights.gguf.documents import document

        listed: Any = document(read_gguf(directory), "modules.json") or []
    else:
        listed = _parsed(directory / "modules.json")
    return [(_class(part["type"]), str(part["path"])) for part in listed]


def _class(name: Any) -> str:
    """Class name of a module, without its package.

    A class of an unknown package keeps the name of the package, so that it is not taken for a known class: its code may
    compute anything. An exception is the name `Transformer`: a class of Jina with this name only chooses an adapter or
    a prompt.
    """
    package, _, kind = str(name).rpartition(".")
    return kind if kind == "Transformer" or package.partition(".")[0] in _PACKAGES else str(name)


def _route(directory: Path, folder: str, side: Side | None) -> list[Module]:
    """List the modules that a router applies to a text, as class names and folders.

    The route is the route that `route_mappings` names, else the route with the name of the side, else the route `text`.
    Without such a route, the list is empty for a known side; for an unknown side (None), the default route or else the
    first route is used.

    folder: folder of the router. side: `query` or `document`; None for a text of unknown role.
    Raises OSError for a missing file, and ValueError, KeyError, TypeError or AttributeError for a malformed one.
    Source: `Router` of sentence-transformers 6.2.
    """
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
    """Name of the route for a text: from `mappings`, else the route named like the side, else `text`; None without one.

    mappings: names of routes, by the text of a pair (side, modality).
    structure: modules of each route, by the route's name.
    """
    keys = [(side, "text"), (side, None), (None, "text"), (None, None)]
    mapped = next((mappings[str(key)] for key in keys if str(key) in mappings), None)
    return mapped or next((name for name in (side, "text") if name in structure), None)


def transformer_folder(directory: Path) -> str:
    """Folder in a checkpoint with the transformer's configuration, weights and tokenizer; empty for the top level."""
    modules = module_kinds(directory)
    has_folder = bool(modules) and modules[0][0] in ("Transformer", "MLMTransformer", CLIP, STATIC)
    return "/".join(PurePath(modules[0][1]).parts) if has_folder else ""


def static_vectors(directory: Path) -> Literal["", "sentence-transformers", "model2vec"]:
    """Library that wrote a checkpoint with a table of token vectors; empty for other checkpoints.

    Both libraries write `modules.json`. Only Model2Vec writes `config.json`, which tells them apart.
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
