"""Fetch the files of a model from the Hugging Face hub into the local cache.

All files are of one revision, interrupted downloads are continued, and hashes are checked.

huggingface_hub reads the environment (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE), asks the hub and lays out the
cache, which other programs share. Its own downloads start again after an interruption and compare sizes only, so this
module receives the bytes. Reasons: docs/decisions/0155-models-from-the-hub.md.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from weights.errors import ResolveError
from weights.hub.choose import needed_files

Result = TypeVar("Result")
ATTEMPTS = 5
"""Number of successive attempts without any new byte after which a download fails. The next download continues it."""
_CONNECTIONS = 4
_SILENCE_SECONDS = 30.0
"""Time without any received byte after which an attempt fails."""
_SPARE_BYTES = 64 << 20
"""Space that a download must leave free on the disk."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    size: in bytes.
    sha256: SHA-256 digest of a large file, None for a small file.
    git_hash: hash of a small file, as Git computes it; empty if the hub does not state it.
    """

    name: str
    size: int
    sha256: str | None
    git_hash: str

    @property
    def blob(self) -> str:
        """Name under which the cache stores the file's bytes: its hash."""
        return self.sha256 or self.git_hash


@dataclass
class Download:
    """The download of one model.

    source: the model as the user wrote it. repository: its hub id.
    revision: branch, tag or commit that was requested. commit: the commit that `revision` denotes.
    files: all files that the model needs.
    directory: the snapshot in the cache that the files are linked into.
    missing: the files that were not in the cache at the start.
    complete: names of the missing files that are completely received by now.
    """

    source: str
    repository: str
    revision: str
    commit: str
    files: Sequence[HubFile]
    directory: Path
    missing: Sequence[HubFile]
    complete: set[str] = field(default_factory=set)

    @property
    def blobs(self) -> Path:
        return self.directory.parent.parent / "blobs"

    @property
    def total_bytes(self) -> int:
        """Total size of the missing files, including bytes that an earlier attempt received."""
        return sum(file.size for file in self.missing)

    @property
    def done_bytes(self) -> int:
        """Number of bytes of the missing files that are received so far."""
        return sum(file.size if file.name in self.complete else _size(self.partial(file)) for file in self.missing)

    def partial(self, file: HubFile) -> Path:
        """Path of the incomplete file that the bytes are appended to. A later attempt continues it."""
        return self.blobs / f"{file.blob}.triptych.incomplete"


