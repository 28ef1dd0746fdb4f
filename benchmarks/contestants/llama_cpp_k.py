"""The server of llama.cpp with the 4-bit format Q4_K_M, whose scales are quantised. Some matrices are in Q6_K."""

from __future__ import annotations

from benchmarks.contestants import llama_cpp


class Entry(llama_cpp.Entry):
    """A server of llama.cpp for one model, whose 4-bit format is Q4_K_M."""

    int4_type, int4_name = "Q4_K_M", "int4-k"
