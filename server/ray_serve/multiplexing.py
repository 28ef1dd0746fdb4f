"""Choose the replicas for a request by the model that it names. Replicas that have the model are preferred."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

MAX_INLINE_BYTES = 1 << 20
"""Maximum size, in bytes, of a body that is parsed on the event loop. A longer body is parsed in a thread."""
MAX_NAME = 200
_FORM_MODEL = re.compile(rb'name="model"[^\r\n]{0,100}\r\n(?:[^\r\n]{1,100}\r\n){0,4}\r\n([^\r\n]{1,200})\r\n')
_FORM_BYTES = 1 << 15
"""Bytes at the beginning and at the end of a form in which its fields are searched for. A file is between them."""
_HUB_PATH = re.compile(r"/models/([^/]+)")


class _Named(msgspec.Struct):
    """The fields of a body that name a model."""

    model: Any = None
    name: Any = None


@dataclass(frozen=True)
class ReplicaModels:
    """What a replica reports about its models.

    loaded: names of the models and adapters that the replica has, or is loading.
    waiting: number of requests that wait for each model, for its load or in the queue of the engine.
    """

    loaded: frozenset[str] = frozenset()
    waiting: Mapping[str, float] = field(default_factory=dict)

    def to_stats(self) -> dict[str, Any]:
        """The report as JSON data, for `of`."""
        return {"loaded": sorted(self.loaded), "waiting": dict(self.waiting)}

    @staticmethod
    def of(stats: Mapping[str, Any]) -> ReplicaModels:
        """Read a report. A replica that has not reported yet has no model."""
        return ReplicaModels(frozenset(stats.get("loaded", ())), stats.get("waiting", {}))


def requested_model(path: str, body: bytes) -> str:
    """The model that a request names in its path, its JSON body or its form; empty if it names none.

    It only chooses the replica, which reads the request again. A body that cannot be read names no model.
    """
    if (found := _HUB_PATH.match(path)) is not None and not path.startswith(("/models/load", "/models/unload")):
        return unquote(found[1])[:MAX_NAME]
    if body[:2] == b"--":
        form = _FORM_MODEL.search(body[:_FORM_BYTES]) or _FORM_MODEL.search(body[-_FORM_BYTES:])
        return form[1].decode(errors="replace") if form is not None else ""
    try:
        named = msgspec.json.decode(body, type=_Named)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""
    name = named.model or named.name
    return name[:MAX_NAME] if isinstance(name, str) else ""


def ranks(model: str, replicas: Mapping[str, ReplicaModels]) -> list[list[str]]:
    """Rank the replicas for a request: a list of equally good replicas, then a list of all other replicas.

    Replicas that have the model come first. If requests for it wait in all of them, one more replica counts as equally
    good, so that it loads the model too. If no replica has the model, all requests for it go to the same replica, which
    is chosen by the names of the model and of the replicas.

    model: name of the model. replicas: reports by the name of the replica.
    """
    holders = [name for name, about in replicas.items() if model in about.loaded]
    others = sorted((name for name in replicas if name not in holders), key=lambda name: _weight(model, name))
    is_busy = all(replicas[name].waiting.get(model, 0) > 0 for name in holders)
    count = 1 if others and (not holders or is_busy) else 0
    return [group for group in ([*holders, *others[:count]], others[count:]) if group]


def _weight(model: str, replica: str) -> bytes:
    """Sort key of a replica for one model (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return hashlib.blake2b(json.dumps([model, replica]).encode(), digest_size=8).digest()