def plan(source: str, repository: str, revision: str | None, weights: Sequence[str], gguf: str | None) -> Download:
    """Ask the hub which files of a repository a model needs, and how large they are. Fetches no file.

    source: the model as the user wrote it. repository: its hub id. revision: branch, tag or commit, None for `main`.
    weights: file names that the weights may have. gguf: quantization of the GGUF model to fetch, None for none.
    Raises ResolveError if the hub cannot be reached or has no such model.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    about = _asked(
        lambda: HfApi(endpoint=constants.ENDPOINT).model_info(repository, revision=revision, files_metadata=True)
    )
    known = {sibling.rfilename: sibling for sibling in about.siblings or ()}
    files: list[HubFile] = []
    for name in needed_files(list(known), weights, gguf):
        large = known[name].lfs
        size = (large.size if large else known[name].size) or 0
        files.append(HubFile(name, size, _hash(large.sha256 if large else None), _hash(known[name].blob_id) or ""))
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    directory = folder / "snapshots" / str(about.sha)
    missing = [file for file in files if not (directory / file.name).exists()]
    return Download(source, repository, revision or "main", str(about.sha), files, directory, missing)


def _hash(text: str | None) -> str | None:
    """The hash if it consists of 40 to 64 hexadecimal digits, so that it is safe as a file name; else None."""
    return text if text is not None and re.fullmatch("[0-9a-f]{40,64}", text) else None


def fetch(download: Download) -> None:
    """Fetch the missing files, several at once. The cache lists the revision only after all files are complete.

    Raises ResolveError if the disk has too little space, or a file cannot be fetched.
    """
    _check_room(download)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings contain signed addresses
    download.blobs.mkdir(parents=True, exist_ok=True)
    largest_first = sorted(download.missing, key=lambda file: -file.size)
    with ThreadPoolExecutor(_CONNECTIONS, "fetch") as threads:
        results = [threads.submit(_fetch, download, file) for file in largest_first]
        wait(results, return_when=FIRST_EXCEPTION)
        threads.shutdown(wait=False, cancel_futures=True)  # after a failure, no further file is begun
        for result in results:
            if not result.cancelled():
                result.result()
    reference = download.directory.parent.parent / "refs" / download.revision
    if download.revision != download.commit:
        reference.parent.mkdir(parents=True, exist_ok=True)
        _replace(reference, download.commit.encode())


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _check_room(download: Download) -> None:
    folder = download.directory
    while not folder.exists():
        folder = folder.parent
    needed, free = download.total_bytes - download.done_bytes, shutil.disk_usage(folder).free
    if needed + _SPARE_BYTES > free:
        raise ResolveError(
            f"{download.source!r} needs {needed / 2**20:,.0f} MiB of disk for the hub cache, and "
            f"{free / 2**20:,.0f} MiB are free: make room, or set HF_HOME to another disk"
        )


def _fetch(download: Download, file: HubFile) -> None:
    """Fetch one file into the cache, and link it into the snapshot. Raises ResolveError if it cannot be fetched."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.utils._fixes import WeakFileLock

    with WeakFileLock(download.blobs / f"{file.blob}.lock"):
        # Without a hash, and for files that the hub sends in chunks only, huggingface_hub fetches the file.
        if file.blob and not (download.blobs / file.blob).exists() and file.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            _receive(download, file)
    _asked(
        lambda: hf_hub_download(
            download.repository, file.name, revision=download.commit, tqdm_class=_no_bar(), endpoint=constants.ENDPOINT
        ),
        file.name,
    )
    download.complete.add(file.name)


def _receive(download: Download, file: HubFile) -> None:
    """Receive a file, continuing an earlier attempt, and check its hash. After a wrong hash it is fetched again once.

    Raises ResolveError if the second hash is wrong too.
    """
    for attempt in range(2):
        _asked(lambda: _continue(download, file), file.name)
        if _size(download.partial(file)) == file.size and _has_right_hash(download.partial(file), file):
            os.replace(download.partial(file), download.blobs / file.blob)
            return
        download.partial(file).unlink()
        if attempt:
            raise ResolveError(
                f"{file.name} of {download.source!r} arrived twice with another hash than the hub states: it was not "
                "kept. A proxy or mirror (HF_ENDPOINT) may change files"
            )


def _continue(download: Download, file: HubFile) -> None:
    """Receive the rest of a file. A lost connection is retried until `ATTEMPTS` attempts bring no new byte.

    Raises the last attempt's error.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils._headers import build_hf_headers

    url = hf_hub_url(download.repository, file.name, revision=download.commit, endpoint=constants.ENDPOINT)
    failures = 0
    while (before := _size(download.partial(file))) < file.size or not before:
        try:
            about = get_hf_file_metadata(url, endpoint=constants.ENDPOINT)
            if about.commit_hash not in (None, download.commit):
                raise ResolveError(f"the hub sent {file.name} of another revision than the one that was asked for")
            headers = build_hf_headers()
            if urlsplit(about.location).netloc != urlsplit(url).netloc:
                headers.pop("authorization", None)  # a storage server must not get the token
            _append(about.location, headers, download.partial(file), before, file.size)
            if not file.size:
                return
        except Exception as error:
            failures = 0 if _size(download.partial(file)) > before else failures + 1
            if not _is_break(error) or failures >= ATTEMPTS:
                raise
            time.sleep(min(0.25 * 2**failures, 5.0))


def _is_break(error: Exception) -> bool:
    """Whether another attempt may succeed: the connection was lost, or the HTTP status is 408, 416, 429 or 5xx."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return bool(status in (408, 416, 429) or status >= 500)
    return "httpx" in type(error).__module__


