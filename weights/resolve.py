"""Which directory is meant by a path or a hub id, and which of its files may be opened.

Knows the Hugging Face hub's cache layout. Does not know what the files say. No torch here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePath

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
_TEXT_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja", "SHA256SUMS")
_SAFE_WEIGHTS = ("*.safetensors",)
_PICKLED_WEIGHTS = ("pytorch_model*.bin",)
# Folders of sentence-transformers are numbered (`2_Dense`), and hold weights too.
_NOT_NEEDED = (
    "[!0-9]*/*.safetensors",
    "[!0-9]*/*.bin",
    "*/*.txt",
    "*/*.model",
    "*/*.spm",
    "*/*.jinja",
    "*/tokenizer*.json",
)


class ResolveError(ValueError):
    """No checkpoint directory can be had for what was asked, or a file of one may not be opened. One line."""


def resolve(source: str) -> Path:
    """The directory of a checkpoint.

    source: a directory, or a hub id `org/name`, with `@revision` for a branch, tag or commit. A hub id is answered from
    the local cache where that is complete, else downloaded, unless the environment sets HF_HUB_OFFLINE. Safetensors are
    preferred; pickled weights are fetched only from repositories without them.

    Raises ResolveError, which says what was tried.
    """
    directory = Path(source).expanduser()
    if source and directory.is_dir():
        return directory
    if source and directory.exists():
        raise ResolveError(f"{directory.name!r} is a file, not a checkpoint directory")
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise ResolveError(f"{source!r} is not a directory, and not a hub id of the form org/name[@revision]")
    return _from_hub(source, match["repo"], match["revision"])


def _from_hub(source: str, repo: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def snapshot(weights: tuple[str, ...], offline: bool) -> Path:
        patterns = [*_TEXT_FILES, *weights]
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=list(_NOT_NEEDED),
                local_files_only=offline,
            )
        )

    tried = f"{source!r} is not a directory"
    try:
        cached = snapshot(_SAFE_WEIGHTS, offline=True)
        if has_weights(cached):
            return cached
    except HFValidationError:
        raise ResolveError(f"{tried}, and not a hub id of the form org/name[@revision]") from None
    except (LocalEntryNotFoundError, OSError):
        pass
    tried += ", not in the local hub cache"
    if constants.HF_HUB_OFFLINE:
        raise ResolveError(f"{tried}, and HF_HUB_OFFLINE forbids asking the hub")
    try:
        fetched = snapshot(_SAFE_WEIGHTS, offline=False)
        if not has_weights(fetched):
            fetched = snapshot(_PICKLED_WEIGHTS, offline=False)
    except GatedRepoError:
        raise ResolveError(f"{tried}, and the hub grants it only to accounts that asked for access") from None
    except RevisionNotFoundError:
        raise ResolveError(f"{tried}, and the hub has no such revision of it") from None
    except RepositoryNotFoundError:
        raise ResolveError(f"{tried}, and the hub has no such repository (or needs a token for it)") from None
    except LocalEntryNotFoundError:
        raise ResolveError(f"{tried}, and the hub cannot be reached") from None
    except Exception as error:  # the hub's client raises whatever its HTTP library does
        raise ResolveError(f"{tried}, and fetching it from the hub failed ({type(error).__name__})") from None
    if not has_weights(fetched):
        raise ResolveError(f"{tried}, and the hub's repository holds no safetensors and no pytorch_model.bin")
    return fetched


def has_weights(directory: Path) -> bool:
    """Whether the directory holds a whole set of weights: one file, or an index and every shard it names."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (directory / single).exists():
            return True
        index = directory / f"{single}.index.json"
        if index.exists():
            try:
                shards = set(json.loads(index.read_bytes())["weight_map"].values())
            except (ValueError, LookupError, AttributeError, TypeError):
                return False
            return all((directory / str(shard)).exists() for shard in shards)
    return False


def file_in(directory: Path, name: str) -> Path | None:
    """The file `name` of a checkpoint directory (`config.json`, `1_Pooling/config.json`), None when there is none.

    A link may lead to another file of the directory, or, in a snapshot of the hub's cache, to that repository's own
    blobs; anything else would let a checkpoint read files it does not own. Raises ResolveError for it.
    """
    relative = PurePath(name)
    if relative.is_absolute() or ".." in relative.parts or not relative.name:
        raise ResolveError(f"{relative.name!r}: a checkpoint's files lie in its own directory")
    path = directory / name
    if not path.exists():
        if path.is_symlink():
            raise ResolveError(f"{name!r} is a link to a file that is not there")
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
