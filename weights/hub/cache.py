"""The local cache of the Hugging Face hub: find a model in it, list its models, remove models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache.

    name: hub id. bytes: size on disk.
    revisions: for each cached revision its branches and tags, or the first 12 digits of its commit if it has none.
    used: time at which one of its files was last read, in seconds since 1970.
    commits: commit of each cached revision.
    """

    name: str
    bytes: int
    revisions: tuple[str, ...]
    used: float
    commits: tuple[str, ...]


def snapshot(repository: str, revision: str | None) -> Path | None:
    """The cache directory of a revision, which may be incomplete; None if the cache does not have the revision.

    repository: hub id. revision: branch, tag or commit; None for `main`.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    except HFValidationError:
        return None
    name = revision or "main"
    try:
        commit = name if _COMMIT.fullmatch(name) else (folder / "refs" / name).read_text().strip()
    except OSError:
        return None
    directory = folder / "snapshots" / commit
    return directory if _COMMIT.fullmatch(commit) and directory.is_dir() else None


def cached_models() -> list[CachedModel]:
    """The models in the cache, sorted by name; empty without a cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir()
    except CacheNotFound:
        return []
    models = []
    for repository in found.repos:
        if repository.repo_type == "model" and repository.revisions:
            names = [",".join(sorted(revision.refs)) or revision.commit_hash[:12] for revision in repository.revisions]
            commits = tuple(revision.commit_hash for revision in repository.revisions)
            models.append(
                CachedModel(
                    repository.repo_id,
                    repository.size_on_disk,
                    tuple(sorted(names)),
                    repository.last_accessed,
                    commits,
                )
            )
    return sorted(models, key=lambda model: model.name)


def remove(commits: tuple[str, ...]) -> int:
    """Remove revisions, given by their commits, and the files that no other revision has. Returns the freed bytes."""
    from huggingface_hub import scan_cache_dir

    strategy = scan_cache_dir().delete_revisions(*commits)
    strategy.execute()
    return int(strategy.expected_freed_size)
