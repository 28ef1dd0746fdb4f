"""A declared model: its specification, its state, and its description, which is known even if it is not loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from server.ipc.wire.descriptions import ModelSpec
from server.operations.served_model import ServedModel
from server.text.languages.languages import TranslationLanguages

ModelState = Literal["declared", "loading", "loaded", "unloading", "failed"]
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
"""Pause after the first failed load, and maximum pause. Each further failure doubles the pause."""


@dataclass(frozen=True)
class Description:
    """Properties of a model, loaded or not, by which the server chooses a model for requests without `model`.

    operations: names of the operations that the model supports.
    languages: translations that the model offers.
    family: name of the model's family.
    parameters: number of the model's parameters; 0 if it was never loaded.
    hidden_size, max_input_tokens: sizes of the model; 0 if its files do not contain them.
    template: text of the chat template; empty if there is none.
    """

    operations: tuple[str, ...]
    languages: TranslationLanguages
    is_encoder_decoder: bool
    family: str = ""
    parameters: int = 0
    hidden_size: int = 0
    max_input_tokens: int = 0
    template: str = ""


def description_of(model: ServedModel) -> Description:
    """Describe a model that is loaded, or of which only the files were read."""
    return Description(
        operations=(*model.operations(), "tokenize", "detokenize"),
        languages=model.text.languages,
        is_encoder_decoder=model.info.is_encoder_decoder,
        family=model.info.family,
        parameters=model.info.parameters,
        hidden_size=model.info.hidden_size,
        max_input_tokens=model.max_input_tokens,
        template=model.text.chat_templates.by_name.get("default", ""),
    )


@dataclass(eq=False)
class DeclaredModel:
    """A model that the server can load, and its state. Times are seconds of `time.monotonic()`.

    spec: specification of the model for the workers.
    idle_seconds: time without requests after which the model is unloaded. With None it is never unloaded, with 0 at the
        end of its last request.
    state: `unloading` means that the model takes no new requests, and is unloaded when its running requests have ended.
    reason: why the last load failed; empty if it has not failed.
    failures: number of failed loads since the last successful load.
    retry_at: time before which loading is not tried again.
    fixed_bytes: memory that is counted for weights, steps and tokenizer of the model; 0 while it is not in memory.
    cache_bytes: memory that is counted for its KV caches; 0 while it is not in memory, and after it has given them
        back to make room.
    wanted_cache_bytes: memory of its KV caches while it runs requests.
    running: number of requests that use the model. waiting: number of requests that wait for its load.
    used_at: time at which the last request ended, or the model was loaded.
    keep_seconds: replaces `idle_seconds` until the model is unloaded, if `is_kept`.
    is_kept: whether a request has set `keep_seconds`, by its field `keep_alive`.
    loads: number of loads. load_seconds: duration of the last load.
    description: operations and limits of the model, read from its files; None before they are needed.
    is_unreadable: whether the model's files could not be read.
    next_spec: specification that replaces `spec` after the model is unloaded; None for no change.
    is_suspect: whether a worker has crashed while it loaded the model. A second crash counts as a failed load.
    is_in_directory: whether the model was found in `--models-dir`, and no setting names it.
    is_gone: whether its files were deleted from that directory.
    """

    spec: ModelSpec
    idle_seconds: float | None = None
    state: ModelState = "declared"
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    fixed_bytes: int = 0
    cache_bytes: int = 0
    wanted_cache_bytes: int = 0
    running: int = 0
    waiting: int = 0
    used_at: float = field(default_factory=time.monotonic)
    keep_seconds: float | None = None
    is_kept: bool = False
    loads: int = 0
    load_seconds: float = 0.0
    description: Description | None = None
    is_unreadable: bool = False
    next_spec: ModelSpec | None = None
    is_suspect: bool = False
    is_in_directory: bool = False
    is_gone: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def size_bytes(self) -> int:
        """Memory that is counted for the model, in bytes; 0 while it is not in memory."""
        return self.fixed_bytes + self.cache_bytes

    @property
    def has_cache(self) -> bool:
        """Whether the memory of its KV caches is counted, so that it can run requests."""
        return self.cache_bytes >= self.wanted_cache_bytes

    @cached_property
    def disk_bytes(self) -> int:
        """Total size of the model's files. Of a GGUF model in several files, only the first is counted."""
        path = Path(self.spec.directory)
        files = [path] if path.is_file() else [file for file in path.glob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files)

    def about(self, now: float) -> dict[str, Any]:
        """The state of the model as a JSON object for `/info`. now: seconds of `time.monotonic()`."""
        expires, failed = self.expires_at, self.state == "failed"
        return {
            "name": self.name,
            "state": self.state,
            "reason": self.reason or None,
            "memory_bytes": self.size_bytes,
            "kv_cache_bytes": self.cache_bytes,
            "disk_bytes": self.disk_bytes,
            "running": self.running,
            "waiting": self.waiting,
            "expires_in_seconds": None if expires is None else round(max(expires - now, 0.0), 1),
            "retry_in_seconds": round(max(self.retry_at - now, 0.0), 1) if failed else None,
            "load_seconds": round(self.load_seconds, 3) if self.loads else None,
        }

    @property
    def is_in_memory(self) -> bool:
        """Whether the model is loaded, is waiting to be loaded, or is not unloaded yet."""
        return self.state not in ("declared", "failed")

    @property
    def names(self) -> list[str]:
        """The names of the model and of its adapters."""
        return [self.name, *self.spec.adapters]

    @property
    def expires_at(self) -> float | None:
        """Time at which the model is unloaded if no request comes; None for never, or if it is not loaded."""
        limit = self.keep_seconds if self.is_kept else self.idle_seconds
        return None if limit is None or self.state != "loaded" else self.used_at + limit

    def keep(self, seconds: float | None) -> None:
        """Replace `idle_seconds` until the model is unloaded. None: it is never unloaded for lack of requests."""
        self.keep_seconds, self.is_kept = seconds, True

    def failed(self, reason: str, now: float) -> None:
        """Record a failed load, and compute when loading may be tried again. now: seconds of `time.monotonic()`."""
        self.failures += 1
        self.state, self.reason = "failed", reason
        self.fixed_bytes = self.cache_bytes = 0
        self.retry_at = now + min(FIRST_RETRY_SECONDS * 2 ** (self.failures - 1), MAX_RETRY_SECONDS)

    def left(self) -> None:
        """Record that the model was unloaded."""
        if self.next_spec is not None:
            self.spec, self.next_spec = self.next_spec, None
        self.state, self.is_kept = "declared", False
        self.fixed_bytes = self.cache_bytes = 0
