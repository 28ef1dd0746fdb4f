"""Low-rank adapters inside the checkpoint of a model, one for each task (Jina Embeddings 3). Imports no torch.

torch stores them as parametrizations of a weight: `<module>.parametrizations.weight.0.lora_A` and `lora_B`, with one
matrix per task, in the order of `lora_adaptations` in `config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weights.json_files import NotJson, read_json_file


def adapter_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the adapters in a checkpoint with this `config.json`; empty without adapters."""
    names = config.get("lora_adaptations")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def adapter_directory(checkpoint: Path, name: str) -> Path | None:
    """The path that denotes an adapter of a checkpoint: its name in the directory. None without such an adapter."""
    try:
        config = read_json_file(checkpoint, "config.json")
    except NotJson:
        return None
    return checkpoint / name if isinstance(config, dict) and name in adapter_names(config) else None
