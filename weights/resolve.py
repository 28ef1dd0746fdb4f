"""Find the checkpoint directory of a path or a Hugging Face hub id, and the files in it that may be opened.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePath

from weights.bounded_json import BadJson, parse_index
from weights.errors import ResolveError, shown
from weights.gguf.choose import choice, is_gguf, models_in
from weights.mistakes import missing, mistake
from weights.sentence_modules import ROOT_FILES, transformer_folder

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja", "SHA256SUMS", "artifact.metadata")
_SMALL_WEIGHTS = ("colbert_linear.pt", "sparse_linear.pt")
"""Matrices of BGE-M3, which are published as pickles alone."""
_SAFE_WEIGHTS = ("*.safetensors",)
_PICKLED_WEIGHTS = ("pytorch_model*.bin",)
# Numbered folders (`0_Transformer`, `2_Dense`) are not in this list: they are modules of sentence-transformers.
_IGNORED_FILES = tuple(
    f"[!0-9]*/{name}" for name in ("*.safetensors", "*.bin", "*.txt", "*.model", "*.spm", "*.jinja", "tokenizer*.json")
)


_COPIED = (*_TEXT_FILES, *_SMALL_WEIGHTS, "*.md", "LICENSE*", "NOTICE*")
"""Files that a converted copy of a checkpoint keeps as they are."""
_NOT_COPIED = ("config.json", "*.index.json", "SHA256SUMS")
"""Files that are about the weights."""

MAX_NAME = 255
"""Longest name of a file of a checkpoint, with its folder."""
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""File names of the weights of a model. The index of a sharded checkpoint has one of them plus `.index.json`."""
ADAPTER_WEIGHTS = ("adapter_model.safetensors",)
"""File name of the weights of a low-rank adapter."""


def resolve(source: str, weights: Sequence[str] = MODEL_WEIGHTS) -> Path:
    """Find the directory of a checkpoint, or its GGUF file. Download it from the hub if needed.

    A complete checkpoint in the local hub cache is used without a request. Nothing is downloaded where the environment
    sets HF_HUB_OFFLINE. Pickled weights are downloaded only from repositories without safetensors.

    source: a directory, a GGUF file, a directory with one GGUF model, or a hub id `org/name`, with `@revision` for a
        branch, tag or commit.
    weights: file names of the weights; a checkpoint with one of them is complete.

    Raises ResolveError, whose message lists the places that were tried, or says what the directory is instead.
    """
    directory = Path(source).expanduser()
    if source and directory.is_dir():
        if tuple(weights) == MODEL_WEIGHTS and not (directory / "config.json").exists() and models_in(directory):
            return choice(source, directory)
        wrong = mistake(source, directory, tuple(weights) == ADAPTER_WEIGHTS)
        if wrong is not None:
            raise ResolveError(wrong)
        return directory
    if source and directory.exists() and is_gguf(directory) and tuple(weights) == MODEL_WEIGHTS:
        return directory
    if source and directory.exists():
        raise ResolveError(f"{directory.name!r} is a file, not a checkpoint directory: write the directory it is in")
    match = _HUB_ID.fullmatch(source)
    if match is None and "/" in source:
        raise ResolveError(missing(source))
    if match is None:
        raise ResolveError(f"{source!r} is neither a directory nor a hub id of the form org/name[@revision]")
    return _from_hub(source, match["repo"], match["revision"], weights)


