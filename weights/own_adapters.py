"""Find low-rank adapters inside the checkpoint of a model, one per task (Jina Embeddings 3 and 5). Imports no torch.

In Jina Embeddings 3, torch stores them as parametrizations of a weight: `<module>.parametrizations.weight.0.lora_A` and
`lora_B`, with one matrix per task, in the order of `lora_adaptations` in `config.json`. In Jina Embeddings 5, each task
in `task_names` has a folder `adapters/<task>` in the format of peft.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from weights.json_files import NotJson, read_json_file


def adapter_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the adapters in `lora_adaptations` (Jina Embeddings 3); empty without adapters.

    config: contents of `config.json`.
    """
    names = config.get("lora_adaptations")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def adapter_directory(checkpoint: Path, name: str) -> Path | None:
    """Path that denotes the adapter `name` of a checkpoint; None if the checkpoint has no such adapter.

    For Jina Embeddings 3 this is `<checkpoint>/<name>`, which does not exist on disk; for Jina Embeddings 5 it is the
    adapter's folder.
    """
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
