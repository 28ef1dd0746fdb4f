"""Find the checkpoint that a path or a Hugging Face hub id denotes, and decide which of its files may be opened.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from weights.bounded_json import BadJson, parse_index
from weights.errors import GgufError, ResolveError, shown
from weights.gguf.choose import choice, is_gguf, models_in, pieces
from weights.hub.choose import SMALL_WEIGHTS, TEXT_FILE_PATTERNS, gguf_files
from weights.mistakes import missing, mistake
from weights.router_views import checkpoint_of
from weights.sentence_modules import ROOT_FILES, transformer_folder

if TYPE_CHECKING:
    from weights.hub.fetch import Download

_HUB_ID = re.compile(
    r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>(?!\.)[\w.-]+(/(?!\.)[\w.-]+)*))?(:(?P<gguf>[\w.-]+))?"
)
_COPIED = (*TEXT_FILE_PATTERNS, *SMALL_WEIGHTS, "*.md", "LICENSE*", "NOTICE*")
"""Files that a converted copy of a checkpoint gets unchanged, except `_NOT_COPIED`."""
_NOT_COPIED = ("config.json", "*.index.json", "SHA256SUMS")
"""Files that describe the weights, so that a converted copy must not get them unchanged."""

MAX_NAME = 255
"""Largest number of characters in the name of a checkpoint's file, with its folder."""
MODEL_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""File names of a model's weights. The index of a sharded checkpoint has one of these names plus `.index.json`."""
ADAPTER_WEIGHTS = ("adapter_model.safetensors",)
"""File names of a low-rank adapter's weights."""


