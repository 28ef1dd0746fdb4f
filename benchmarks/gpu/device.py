"""Measure the device of `benchmarks.gpu`: its description, bandwidth and arithmetic rate, and the times of steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import torch

from server.ipc.wire.descriptions import DeviceChoice

WARM_UP_CALLS = 3
MIN_CALLS, MAX_CALLS = 5, 50
CAPTURED_CALLS = 20


class Reader(Protocol):
    """Handle of a launched step. `read` waits for the step and returns its results."""

    def read(self) -> object: ...


@dataclass(frozen=True)
class Limits:
    """Measured limits of a device.

    device: `cuda` or `cpu`. dtype: name of the dtype of weights and hidden states.
    bytes_per_second: memory bandwidth of a copy, reads plus writes.
    operations_per_second: multiplications plus additions per second in a large matrix product in `dtype`.
    """

    device: DeviceChoice
    dtype: str
    bytes_per_second: float
    operations_per_second: float

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def plain(self) -> dict[str, Any]:
        """The limits as JSON data."""
        return asdict(self)


def measure_limits(device: DeviceChoice, dtype: str, tiny: bool) -> Limits:
    """Measure the limits of a device. tiny: whether to use small tensors, which are fast but give no real limits."""
    size, side = (1 << 20, 64) if tiny else (4 << 30, 8192)
    on = torch.device(device)
    source = torch.ones(size // 4, device=on)
    target = torch.empty_like(source)
    bandwidth = 2 * size / seconds_per_call(partial(target.copy_, source), on, tiny)
    del source, target
    # The matrices have random numbers, because a product of zeros runs faster.
    x, y = torch.randn(2, side, side, device=on).to(getattr(torch, dtype))
    return Limits(device, dtype, bandwidth, 2 * side**3 / seconds_per_call(partial(torch.mm, x, y), on, tiny))


def describe(device: str) -> dict[str, Any]:
    """Name, memory and compute capability of a device, and versions of its software, as JSON data."""
    found: dict[str, Any] = {"name": device, "torch": torch.__version__}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


def seconds_per_call(
    call: Callable[[], object], device: torch.device, tiny: bool = False, seconds: float = 2.0
) -> float:
    """Median duration of a call in seconds, including the wait for the device. Some calls before it are not timed.

    tiny: whether to time a single call, without a warm-up.
    seconds: total time for the calls, of which there are at least MIN_CALLS and at most MAX_CALLS.
    """
    if tiny:
        return _timed(call, device)
    for _ in range(WARM_UP_CALLS):
        _timed(call, device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_CALLS or (len(times) < MAX_CALLS and time.perf_counter() < end):
        times.append(_timed(call, device))
    return statistics.median(times)


def seconds_per_captured_call(call: Callable[[], object], device: torch.device, tiny: bool = False) -> float:
    """Mean duration in seconds of a call in a CUDA graph of 20 calls. On a CPU, the median duration without a graph."""
    if device.type != "cuda":
        return seconds_per_call(call, device, tiny)
    for _ in range(WARM_UP_CALLS):
        _timed(call, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED_CALLS):
            call()
    return seconds_per_call(graph.replay, device) / CAPTURED_CALLS


def seconds_per_step_ahead(launch: Callable[[], Reader], tiny: bool = False) -> float:
    """Duration of a step in seconds if each step is launched before the previous one's results are read.

    The engine runs steps in this way.

    launch: starts a step and returns an object that reads its results.
    tiny: whether to run only few steps.
    """
    rounds, steps = (1, 1) if tiny else (MIN_CALLS, MAX_CALLS)
    times = []
    pending = launch()
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for _ in range(steps):
            following = launch()
            pending.read()
            pending = following
        times.append((time.perf_counter() - started) / steps)
    pending.read()
    return statistics.median(times[1:])


def _timed(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
