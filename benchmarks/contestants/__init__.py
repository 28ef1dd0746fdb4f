"""Names of the contestants. Each has a module in this package, with a class `Entry` (see `contract.Contestant`)."""

from __future__ import annotations

OURS = ("ours", "http")
"""The contestants that run Triptych."""

LLAMA_CPP = ("llama.cpp", "llama.cpp-k")
"""The server of llama.cpp, with its two formats of 4 bits."""

LLAMA_LIBRARY = ("llama-library", "llama-library-k")
"""The library of llama.cpp in process, with the same formats."""

PEERS = (
    "ctranslate2",
    "openvino-genai",
    "openvino",
    "transformers",
    "onnxruntime",
    "sentence-transformers",
    "infinity",
    *LLAMA_CPP,
    *LLAMA_LIBRARY,
)
IN_OUR_ENVIRONMENT = (*OURS, *LLAMA_LIBRARY)
"""The contestants that run in the server's environment. The others run in the environment of the peers."""
LABELS = {
    "ours": "Triptych, in process",
    "http": "Triptych, HTTP",
    "llama.cpp": "llama.cpp server",
    "llama.cpp-k": "llama.cpp server, Q4_K_M",
    "llama-library": "llama.cpp, in process",
    "llama-library-k": "llama.cpp, in process, Q4_K_M",
}


def module(name: str) -> str:
    """Name of the module of a contestant."""
    return "benchmarks.contestants." + {"http": "http_server"}.get(name, name).replace("-", "_").replace(".", "_")
