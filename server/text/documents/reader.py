"""Read and write documents in a separate process, under limits on processor time and memory.

The process keeps only the document that it read last. To write another one, it parses the file again.
See docs/decisions/0140-documents.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.errors import NotReady
from server.system.line_process import LineProcess
from server.text.documents.unit_lines import read_unit_lines, text_lines
from server.text.documents.units import DocumentError, TextUnit

CPU_SECONDS = 60.0
"""Limit on the processor time to read or write one document. An HTML page of 30 MB takes about 10 s."""
MEMORY_BYTES = 1 << 30
WALL_SECONDS = 240.0
"""Limit on the elapsed time to read or write one document. It is reached only on a very busy machine."""
_PROCESS_FILE = Path(__file__).with_name("document_process.py")


@dataclass(frozen=True)
class DocumentTexts:
    """The texts of a document.

    units: the texts, in order, with their markup.
    characters, num_bytes: size of all texts together, in characters and in bytes of UTF-8.
    has_text: whether a text has a letter.
    """

    units: Sequence[TextUnit]
    characters: int
    num_bytes: int
    has_text: bool


class DocumentReader:
    """Reads and writes documents, one at a time. Safe to use from several threads.

    The process starts with the first document, and is replaced after it exceeded a limit.

    cpu_seconds: limit on the processor time to read or write one document.
    memory_bytes: limit on the address space of the process.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._lock = threading.Lock()
        self._limits = f"{cpu_seconds:g} s of processor time or {memory_bytes >> 20:,} MiB of memory"
        self._process = LineProcess(_PROCESS_FILE, [str(cpu_seconds), str(memory_bytes)], gives_way=True)

    def read(self, suffix: str, data: bytes) -> DocumentTexts:
        """Return the texts of a document.

        suffix: format of the file, a key of `formats.FORMATS`.
        Raises DocumentError for a file that cannot be read or exceeds a limit, and NotReady if the process does not
        reply.
        """
        reply, content = self._exchange({"suffix": suffix, "bytes": len(data), "translations": None}, data)
        units = list(read_unit_lines(content))
        return DocumentTexts(units, reply["characters"], reply["text_bytes"], reply["has_text"])

    def write(self, suffix: str, data: bytes, translations: Sequence[str], target_lang: str) -> bytes:
        """Return the file with a translation in place of each text. Raises the errors of `read`.

        data: the file that was read. translations: translation of each text, in the order of `DocumentTexts.units`.
        target_lang: code of the translations' language, for formats that name it.
        """
        lines = text_lines(translations)
        request = {"suffix": suffix, "bytes": len(data), "translations": len(lines), "target_lang": target_lang}
        return self._exchange(request, data + lines)[1]

    def close(self) -> None:
        """Stop the process for good. Later calls of `read` and `write` raise NotReady."""
        self._process.kill()
        with self._lock:
            self._process.stop()

    def _exchange(self, request: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            try:
                line, received = self._process.exchange_bytes(
                    json.dumps(request).encode() + b"\n" + content,
                    WALL_SECONDS,
                    lambda reply: int(json.loads(reply).get("bytes", 0)),
                )
            except TimeoutError as error:
                raise NotReady(f"the process that reads documents {error}; try again", retry_after=1) from None
        reply: dict[str, Any] = json.loads(line) if line else {"refused": "too_much_memory"}
        reason = reply.get("refused")
        if reason == "too_much_memory":
            raise DocumentError(f"the document is damaged, or takes more than {self._limits}")
        if reason is not None:
            raise DocumentError(reason)
        return reply, received
