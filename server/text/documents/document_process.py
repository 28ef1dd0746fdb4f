"""The process that reads and writes documents, separate from the server: a small file can take hours or gigabytes.

Usage: `python -P document_process.py CPU_SECONDS MEMORY_BYTES`. Each request is a line of JSON on stdin, followed by
the bytes of the file and, to write it, by the translations (`unit_lines.text_lines`):

- `suffix`: the format. `bytes`: size of the file.
- `translations`: size of the translations; null to read the texts. `target_lang`: the language of the translations.

Each reply is a line of JSON on stdout, followed by bytes: the texts (`unit_lines.unit_lines`) or the translated file.
`{"bytes": n, "characters": n, "text_bytes": n, "has_text": ...}`, or `{"refused": reason}`.

A document that takes more than the processor time or the memory ends the process without a reply.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the server's packages, from any working directory

from server.text.documents.formats import FORMATS
from server.text.documents.unit_lines import read_text_lines, unit_lines
from server.text.documents.units import DocumentError

MAX_TEXT_BYTES = 64 << 20
"""Texts of one document, in UTF-8."""


def work(request: dict[str, Any], data: bytes, translations: bytes) -> tuple[dict[str, Any], bytes]:
    """The reply to a request, and the bytes that follow the reply. Raises DocumentError.

    data: the document. translations: the translated texts as lines of JSON; ignored if the request has none.
    """
    document = FORMATS[request["suffix"]].read(data)
    if request["translations"] is not None:
        written = document.write(list(read_text_lines(translations)), request["target_lang"])
        return {"bytes": len(written)}, written
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


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space, and forbid core files."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_alarm(cpu_seconds: float) -> None:
    """End the process after this processor time; 0 for no limit. Time in which other processes run is not included."""
    if sys.platform == "win32":
        return
    import signal

    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def main() -> None:
    """Print an empty line when ready, then reply to requests until stdin closes."""
    cpu_seconds, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    _limit_memory(memory_bytes)
    source, output = sys.stdin.buffer, sys.stdout.buffer
    output.write(b"\n")
    output.flush()
    for line in source:
        request = json.loads(line)
        data, translations = source.read(request["bytes"]), source.read(request["translations"] or 0)
        _set_alarm(cpu_seconds)
        try:
            reply, content = work(request, data, translations)
        except DocumentError as error:
            reply, content = {"refused": str(error)}, b""
        except MemoryError:
            reply, content = {"refused": "too_much_memory"}, b""
        _set_alarm(0)
        output.write(json.dumps(reply).encode() + b"\n")
        output.write(content)
        output.flush()


if __name__ == "__main__":
    main()
