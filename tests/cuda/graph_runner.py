"""A graph runner without a device, which refuses what a captured step must not do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST_READ_METHODS = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")
"""Methods of a tensor that read a device tensor on the host. On a CPU, some of them run no operation."""
HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal", "lift_fresh")
"""Operations that read a device tensor on the host, or copy a new tensor of the host to the device."""


class Forbidden(AssertionError):
    """An operation that a captured step, or the code between two steps, must not run."""


class _Mode(TorchDispatchMode):
    """Calls `check` after each operation with its name, its tensors and its results."""

    def __init__(self, check: Callable[[str, list[Tensor], list[Tensor]], None]) -> None:
        super().__init__()
        self._check = check

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_leaves(tree) if isinstance(x, Tensor)] for tree in ((args, kwargs), result))
        self._check(func.overloadpacket.__name__, given, made)
        return result


class _NoHostReads(TorchFunctionMode):
    """Forbids `HOST_READ_METHODS`. Triton's interpreter may use them: it stands for the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in HOST_READ_METHODS and "/triton/" not in sys._getframe(1).f_code.co_filename:
            raise Forbidden(f"{func.__name__} reads a tensor on the host while the device is at work")
        return func(*args, **(kwargs or {}))


class FakeEvent:
    """An event that writes to the log of its runner. number: events are numbered in the order of their creation."""

    def __init__(self, log: list[str], number: int) -> None:
        self._log, self._number = log, number

    def record(self) -> None:
        self._log.append(f"record {self._number}")

    def synchronize(self) -> None:
        self._log.append(f"wait {self._number}")


class FakeGraphRunner:
    """Runs a captured function again for each replay. Implements `GraphRunner`.

    The results are copied to where the first run put them, as a replay writes to the memory of the capture.

    rows: rows of the first result of each captured step, in their order.
    log: replays and events, in their order. Event 0 is that of the inputs; 1 and 2 are those of chosen tokens.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.log: list[str] = []
        self._num_events = 0
        self._is_replaying = False

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        result = self._run(run)
        self.rows.append(tree_leaves(result)[0].shape[0])

        def replay() -> None:
            self.log.append("replay")
            for target, source in zip(tree_leaves(result), tree_leaves(self._run(run)), strict=True):
                if target is not None and target.data_ptr() != source.data_ptr():
                    target.copy_(source)

        return replay, result

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64)

    def event(self) -> FakeEvent:
        self._num_events += 1
        return FakeEvent(self.log, self._num_events - 1)

    @staticmethod
    @contextmanager
    def without_host_reads() -> Iterator[None]:
        """Forbid methods that wait for the device."""
        with _NoHostReads():
            yield

    @contextmanager
    def without_allocations(self) -> Iterator[None]:
        """Forbid operations that allocate memory, except inside replays."""

        def check(name: str, given: list[Tensor], made: list[Tensor]) -> None:
            known = {tensor.untyped_storage().data_ptr() for tensor in given}
            if not self._is_replaying and any(tensor.untyped_storage().data_ptr() not in known for tensor in made):
                raise Forbidden(f"{name} allocates memory between two steps")

        with _Mode(check):
            yield

    def _run(self, run: Callable[[], Any]) -> Any:
        def check(name: str, given: list[Tensor], made: list[Tensor]) -> None:
            if name in HOST_READS:
                raise Forbidden(f"{name} reads or writes on the host during a captured step")

        self._is_replaying = True
        try:
            with _Mode(check), _NoHostReads():
                return run()
        finally:
            self._is_replaying = False
