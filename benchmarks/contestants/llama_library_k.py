"""The library of llama.cpp with its other format of 4 bits, Q4_K_M: scales in two levels, some matrices in Q6_K."""

from __future__ import annotations

from benchmarks.contestants import llama_library


class Entry(llama_library.Entry):
    """See `llama_library.Entry`."""

    int4_format = "Q4_K_M"
