"""The process that reads and writes documents, separate from the server: a small file can take hours or gigabytes.

Usage: `python -P document_process.py CPU_SECONDS MEMORY_BYTES`. Each request is a line of JSON on stdin. The bytes of
the file follow it, and then, to write the file, the translations (`unit_lines.text_lines`). Members of a request:

- `suffix`: the format, a key of `FORMATS`. `bytes`: size of the file.
- `translations`: size of the translations in bytes; null to read the texts of the file.
- `target_lang`: code of the language of the translations.

Each reply is a line of JSON on stdout, followed by the texts (`unit_lines.unit_lines`) or the translated file. It has
`bytes`, the size of the data that follow it, and for texts also `characters`, `text_bytes` and `has_text` (whether a
text has a letter). If the document cannot be used, the reply is `{"refused": reason}`.

If a document takes more than CPU_SECONDS of processor time, the process ends without a reply.

The document that was read last is kept, so that it need not be parsed again to be written.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the server's packages, from any working directory

from server.text.documents.formats import FORMATS
from server.text.documents.unit_lines import read_text_lines, unit_lines
from server.text.documents.units import Document, DocumentError

MAX_TEXT_BYTES = 64 << 20
"""Limit on the texts of one document, as lines of JSON in UTF-8."""


KEPT_MEMORY_BYTES = 256 << 20
"""A process that has needed more memory than this keeps no document."""


class Documents:
    """Reads and writes documents. Keeps the one that was read last, until the next request.

    It is kept only on systems that tell the memory of a process: not on Windows.
    """

    def __init__(self) -> None:
        self._last: tuple[str, bytes, Document] | None = None

    def work(self, request: dict[str, Any], data: bytes, translations: bytes) -> tuple[dict[str, Any], bytes]:
        """Read the texts of a document, or write it with translations. Returns the reply, and the bytes that follow it.

        data: the file. translations: the translated texts as lines of JSON; empty for a request to read.
        Raises DocumentError for a file that cannot be read or has too much text.
        """
        suffix = request["suffix"]
        if request["translations"] is not None:
            written = self._taken(suffix, data).write(list(read_text_lines(translations)), request["target_lang"])
            return {"bytes": len(written)}, written
        self._last = None  # frees its memory before the file is parsed
        document = FORMATS[suffix].read(data)
        reply = _texts_of(document)
        if _peak_memory() <= KEPT_MEMORY_BYTES:
            self._last = suffix, data, document
        return reply

    def _taken(self, suffix: str, data: bytes) -> Document:
        """The document of a file: the kept one if it comes from the same file, else parsed anew. Then none is kept."""
        document = self._last[2] if self._last is not None and self._last[:2] == (suffix, data) else None
        self._last = None
        return FORMATS[suffix].read(data) if document is None else document


def _texts_of(document: Document) -> tuple[dict[str, Any], bytes]:
    """The reply to a request to read, and the texts. Raises DocumentError for too much text."""
    units = document.units
    content = unit_lines(units)
    if len(content) > MAX_TEXT_BYTES:
        raise DocumentError(f"the document has more than {MAX_TEXT_BYTES >> 20} MiB of text")
    about = {
        "characters": sum(len(unit.text) for unit in units),
        "text_bytes": sum(len(unit.text.encode()) for unit in units),
        "has_text": any(any(map(str.isalpha, unit.text)) for unit in units),
    }
    return {"bytes": len(content), **about}, content


def _peak_memory() -> float:
    """The most memory in bytes that this process has used; infinite where the system does not tell it."""
    if sys.platform == "win32":
        return math.inf
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space of this process, and forbid core files. No effect on Windows."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_alarm(cpu_seconds: float) -> None:
    """End the process after `cpu_seconds` of processor time; 0 cancels the limit. No effect on Windows."""
    if sys.platform == "win32":
        return
    import signal

    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    cpu_seconds, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    _limit_memory(memory_bytes)
    source, output = sys.stdin.buffer, sys.stdout.buffer
    documents = Documents()
    output.write(b"\n")
    output.flush()
    for line in source:
        request = json.loads(line)
        data, translations = source.read(request["bytes"]), source.read(request["translations"] or 0)
        _set_alarm(cpu_seconds)
        try:
            reply, content = documents.work(request, data, translations)
        except DocumentError as error:
            reply, content = {"refused": str(error)}, b""
        except RecursionError:
            reply, content = {"refused": "the document is nested too deep"}, b""
        except MemoryError:
            reply, content = {"refused": "too_much_memory"}, b""
        _set_alarm(0)
        output.write(json.dumps(reply).encode() + b"\n")
        output.write(content)
        output.flush()


if __name__ == "__main__":
    main()
