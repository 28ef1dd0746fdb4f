"""The library of llama.cpp with the 4-bit format Q4_K_M, whose scales are quantised. Some matrices are in Q6_K."""

from __future__ import annotations

from benchmarks.contestants import llama_library


class Entry(llama_library.Entry):
    """A context of llama.cpp for one model, whose 4-bit format is Q4_K_M."""

    int4_format = "Q4_K_M"
