"""Loads the weights of a checkpoint, and turns every failure into one line for the operator."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from models.backends import choice
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.checkpoint.loader import LoadedModel, load_model
from models.config import ConfigError
from server.engine.device.devices import dtype_of
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.packed_cache import PackedCache, packed_key
from server.engine.loading.planning_limit import PlanningTooLong, planning_limit
from server.errors import one_line
from server.ipc.wire.descriptions import ModelSpec
from weights.errors import ResolveError, WeightsError

ProgressCallback = Callable[[int, int], None]


class LoadError(Exception):
    """A checkpoint cannot be served, and a restart would not help. The message is one line for the operator."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def unexpected(error: Exception) -> str:
    """Message for an exception that no loader raises on purpose. It blames the files and says where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"its files are damaged, or contradict each other ({type(error).__name__}{at})"


def load(
    spec: ModelSpec,
    device: torch.device,
    progress: ProgressCallback,
    memory: TensorMemory = PRIVATE,
    cache: PackedCache | None = None,
) -> LoadedCheckpoint:
    """Load a checkpoint.

    progress: called with the bytes read so far and in total.
    memory: keeps the tensors of the model.
    cache: packed weights of earlier loads, or None. Not used if `memory` already has the tensors.
    Raises LoadError for every failure: invalid or damaged files, too little memory, or too long a planning phase.
    """
    started = time.monotonic()
    try:
        dtype = dtype_of(spec, device)
        adapters = {adapter: Path(directory) for adapter, directory in spec.adapters.items()}
        directory = Path(spec.directory)
        head_path = "" if spec.speculation is None else spec.speculation.head_of(spec.directory)
        head = Path(head_path) if head_path else None
        paths = (directory, *adapters.values(), *(() if head is None else (head,)))
        with planning_limit(paths, progress, limits_memory=device.type == "cpu") as report:

            def read(memory: TensorMemory) -> LoadedModel:
                return load_model(
                    directory, dtype, device, report, spec.quantization, adapters, memory, spec.answers, head
                )

            model, is_from_cache = (
                (read(memory), False)
                if cache is None or memory.is_filled
                else cache.load(spec.name, lambda: packed_key(spec, dtype, device), memory, report, read)
            )
    except (
        choice.QuantizationUnavailable,
        choice.BatchInvarianceUnavailable,
        ConfigError,
        WeightsError,
        ResolveError,
    ) as error:
        raise LoadError(f"model {spec.name!r}: {error}") from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise LoadError(f"model {spec.name!r} does not fit into the memory of the device") from error
    except PlanningTooLong as error:
        raise LoadError(
            f"model {spec.name!r}: its settings and names take too long to read, before any weight"
        ) from error
    except Exception as error:
        raise LoadError(f"model {spec.name!r}: {unexpected(error)}") from error
    return LoadedCheckpoint(spec, model, dtype, device, time.monotonic() - started, is_from_cache)
