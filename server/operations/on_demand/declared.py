"""A declared model: its specification, its state, and what is known of it while it is not loaded."""

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
"""Pause after a failed load. Each further failure doubles it."""


@dataclass(frozen=True)
class Description:
    """Properties of a model that need not be loaded, by which requests without `model` choose it.

    operations: names, as in `ServedModel.operations`. languages: translations that it offers.
    family: name of its family. parameters: number of its parameters; 0 if it was never loaded.
    hidden_size, max_input_tokens: as in `ModelInfo` and `ServedModel`; 0 if its files do not say them.
    template: its chat template; empty without one.
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
    """The description of a loaded model, or of one of which only the files were read."""
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
    """A model that the server can load, and its state.

    spec: what the workers load.
    idle_seconds: time without requests after which it is unloaded; None for never. 0: when its last request has ended.
    state: see `ModelState`. `unloading`: it takes no new requests, and leaves when the running ones have ended.
    reason: why the last load failed; empty otherwise. failures: failed loads since the last one that succeeded.
    retry_at: time before which no load is tried again.
    size_bytes: memory that is counted for it; 0 while it is not in memory.
    running: requests that use it. waiting: requests that wait for its load.
    used_at: when its last request ended, or it was loaded.
    keep_seconds: replaces `idle_seconds` until it is unloaded, if `is_kept`.
    is_kept: a request has set `keep_seconds` (`keep_alive`).
    loads, load_seconds: number of loads, and duration of the last one.
    description: None until it was needed. is_unreadable: it could not be described.
    next_spec: replaces `spec` when the model has left; None for no change.
    is_suspect: a worker has ended while it loaded the model. If this happens again, the load counts as failed.
    is_in_directory: it was found in `--models-dir`, and no setting names it.
    is_gone: it was in that directory, and is not there any more.
    """

    spec: ModelSpec
    idle_seconds: float | None = None
    state: ModelState = "declared"
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    size_bytes: int = 0
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

    @cached_property
    def disk_bytes(self) -> int:
        """Size of its files; of a GGUF model in pieces, of the first piece."""
        path = Path(self.spec.directory)
        files = [path] if path.is_file() else [file for file in path.glob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files)

    def about(self, now: float) -> dict[str, Any]:
        """The model as `/info` describes it. now: seconds of `time.monotonic()`."""
        expires, failed = self.expires_at, self.state == "failed"
        return {
            "name": self.name,
            "state": self.state,
            "reason": self.reason or None,
            "memory_bytes": self.size_bytes,
            "disk_bytes": self.disk_bytes,
            "running": self.running,
            "waiting": self.waiting,
            "expires_in_seconds": None if expires is None else round(max(expires - now, 0.0), 1),
            "retry_in_seconds": round(max(self.retry_at - now, 0.0), 1) if failed else None,
            "load_seconds": round(self.load_seconds, 3) if self.loads else None,
        }

    @property
    def is_in_memory(self) -> bool:
        """Whether it is loaded, or waits to be, or has not left yet."""
        return self.state not in ("declared", "failed")

    @property
    def names(self) -> list[str]:
        """Its name and those of its adapters."""
        return [self.name, *self.spec.adapters]

    @property
    def expires_at(self) -> float | None:
        """Time at which it is unloaded unless a request comes; None for never."""
        limit = self.keep_seconds if self.is_kept else self.idle_seconds
        return None if limit is None or self.state != "loaded" else self.used_at + limit

    def keep(self, seconds: float | None) -> None:
        """Replace `idle_seconds` until the model is unloaded. None: it is not unloaded for being idle."""
        self.keep_seconds, self.is_kept = seconds, True

    def failed(self, reason: str, now: float) -> None:
        """Record a failed load, and when the next one may be tried. now: seconds of `time.monotonic()`."""
        self.failures += 1
        self.state, self.reason, self.size_bytes = "failed", reason, 0
        self.retry_at = now + min(FIRST_RETRY_SECONDS * 2 ** (self.failures - 1), MAX_RETRY_SECONDS)

    def left(self) -> None:
        """Record that the model is not in memory any more."""
        if self.next_spec is not None:
            self.spec, self.next_spec = self.next_spec, None
        self.state, self.size_bytes, self.is_kept = "declared", 0, False
