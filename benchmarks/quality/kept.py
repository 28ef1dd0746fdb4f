"""Keep the measurements of one model's contestants on disk for each text, so that a stopped run can go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from hashlib import blake2s
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Kept:
    """A folder with one file per contestant and text, which contains the result of `divergence.measure`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, contestant: str, text: Sequence[int]) -> Tensor | None:
        """The measurements of a contestant on a text, or None if there are none. text: token ids."""
        path = self._path(contestant, text)
        return torch.from_numpy(np.load(path)) if path.exists() else None

    def put(self, contestant: str, text: Sequence[int], measured: Tensor) -> None:
        path = self._path(contestant, text)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, measured.float().numpy())
        partial.rename(path)

    def describe(self, contestant: str, facts: dict[str, Any]) -> None:
        """Store facts about a contestant, such as its bits per weight, beside its measurements."""
        path = self._folder / contestant / "facts.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts))

    def facts(self, contestant: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self._folder / contestant / "facts.json").read_text())
        return facts

    def forget(self, contestant: str) -> None:
        shutil.rmtree(self._folder / contestant, ignore_errors=True)

    def _path(self, contestant: str, text: Sequence[int]) -> Path:
        ids = np.array(text, dtype="<i4").tobytes()
        return self._folder / contestant / f"{blake2s(ids, digest_size=8).hexdigest()}.npy"
