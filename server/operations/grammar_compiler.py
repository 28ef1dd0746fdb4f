"""Compile the formats of answers into grammars, in separate processes with limits on processor time and memory."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from server.errors import NotReady
from server.system.line_process import LineProcess

CPU_SECONDS = 2.0
MEMORY_BYTES = 512 << 20
WALL_SECONDS = 20.0
"""Limit of elapsed time for one format. It matters on a busy machine, where the process gets little processor time."""
REQUEST_SECONDS = 8.0
"""Maximum processor time for all formats of one request together."""
NUM_PROCESSES = 2
MAX_CACHED_BYTES = 32 << 20
RESULT_BYTES = 512
"""Bytes of memory for a cached result besides its texts: objects, and an entry in a table."""
_PROCESS_FILE = Path(__file__).with_name("grammar_process.py")


@dataclass
class CompileBudget:
    """Processor time that one request may still use for compiling."""

    seconds_left: float = REQUEST_SECONDS


@dataclass(frozen=True)
class CompiledFormat:
    """The result of compiling one format.

    source: its grammar in llguidance's JSON form; empty for a format that cannot be used.
    refused: reason why the format cannot be used, as the end of a sentence that begins with the field's name; empty if
        it can be used.
    is_final: whether the result is the same on a busy server, so that it may be cached.
    """

    source: str = ""
    refused: str = ""
    is_final: bool = True

    @property
    def size(self) -> int:
        return len(self.source)


class Remembered(Protocol):
    """A result that `GrammarCompiler.remember` can cache. size: its memory in bytes. is_final: whether to cache it."""

    @property
    def size(self) -> int: ...

    @property
    def is_final(self) -> bool: ...


Result = TypeVar("Result", bound=Remembered)


class GrammarCompiler:
    """Compiles formats of answers. Safe for use by several threads; a call waits until one of the processes is free.

    The processes start with the first format. A process that has exceeded a limit is replaced.

    cpu_seconds, memory_bytes: limits of processor time and memory for one format.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._cpu_seconds = cpu_seconds
        self._too_complex = (
            f"takes more than {cpu_seconds:g} s or more than {memory_bytes >> 20} MiB of memory to compile"
        )
        self._processes = [
            LineProcess(_PROCESS_FILE, [str(memory_bytes)], gives_way=True) for _ in range(NUM_PROCESSES)
        ]
        self._idle: queue.LifoQueue[LineProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._cached_bytes = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def remember(self, key: str, make: Callable[[], Result]) -> Result:
        """Return the cached result for a key, or the result of `make`, which is cached if it is final.

        The least recently used results are dropped when the cache exceeds `MAX_CACHED_BYTES`.
        """
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                kept: Result = self._results[key]
                return kept
        result = make()
        if result.is_final:
            with self._lock:
                self._store(key, result)
        return result

    def compile_schema(
        self, schema: str, options: Mapping[str, Any], budget: CompileBudget, is_quick: bool = False
    ) -> CompiledFormat:
        """Compile a JSON schema. A schema that takes too long is refused, which is said in the result.

        schema: JSON text. options: options of llguidance.
        budget: processor time that is left to the request; the time that is used is subtracted.
        is_quick: refuse the schema after a quarter of the usual processor time.
        Raises NotReady if the process does not answer, for example because it cannot be started.
        """
        return self._compile({"schema": schema, "options": options}, budget, 0.25 if is_quick else 1.0)

    def compile_pattern(self, pattern: str, budget: CompileBudget) -> CompiledFormat:
        """Compile a regular expression. Raises NotReady if the process does not answer."""
        return self._compile({"pattern": pattern}, budget)

    def check_grammar(self, grammar: str, budget: CompileBudget) -> CompiledFormat:
        """Compile a complete grammar only to check it. `refused` of the result says why it cannot be used; else empty.

        `source` of the result is always empty. The grammar is also refused if `budget` is used up or the server
        is stopping.
        Raises NotReady if the compiling process does not answer in time.
        """
        return self._compile({"grammar": grammar}, budget)

    def close(self) -> None:
        """Stop the processes. After that, all formats are refused. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for process in self._processes:
            process.kill()
        for _ in self._processes:
            self._idle.get().stop()

    def _compile(self, text_format: Mapping[str, Any], budget: CompileBudget, share: float = 1.0) -> CompiledFormat:
        if self._is_closed:
            return CompiledFormat(refused="cannot be compiled any more: the server is stopping", is_final=False)
        if budget.seconds_left <= 0:
            together = f"takes, with the others of the request, more than {REQUEST_SECONDS:g} s to compile"
            return CompiledFormat(refused=together, is_final=False)
        cpu_seconds = share * self._cpu_seconds
        line = json.dumps({**text_format, "cpu_seconds": cpu_seconds}).encode() + b"\n"
        process = self._idle.get()
        started = time.monotonic()
        try:
            reply = process.exchange(line, WALL_SECONDS)
        except TimeoutError as error:
            raise NotReady(f"the process that compiles grammars {error}; try again", retry_after=1) from None
        finally:
            self._idle.put(process)
        if not reply:
            budget.seconds_left -= cpu_seconds
            return CompiledFormat(refused=self._too_complex, is_final=time.monotonic() - started < WALL_SECONDS)
        value = json.loads(reply)
        budget.seconds_left -= value["seconds"]
        return CompiledFormat(value.get("source", ""), value.get("refused", ""))

    def _store(self, key: str, result: Remembered) -> None:
        if key not in self._results:
            self._cached_bytes += RESULT_BYTES + len(key) + result.size
        else:
            self._cached_bytes += result.size - self._results[key].size
        self._results[key] = result
        while self._cached_bytes > MAX_CACHED_BYTES:
            oldest, forgotten = self._results.popitem(last=False)
            self._cached_bytes -= RESULT_BYTES + len(oldest) + forgotten.size
