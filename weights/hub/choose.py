"""Choose the files of a repository that a model needs. Imports no third-party package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch

from weights.errors import ResolveError
from weights.gguf.choose import SUFFIX, model_name

TEXT_FILE_PATTERNS = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja", "SHA256SUMS", "artifact.metadata")
SMALL_WEIGHTS = ("colbert_linear.pt", "sparse_linear.pt")
"""Files with additional matrices of BGE-M3, which are published only as pickles."""
_PICKLED_WEIGHTS = "pytorch_model*.bin"
_MODULE_FOLDER = re.compile(r"(\w+_)?\d+(_\w+)?/")
"""Folder of a module of sentence-transformers, such as `2_Dense`, or `query_0_Transformer` in a router."""
_ADAPTER = re.compile(r"adapters/[\w.-]+/adapter_model\.safetensors")
"""Weights of an adapter that is part of a model's checkpoint (Jina Embeddings 5)."""
_IGNORED_FILES = ("*.safetensors", "*.bin", "*.txt", "*.model", "*.spm", "*.jinja", "tokenizer*.json")
"""Files that are fetched from the top level and from folders of modules, but not from other folders."""
_MODEL_FILE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_MAX_LISTED = 20


def needed_files(names: Sequence[str], weights: Sequence[str], gguf: str | None) -> list[str]:
    """The names of the files to fetch for a model.

    Weights are safetensors, else pickles, else the only GGUF model. Copies of the weights in other formats or under
    other names are left out.

    names: names of all files in the repository.
    weights: file names that the weights may have, such as `model.safetensors`.
    gguf: quantization of the GGUF model to fetch, such as Q4_K_M; None for the weights in the order above.
    Raises ResolveError for a repository without such weights, and if several GGUF models fit.
    """
    if gguf is not None:
        return gguf_files(names, gguf)
    kept = [name for name in names if not _is_ignored(name)]
    texts = [name for name in kept if _matches(name, (*TEXT_FILE_PATTERNS, *SMALL_WEIGHTS))]
    safe = [name for name in kept if name.endswith(".safetensors")]
    modules = [name for name in safe if "/" in name]
    adapters = [name for name in names if _ADAPTER.fullmatch(name)]
    files = _of_one_kind([name for name in safe if "/" not in name], weights)
    if files or modules:
        return sorted({*texts, *files, *modules, *adapters})
    pickles = [name for name in kept if fnmatch(name, _PICKLED_WEIGHTS)]
    if pickles and any(name.endswith(".bin") for name in weights):
        return sorted({*texts, *pickles, *adapters})
    if any(name.endswith(SUFFIX) for name in names) and "model.safetensors" in weights:
        return gguf_files(names, None)
    raise ResolveError(f"the repository on the hub has no weights ({' or '.join(weights)})")


def gguf_files(names: Sequence[str], quantization: str | None) -> list[str]:
    """The names of a GGUF model's file, or of all its pieces.

    names: names of all files in the repository.
    quantization: end of the model's name, such as Q4_K_M; None for the only model.
    Raises ResolveError, which lists the choices, if no model or several models fit.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not name.rpartition("/")[2].startswith("mmproj"):
            models.setdefault(model_name(name), []).append(name)
    if not models:
        raise ResolveError("the repository on the hub has no GGUF file")
    fitting = list(models)
    if quantization is not None:
        wanted = re.compile(rf"(?:^|[-._/]){re.escape(quantization)}", re.IGNORECASE)
        ends = [match for model in models if (match := list(wanted.finditer(model))) and match[-1].end() == len(model)]
        fitting = [match[-1].string for match in ends]
    if len(fitting) != 1:
        listed = ", ".join(sorted(quantization_of(model) for model in fitting or models)[:_MAX_LISTED])
        problem = "several GGUF models" if quantization is None else f"{len(fitting) or 'no'} GGUF model {quantization}"
        raise ResolveError(f"the repository has {problem}: choose one of {listed} (ORG/NAME:QUANTIZATION or --gguf)")
    return models[fitting[0]]


def quantization_of(model: str) -> str:
    """The end of a GGUF model's name that states its quantization, such as `Q4_K_M` for `llama-3-Q4_K_M`.

    The whole name if it does not end with a quantization.
    """
    match = re.search(r"[-._/]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*|TQ\d\w*))$", model, re.IGNORECASE)
    return match[1] if match else model


def _of_one_kind(files: Sequence[str], weights: Sequence[str]) -> list[str]:
    """The safetensors files of a model: `model.safetensors`, else its shards, else all files except an adapter.

    If `weights` does not name `model.safetensors`, as for an adapter: the files that `weights` names.
    """
    if "model.safetensors" not in weights:
        return [name for name in files if name in weights]
    if "model.safetensors" in files:
        return ["model.safetensors"]
    shards = [name for name in files if _MODEL_FILE.fullmatch(name)]
    return shards or [name for name in files if name != "adapter_model.safetensors"]


def _is_ignored(name: str) -> bool:
    return "/" in name and not _MODULE_FOLDER.match(name) and _matches(name.rpartition("/")[2], _IGNORED_FILES)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
