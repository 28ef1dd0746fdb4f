"""The server of llama.cpp with its other format of 4 bits, Q4_K_M: scales in two levels, some matrices in Q6_K."""

from __future__ import annotations

from benchmarks.contestants import llama_cpp


class Entry(llama_cpp.Entry):
    """See `llama_cpp.Entry`."""

    int4_type, int4_name = "Q4_K_M", "int4-k"
