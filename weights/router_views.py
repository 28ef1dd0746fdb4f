"""Split a sentence-transformers checkpoint with two encoders, for queries and for documents, into two checkpoints.

Such a checkpoint has a router module with two routes. A view of one route is a temporary directory with links to the
checkpoint's files and a `modules.json` for this route. It is deleted when the process ends.
Reasons: docs/decisions/0173-two-encoders.md. Imports no torch.
"""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from weights.bounded_json import parse_json
from weights.sentence_modules import SIDES, STATIC_WEIGHTS, Module, Side, is_routed, side_modules

_FILE = "triptych_route.json"
_PREFIX = "triptych-routes-"
QUERY_SUFFIX = ".query"
"""Suffix of the name of the model that encodes queries. The model that encodes documents has the name without it."""


@dataclass(frozen=True)
class EncoderRoute:
    """One of the two encoders of a router.

    side: the texts that it encodes, `query` or `document`.
    default: side of a text whose request names no side.
    """

    side: Side
    default: Side

    def encoder_name(self, name: str, prompt_name: str | None) -> str:
        """Name of the model that encodes a text: the model with this encoder, or the model with the other encoder.

        name: name of the model with this encoder.
        prompt_name: `query` or `document`. Any other name, or None, means the default side.
        """
        documents = name.removesuffix(QUERY_SUFFIX)
        side = next((known for known in SIDES if known == prompt_name), self.default)
        return documents + QUERY_SUFFIX if side == "query" else documents


def route_views(directory: Path) -> Mapping[Side, Path]:
    """Create one view for each side of a router with two encoders; empty for another checkpoint.

    A router whose queries need no encoder, or whose routes have the same modules, is one model and gets no views.
    Raises OSError if the views cannot be written.
    """
    if not is_routed(directory):
        return {}
    routes = {side: side_modules(directory, side) for side in SIDES}
    kinds = [kind for kind, _ in routes["query"]]
    if not all(routes.values()) or routes["query"] == routes["document"] or kinds[0] == STATIC_WEIGHTS:
        return {}
    unnamed = side_modules(directory, None)
    default: Side = "query" if unnamed == routes["query"] else "document"
    folder = Path(mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        side: _view(directory, folder / side, modules, EncoderRoute(side, default)) for side, modules in routes.items()
    }


def route_of(directory: Path) -> EncoderRoute | None:
    """The encoder whose view a directory is; None for a directory that is no view."""
    if checkpoint_of(directory.resolve()) is None:
        return None
    found = parse_json(directory / _FILE)
    return EncoderRoute(found["side"], found["default"])


def checkpoint_of(view: Path) -> Path | None:
    """The checkpoint that a view was created from; None for a directory that is no view.

    A view is recognised by its location in the folder for temporary files, which a checkpoint cannot imitate.
    """
    if not view.parent.name.startswith(_PREFIX) or view.parent.parent != _temporary_folder():
        return None
    return Path(parse_json(view / _FILE)["checkpoint"])


def _temporary_folder() -> Path | None:
    """The folder for temporary files; None if no such folder can be written, as on a read-only file system."""
    try:
        return Path(gettempdir()).resolve()
    except FileNotFoundError:
        return None


def _view(directory: Path, view: Path, modules: list[Module], route: EncoderRoute) -> Path:
    view.mkdir()
    for entry in directory.iterdir():
        if entry.name not in ("modules.json", "router_config.json", _FILE):
            (view / entry.name).symlink_to(entry.resolve())
    listed = [{"idx": index, "path": path, "type": kind} for index, (kind, path) in enumerate(modules)]
    (view / "modules.json").write_text(json.dumps(listed))
    stated = {"side": route.side, "default": route.default, "checkpoint": str(directory.resolve())}
    (view / _FILE).write_text(json.dumps(stated))
    return view
