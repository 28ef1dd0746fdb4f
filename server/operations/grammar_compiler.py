"""Compiles the formats of answers into grammars, in processes under limits on processor time and memory."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server.line_process import LineProcess

CPU_SECONDS = 2.0
MEMORY_BYTES = 512 << 20
WALL_SECONDS = 20.0
"""Limit for one request on a machine that is too busy to give the process its processor time."""
NUM_PROCESSES = 2
MAX_CACHED_BYTES = 16 << 20
_PROCESS_FILE = Path(__file__).with_name("grammar_process.py")


class GrammarRefused(ValueError):
    """A format cannot be used.

    index: place of the format in the request. The message completes a sentence that begins with the name of the field.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class GrammarCompiler:
    """Compiles formats. Safe to use from several threads; each waits for one of the processes.

    The processes start with the first format, and are replaced after they exceeded a limit.

    cpu_seconds, memory_bytes: limits for all formats of one request together.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._too_complex = (
            f"takes more than {cpu_seconds:g} s or more than {memory_bytes >> 20} MiB of memory to compile"
        )
        arguments = [str(cpu_seconds), str(memory_bytes)]
        self._processes = [LineProcess(_PROCESS_FILE, arguments, gives_way=True) for _ in range(NUM_PROCESSES)]
        self._idle: queue.LifoQueue[LineProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._replies: OrderedDict[bytes, list[dict[str, str]]] = OrderedDict()
        self._cached_bytes = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def json_sources(self, schemas: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """The grammar of each schema, in llguidance's JSON form. schemas: JSON texts. Raises GrammarRefused."""
        return self._sources([{"schema": schema, "options": options} for schema in schemas])

    def pattern_source(self, pattern: str) -> str:
        """The grammar of a regular expression, in llguidance's JSON form. Raises GrammarRefused."""
        return self._sources([{"pattern": pattern}])[0]

    def close(self) -> None:
        """End the processes, so that formats are refused from now on. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for process in self._processes:
            process.kill()
        for _ in self._processes:
            self._idle.get().stop()

    def _sources(self, formats: Sequence[Mapping[str, Any]]) -> list[str]:
        if not formats:
            return []
        replies = self._compile(json.dumps(formats).encode() + b"\n")
        for index, reply in enumerate(replies):
            if "refused" in reply:
                raise GrammarRefused(index, reply["refused"])
        return [reply["source"] for reply in replies]

    def _compile(self, line: bytes) -> list[dict[str, str]]:
        with self._lock:
            if line in self._replies:
                self._replies.move_to_end(line)
                return self._replies[line]
        if self._is_closed:
            raise GrammarRefused(0, "cannot be compiled any more: the server is stopping")
        process = self._idle.get()
        started = time.monotonic()
        try:
            reply = process.exchange(line, WALL_SECONDS)
        except TimeoutError as error:
            raise GrammarRefused(0, f"cannot be compiled: the process for it {error}") from None
        finally:
            self._idle.put(process)
        replies: list[dict[str, str]] = json.loads(reply) if reply else [{"refused": self._too_complex}]
        if not reply and time.monotonic() - started >= WALL_SECONDS:
            return replies
        with self._lock:
            self._store(line, replies)
        return replies

    def _store(self, line: bytes, replies: list[dict[str, str]]) -> None:
        """Keep replies for equal requests, the latest ones."""
        if line not in self._replies:
            self._cached_bytes += 2 * len(line)
        self._replies[line] = replies
        while self._cached_bytes > MAX_CACHED_BYTES:
            oldest, _ = self._replies.popitem(last=False)
            self._cached_bytes -= 2 * len(oldest)
