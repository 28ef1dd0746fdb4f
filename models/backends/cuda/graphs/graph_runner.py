"""Interface to capture the work of a device as a graph and to replay it, and its implementation for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class DeviceEvent(Protocol):
    """A point in the sequence of work that a device processes.

    record: sets the point to the end of the work so far. synchronize: waits until the device has passed the point.
    """

    def record(self) -> object: ...

    def synchronize(self) -> object: ...


class GraphRunner(Protocol):
    """Captures and replays work of a device.

    capture: runs a function and records its work. Returns a function that replays the work in the same memory, and the
        result of the function, whose tensors each replay overwrites.
    pinned: zeroed host memory, [size], int64, which the device can read and write while the host runs.
    event: a new event.
    """

    def capture(self, run: Callable[[], Result]) -> tuple[Callable[[], object], Result]: ...

    def pinned(self, size: int) -> Tensor: ...

    def event(self) -> DeviceEvent: ...


class CudaGraphRunner:
    """Graphs of a CUDA device. All graphs share one pool of memory. Implements `GraphRunner`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        # The first run compiles kernels and makes tables, which a capture must not.
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph.replay, result

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64, pin_memory=True)

    def event(self) -> DeviceEvent:
        event: DeviceEvent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event


def make_runner(device: torch.device) -> GraphRunner:
    """The runner of a device."""
    return CudaGraphRunner(device)
