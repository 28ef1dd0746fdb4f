"""Low-rank adapters inside the checkpoint of a model, one for each task (Jina Embeddings 3 and 5). Imports no torch.

In Jina Embeddings 3, torch stores them as parametrizations of a weight: `<module>.parametrizations.weight.0.lora_A` and
`lora_B`, with one matrix per task, in the order of `lora_adaptations` in `config.json`. In Jina Embeddings 5, each task
of `task_names` has a folder as peft saves it, `adapters/<task>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from weights.json_files import NotJson, read_json_file


def adapter_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the adapters in a checkpoint with this `config.json`; empty without adapters."""
    names = config.get("lora_adaptations")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def adapter_directory(checkpoint: Path, name: str) -> Path | None:
    """The path that denotes an adapter of a checkpoint: its name in the directory, or its folder. None without it."""
    try:
        config = read_json_file(checkpoint, "config.json")
    except NotJson:
        return None
    if not isinstance(config, dict):
        return None
    if name in adapter_names(config):
        return checkpoint / name
    tasks = config.get("task_names")
    is_task = isinstance(tasks, list) and name in tasks and PurePath(name).name == name
    return checkpoint / "adapters" / name if is_task else None