def _append(address: str, headers: Mapping[str, str], partial: Path, begin: int, size: int) -> None:
    """Download the bytes of `address` from index `begin` on, and append them to the file `partial`.

    If the server ignores the range and sends the whole file, `partial` is overwritten.

    size: number of bytes of the whole file. Reading stops beyond it, because the hash is wrong anyway.
    """
    import httpx

    wanted = {**headers, "accept-encoding": "identity"} | ({"range": f"bytes={begin}-"} if begin else {})
    stream = httpx.stream("GET", address, headers=wanted, follow_redirects=True, timeout=_SILENCE_SECONDS)
    with stream as response:
        response.raise_for_status()
        with partial.open("ab" if response.status_code == 206 else "wb") as opened:
            for piece in response.iter_raw():
                opened.write(piece)
                if opened.tell() > size:
                    break


def _has_right_hash(path: Path, file: HubFile) -> bool:
    """Whether a file has the hash that the hub states for it."""
    hashed = hashlib.sha256() if file.sha256 else hashlib.sha1(usedforsecurity=False)
    if not file.sha256:
        hashed.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as opened:
        while piece := opened.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest() == file.blob


def _no_bar() -> Any:
    """A class of progress bars that draw nothing, for huggingface_hub."""
    from tqdm import tqdm

    class NoBar(tqdm):  # type: ignore[type-arg]
        def __init__(self, *positional: Any, **named: Any) -> None:
            named.pop("name", None)
            super().__init__(*positional, **named | {"disable": True})

    return NoBar


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _asked(ask: Callable[[], Result], file: str = "") -> Result:
    """Call `ask`, which sends a request to the hub, and return its result.

    Turns every exception into a ResolveError that says what is wrong and what may help.

    file: name of the requested file, for messages.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return ask()
    except ResolveError:
        raise
    except HFValidationError:
        raise ResolveError(
            "it is neither a directory nor a hub id of the form org/name[@revision][:QUANTIZATION]"
        ) from None
    except GatedRepoError:
        raise ResolveError(
            f"the model is gated: accept its terms on its page ({constants.ENDPOINT}), then set HF_TOKEN to a token of "
            "that account"
        ) from None
    except RevisionNotFoundError:
        raise ResolveError("the hub has no revision of this name") from None
    except RepositoryNotFoundError:
        raise ResolveError(
            "the hub has no repository of this name, or it is private: set HF_TOKEN to a token that may read it"
        ) from None
    except LocalEntryNotFoundError:
        raise ResolveError(_unreachable()) from None
    except EntryNotFoundError:
        raise ResolveError(f"the hub lists {file}, but does not have it") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ResolveError(f"the hub refuses the access (HTTP {status}): check the token in HF_TOKEN") from None
        raise ResolveError(f"the hub failed (HTTP {status}): try again later; a download is continued") from None
    except OSError as error:
        if error.errno is not None and "httpx" not in type(error).__module__:
            raise ResolveError(f"the hub cache cannot be written ({os.strerror(error.errno).lower()})") from None
        raise ResolveError(_unreachable()) from None
    except Exception as error:  # the hub client passes on the exceptions of its HTTP library
        refusal = getattr(getattr(error, "response", None), "status_code", None)
        if refusal is not None:
            raise ResolveError(f"the hub's storage refuses {file} (HTTP {refusal}): try again later") from None
        if "httpx" in type(error).__module__:
            raise ResolveError(_unreachable()) from None
        raise ResolveError(f"the download from the hub failed ({type(error).__name__})") from None


def _unreachable() -> str:
    from huggingface_hub import constants

    return f"the hub cannot be reached ({constants.ENDPOINT}, or another HF_ENDPOINT); a download is continued later"
