"""The hub cache of this machine: find a model in it, list the models, remove one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache.

    name: hub id. bytes: size on disk.
    revisions: its branches and tags in the cache; the start of the commit for a revision without a name.
    used: when a file of it was read last, seconds since 1970.
    commits: all its revisions in the cache.
    """

    name: str
    bytes: int
    revisions: tuple[str, ...]
    used: float
    commits: tuple[str, ...]


def snapshot(repository: str, revision: str | None) -> Path | None:
    """The directory of a revision, or None if it is not in the cache. It need not be complete."""
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
    """The models in the cache, by name."""
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
    """Remove revisions from the cache, and the files that no other revision has. Returns the number of freed bytes."""
    from huggingface_hub import scan_cache_dir

    strategy = scan_cache_dir().delete_revisions(*commits)
    strategy.execute()
    return int(strategy.expected_freed_size)
