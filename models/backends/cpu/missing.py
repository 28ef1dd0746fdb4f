"""Find out why this installation has no compiled kernels. Imports no torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

REPORT = "_kernels_missing.txt"
"""Name of a file in this directory. `setup.py` writes to it why it could not build the kernels, and what to install."""


def why_kernels_are_missing(directory: Path = Path(__file__).parent) -> str:
    """One line with the reason why `library.load` found no usable kernels, and the remedy.

    directory: directory of the library and the build report.
    """
    report = directory / REPORT
    if report.exists():
        return report.read_text(encoding="utf-8").strip()
    for library in sorted(directory.glob("_kernels*.so")):
        if _processor(library) != _processor(Path("/proc/self/exe")):
            return f"{library.name} was built for another processor. Install Triptych again on this machine."
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return f"{library.name} does not load: {error}. Install Triptych again on this machine."
        return f"{library.name} was built from other sources than this version. Install Triptych again."
    return "the package was copied or unpacked without them. Install Triptych with pip."


def _processor(path: Path) -> tuple[bytes, bytes]:
    """Two fields of the ELF header of a program or library: word size with byte order, and processor."""
    with path.open("rb") as file:
        header = file.read(20)
    return header[4:6], header[18:20]
