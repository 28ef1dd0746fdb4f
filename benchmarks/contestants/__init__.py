"""Who takes part, by name. Each is a module of this package with a class `Entry` that keeps `contract.Contestant`."""

from __future__ import annotations

OURS = ("ours", "http")
"""They run in the server's own environment; all others in that of the peers."""

PEERS = (
    "ctranslate2",
    "openvino-genai",
    "openvino",
    "transformers",
    "onnxruntime",
    "sentence-transformers",
    "infinity",
    "llama.cpp",
)
LABELS = {"ours": "Triptych, in process", "http": "Triptych, HTTP", "llama.cpp": "llama.cpp server"}


def module(name: str) -> str:
    """Where the contestant is written."""
    return "benchmarks.contestants." + {"http": "http_server"}.get(name, name).replace("-", "_").replace(".", "_")
