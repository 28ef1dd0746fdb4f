"""Explain why a directory is no checkpoint, and what to write instead. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from weights.bounded_json import parse_json
from weights.sentence_modules import module_kinds, static_vectors, transformer_folder

POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of a Git LFS pointer, a small file in place of a large one. Source: the Git LFS specification."""
MAX_POINTER_BYTES = 1024
MAX_LISTED = 4


def mistake(source: str, directory: Path, is_adapter: bool) -> str | None:
    """Message that says why a directory is not the expected checkpoint, in one line; None if it may be one.

    source: the directory as the user wrote it.
    is_adapter: whether an adapter is expected, not a model.
    """
    return _pointer(source, directory) or (
        _not_an_adapter(source, directory) if is_adapter else _not_a_model(source, directory)
    )


def missing(source: str) -> str:
    """Message for a path that does not exist. It names the longest part of the path that exists."""
    path = Path(source).expanduser()
    there = next((str(parent) for parent in path.parents if parent.is_dir()), "")
    until = f"; {there!r} exists" if there not in ("", ".", "/") else ""
    return f"there is no directory {source!r}{until}: write the directory that holds config.json, or a hub id org/name"


def _pointer(source: str, directory: Path) -> str | None:
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.stat().st_size <= MAX_POINTER_BYTES and path.read_bytes().startswith(POINTER):
            return (
                f"{path.name!r} in {source!r} is a Git LFS pointer of {path.stat().st_size} bytes, not the file: "
                f"run `git lfs pull` in that directory"
            )
    return None


def _not_an_adapter(source: str, directory: Path) -> str | None:
    if (directory / "adapter_config.json").exists() or not (directory / "config.json").exists():
        return None
    return f"{source!r} is a model, not an adapter: serve it as NAME={source}"


def _not_a_model(source: str, directory: Path) -> str | None:
    files = directory / transformer_folder(directory)
    if (files / "config.json").exists() or (directory / "gliner_config.json").exists():
        return None
    if static_vectors(directory) and (files / "tokenizer.json").exists():
        return None
    modules = module_kinds(directory)
    if modules:
        kinds = ", ".join(kind for kind, _ in modules)
        return (
            f"{source!r} is a sentence-transformers checkpoint of the modules {kinds}: supported are those that begin "
            "with Transformer, MLMTransformer, CLIPModel or StaticEmbedding"
        )
    if (directory / "adapter_config.json").exists():
        return (
            f"{source!r} is an adapter, not a model: serve its base model, for example "
            f"llm={_base_model(directory)} --adapter NAME={source}@llm"
        )
    if directory.name.startswith("models--") and (directory / "snapshots").is_dir():
        repository = directory.name.removeprefix("models--").replace("--", "/")
        return f"{source!r} is a folder of the hub cache: write its hub id, {repository}"
    found = sorted(path.parent for path in directory.glob("*/config.json"))
    if found:
        named = " ".join(f"{path.name}={Path(source) / path.name}" for path in found[:MAX_LISTED])
        more = f" (and {len(found) - MAX_LISTED} more)" if len(found) > MAX_LISTED else ""
        return f"{source!r} is a directory of checkpoints, not a checkpoint: choose from {named}{more}"
    cached = sorted(path.name.removeprefix("models--").replace("--", "/") for path in directory.glob("models--*"))
    if cached:
        return f"{source!r} is the hub cache: write a hub id, for example {cached[0]}"
    if next(directory.glob("*.gguf"), None) is not None:
        return f"{source!r} has GGUF files, but not the first piece of a model (-00001-of-...)"
    return f"{source!r} is not a checkpoint: it has no config.json"


def _base_model(directory: Path) -> str:
    try:
        name = parse_json(directory / "adapter_config.json")["base_model_name_or_path"]
    except (ValueError, LookupError, TypeError):
        name = None
    return name if isinstance(name, str) and name else "PATH_OR_HUB_ID"