def resolve(source: str, weights: Sequence[str] = MODEL_WEIGHTS) -> Path:
    """Find the directory of a checkpoint, or its GGUF file. Download it from the hub if needed.

    A complete checkpoint in the local hub cache is used without a request to the hub. Nothing is downloaded if the
    environment sets HF_HUB_OFFLINE. If the hub has the weights in several formats, only one is downloaded.

    source: a directory, a GGUF file, a directory with one GGUF model, or a hub id `org/name`, with `@revision` for a
        branch, tag or commit, and `:Q4_K_M` for one of several GGUF models.
    weights: file names that the weights may have; a checkpoint with one of them is complete.

    Raises ResolveError if there is no checkpoint. Its message lists the places that were tried, or says what the
    directory is instead.
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
    on_hub = hub_source(source, weights)
    if on_hub is None and "/" in source:
        raise ResolveError(missing(source))
    if on_hub is None:
        raise ResolveError(f"{source!r} is neither a directory nor a hub id of the form org/name[@revision]")
    return _from_hub(on_hub)


def _from_hub(source: HubSource) -> Path:
    from weights.hub.fetch import fetch

    download = find_download(source)
    if isinstance(download, Path):
        return download
    try:
        fetch(download)
    except ResolveError as error:
        raise ResolveError(f"{source.tried}, and {error}") from None
    return found_in(source, download.directory)


@dataclass(frozen=True)
class HubSource:
    """The parts of a hub id.

    text: the hub id as the user wrote it. repository: `org/name`.
    revision: branch, tag or commit, None for `main`.
    gguf: quantization of the GGUF model that is meant, None for none.
    weights: file names that the weights may have.
    """

    text: str
    repository: str
    revision: str | None
    gguf: str | None
    weights: Sequence[str] = MODEL_WEIGHTS

    @property
    def tried(self) -> str:
        """Start of an error message that says where the model was not found."""
        return f"{self.text!r} is not a directory, not in the local hub cache"


def hub_source(source: str, weights: Sequence[str] = MODEL_WEIGHTS) -> HubSource | None:
    """Parse a hub id. None for a source that is an existing local path or does not have the form of a hub id."""
    if not source or Path(source).expanduser().exists():
        return None
    match = _HUB_ID.fullmatch(source)
    return None if match is None else HubSource(source, match["repo"], match["revision"], match["gguf"], weights)


def find_cached(source: HubSource) -> Path | None:
    """The directory or GGUF file of a model in the local hub cache; None if the cache does not have all its files.

    Sends no request to the hub.
    """
    from weights.hub.cache import snapshot

    directory = snapshot(source.repository, source.revision)
    return None if directory is None else _complete(source, directory)


def find_download(source: HubSource) -> Path | Download:
    """The directory or GGUF file of a model in the local hub cache, else a plan of what to download for it.

    Raises ResolveError for a model that is neither in the cache nor on the hub, and if HF_HUB_OFFLINE forbids the
    download.
    """
    from huggingface_hub import constants

    from weights.hub.fetch import plan

    found = find_cached(source)
    if found is not None:
        return found
    if constants.HF_HUB_OFFLINE:
        raise ResolveError(f"{source.tried}, and HF_HUB_OFFLINE forbids a download")
    try:
        return plan(source.text, source.repository, source.revision, source.weights, source.gguf)
    except ResolveError as error:
        raise ResolveError(f"{source.tried}, and {error}") from None


def found_in(source: HubSource, directory: Path) -> Path:
    """The directory or GGUF file of a model in `directory`, a snapshot in the cache that was just downloaded.

    Raises ResolveError if the snapshot has no weights.
    """
    found = _complete(source, directory)
    if found is None:
        raise ResolveError(
            f"{source.tried}, and the repository on the hub has no weights ({' or '.join(source.weights)})"
        )
    return found


def _complete(source: HubSource, directory: Path) -> Path | None:
    """The directory or GGUF file of a model in a snapshot; None if weights are missing."""
    if source.gguf is None and has_weights(directory, source.weights):
        return directory
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*.gguf") if path.exists()]
    if not names or tuple(source.weights) != MODEL_WEIGHTS:
        return None
    try:
        first = directory / gguf_files(names, source.gguf)[0]
        pieces(first)
    except (ResolveError, GgufError):
        return None
    return first


def has_weights(directory: Path, weights: Sequence[str] = MODEL_WEIGHTS) -> bool:
    """Whether a checkpoint directory has complete weights: one file, or an index and all its shards.

    weights: file names that the weights may have.
    """
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
    """Files that a converted copy of a checkpoint gets unchanged: tokenizer, settings, licence, sentence modules.

    Returns paths inside the directory. `config.json` and the manifest are left out, because they describe the weights.
    """
    names = [path.name for path in directory.iterdir() if path.is_file()]
    kept = [name for name in names if _matches(name, _COPIED) and not _matches(name, _NOT_COPIED)]
    folders = [path for path in directory.iterdir() if path.name[0].isdecimal() and path.is_dir()]
    inside = [f"{path.parent.name}/{path.name}" for folder in folders for path in folder.iterdir() if path.is_file()]
    return sorted([*kept, *inside])


def exists(path: Path) -> bool:
    """Whether a path exists. False, instead of an error, for a name that the file system does not allow."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def file_in(directory: Path, name: str) -> Path | None:
    """Path of a file in a checkpoint directory; None if the file does not exist.

    A link may lead to another file in the directory or, in a snapshot of the hub cache, to a blob of the same
    repository. In a view of a router (`weights.router_views`) it may lead to a file in the router's checkpoint. Other
    links are refused, because they would let a checkpoint read files outside of it.

    name: relative path, such as `config.json` or `1_Pooling/config.json`. A name without a folder is looked up in the
        transformer's folder, if `modules.json` states one.

    Raises ResolveError for a path or a link that leaves the directory, for a link to a missing file, and for a file
    that is not regular.
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
    if (checkpoint := checkpoint_of(home)) is not None:
        owned.append(home := checkpoint)
    if home.parent.name == "snapshots":
        owned.append(home.parent.parent / "blobs")
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in owned):
        raise ResolveError(f"{name!r} is a link that leads out of the checkpoint directory")
    if not real.is_file():
        raise ResolveError(f"{name!r} is not a regular file")
    return path
