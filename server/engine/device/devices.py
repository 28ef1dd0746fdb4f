"""The device of a worker: which one it is, whether this build of torch computes on it, and in which dtypes."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from models.checkpoint.loader import refused_dtypes
from models.config import ConfigError
from server.ipc.wire.descriptions import ModelSpec

_BFLOAT16_CAPABILITY = (8, 0)
"""First compute capability with bfloat16 in hardware (Ampere). Older devices emulate it, slower than float32."""


def cuda_device(worker_index: int) -> torch.device:
    """The CUDA device of a worker: `worker_index` modulo the number of devices. There must be at least one device."""
    return torch.device("cuda", worker_index % torch.cuda.device_count())


def why_no_device() -> str:
    """Why torch can use no CUDA device, in one line. Called where there is none."""
    if torch.version.cuda is None:
        return (
            f"this build of torch ({torch.__version__}) is for CPUs only; install torch for CUDA, or use --device cpu"
        )
    return (
        "torch finds no CUDA device; `nvidia-smi` shows whether the driver finds one, and a container needs access to "
        "it (--gpus all)"
    )


def why_too_old(device: torch.device) -> str | None:
    """Why this build of torch has no code for a CUDA device, in one line; None if it has such code."""
    built = [int(found[1]) for name in torch.cuda.get_arch_list() if (found := re.fullmatch(r"sm_(\d+)a?", name))]
    major, minor = torch.cuda.get_device_capability(device)
    if not built or 10 * major + minor >= min(built):
        return None
    least = min(built)
    return (
        f"{_name(device)} is too old for this build of torch, which needs compute capability "
        f"{least // 10}.{least % 10} or more; use --device cpu, or a build of torch for older devices"
    )


def dtype_of(spec: ModelSpec, device: torch.device) -> torch.dtype:
    """Dtype of the weights of a model on a device.

    `auto` is float32 on a CPU and bfloat16 on CUDA; on a device without bfloat16 it is float16, or float32 for a family
    whose values exceed float16. Raises ConfigError if the spec asks for bfloat16 and the device has none.
    """
    name: str = spec.dtype
    if name == "bfloat16" and not _has_bfloat16(device):
        raise ConfigError(f"{_name(device)} has no bfloat16; use --dtype float16 or --dtype float32")
    if name == "auto" and device.type != "cuda":
        name = "float32"
    elif name == "auto" and _has_bfloat16(device):
        name = "bfloat16"
    elif name == "auto":
        name = "float32" if "float16" in refused_dtypes(Path(spec.directory)) else "float16"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _has_bfloat16(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= _BFLOAT16_CAPABILITY


def _name(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