def _from_hub(source: str, repo: str, revision: str | None, weights: Sequence[str]) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def snapshot(files: tuple[str, ...], offline: bool) -> Path:
        patterns = [*_TEXT_FILES, *_SMALL_WEIGHTS, *files]
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=list(_IGNORED_FILES),
                local_files_only=offline,
            )
        )

    tried = f"{source!r} is not a directory"
    try:
        cached = snapshot(_SAFE_WEIGHTS, offline=True)
        if has_weights(cached, weights):
            return cached
    except HFValidationError:
        raise ResolveError(f"{source!r} is neither a directory nor a hub id of the form org/name[@revision]") from None
    except (LocalEntryNotFoundError, OSError):
        pass
    tried += ", not in the local hub cache"
    if constants.HF_HUB_OFFLINE:
        raise ResolveError(f"{tried}, and HF_HUB_OFFLINE forbids a download")
    try:
        fetched = snapshot(_SAFE_WEIGHTS, offline=False)
        if not has_weights(fetched, weights):
            fetched = snapshot(_PICKLED_WEIGHTS, offline=False)
    except GatedRepoError:
        raise ResolveError(f"{tried}, and the hub requires an account with access to this repository") from None
    except RevisionNotFoundError:
        raise ResolveError(f"{tried}, and the hub has no revision of this name") from None
    except RepositoryNotFoundError:
        raise ResolveError(f"{tried}, and the hub has no repository of this name, or requires a token for it") from None
    except LocalEntryNotFoundError:
        raise ResolveError(f"{tried}, and the hub cannot be reached") from None
    except Exception as error:  # the hub client passes on the exceptions of its HTTP library
        raise ResolveError(f"{tried}, and the download from the hub failed ({type(error).__name__})") from None
    if not has_weights(fetched, weights):
        raise ResolveError(f"{tried}, and the repository on the hub has no weights ({' or '.join(weights)})")
    return fetched


def has_weights(directory: Path, weights: Sequence[str] = MODEL_WEIGHTS) -> bool:
    """Whether the directory has complete weights: one file, or an index and all its shards."""
    directory = directory / transformer_folder(directory)
    for single in weights:
        if (directory / single).exists():
            return True
        index = directory / f"{single}.index.json"
        if index.exists():
            try:
                shards = set(parse_index(index).values())
            except BadJson:
                return False
            return all(exists(directory / shard) for shard in shards)
    return False


def files_besides_weights(directory: Path) -> list[str]:
    """Files that a converted copy of a checkpoint keeps: tokenizer, settings, licence, dense layers of sentence models.

    Returns paths inside the directory. `config.json` and the manifest are left out, because they describe the weights.
    """
    names = [path.name for path in directory.iterdir() if path.is_file()]
    kept = [name for name in names if _matches(name, _COPIED) and not _matches(name, _NOT_COPIED)]
    folders = [path for path in directory.iterdir() if path.name[0].isdecimal() and path.is_dir()]
    inside = [f"{path.parent.name}/{path.name}" for folder in folders for path in folder.iterdir() if path.is_file()]
    return sorted([*kept, *inside])


def exists(path: Path) -> bool:
    """Whether a file exists. A name that no file can have belongs to none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def file_in(directory: Path, name: str) -> Path | None:
    """Path of a file of a checkpoint directory, or None without that file.

    A link may lead to another file of the directory or, in a snapshot of the hub cache, to a blob of the same
    repository. Other links are refused, because they would let a checkpoint read files outside of it.

    name: relative path, such as `config.json` or `1_Pooling/config.json`. A plain name is looked up in the folder that
        `modules.json` names for the transformer, if it names one.

    Raises ResolveError for a path or a link that leaves the directory, and for a file that is not regular.
    """
    relative = PurePath(name)
    if len(name) > MAX_NAME or not name.isprintable():
        raise ResolveError(f"'{shown(name)}': a file's name has at most {MAX_NAME} characters, all of them printable")
    if relative.is_absolute() or ".." in relative.parts or not relative.name:
        raise ResolveError(f"{relative.name!r}: a checkpoint may only use files of its own directory")
    folder = "" if relative.parent.name or name in ROOT_FILES else transformer_folder(directory)
    if folder:
        return file_in(directory, f"{folder}/{name}")
    path = directory / name
    if not exists(path):
        if path.is_symlink():
            raise ResolveError(f"{name!r} is a link to a missing file")
        return None
    home = directory.resolve()
    owned = [home]
    if home.parent.name == "snapshots":
        owned.append(home.parent.parent / "blobs")
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in owned):
        raise ResolveError(f"{name!r} is a link that leads out of the checkpoint directory")
    if not real.is_file():
        raise ResolveError(f"{name!r} is not a regular file")
    return path
