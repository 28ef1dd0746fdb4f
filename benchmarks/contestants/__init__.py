"""Names of the contestants, the engines and servers that are compared.

Each contestant has a module in this package with a class `Entry`, which implements `contract.Contestant`.
"""

from __future__ import annotations

OURS = ("ours", "http")
"""The contestants that run Triptych: the engine in process, and the server over HTTP."""

LLAMA_CPP = ("llama.cpp", "llama.cpp-k")
"""The server of llama.cpp, with Q4_0 or with Q4_K_M as its 4-bit format."""

LLAMA_LIBRARY = ("llama-library", "llama-library-k")
"""The library of llama.cpp in process, with Q4_0 or with Q4_K_M as its 4-bit format."""

PEERS = (
    "ctranslate2",
    "openvino-genai",
    "openvino",
    "transformers",
    "onnxruntime",
    "sentence-transformers",
    "infinity",
    "vllm",
    *LLAMA_CPP,
    *LLAMA_LIBRARY,
)
IN_OUR_ENVIRONMENT = (*OURS, *LLAMA_LIBRARY)
"""The contestants that run in Triptych's Python environment. The others run in the environment of the peers."""
LABELS = {
    "ours": "Triptych, in process",
    "http": "Triptych, HTTP",
    "vllm": "vLLM, HTTP",
    "llama.cpp": "llama.cpp server",
    "llama.cpp-k": "llama.cpp server, Q4_K_M",
    "llama-library": "llama.cpp, in process",
    "llama-library-k": "llama.cpp, in process, Q4_K_M",
}


def module(name: str) -> str:
    """Full name of the module that implements a contestant."""
    return "benchmarks.contestants." + {"http": "http_server"}.get(name, name).replace("-", "_").replace(".", "_")
