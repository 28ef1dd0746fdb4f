"""`triptych pull`, `list`, `show` and `rm`: the models in the cache of the Hugging Face hub.

Other programs use the same cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from server.errors import CheckpointError, StartError
from server.near_names import did_you_mean
from server.system.help_texts import HelpFormatter

if TYPE_CHECKING:
    from weights.hub.cache import CachedModel
    from weights.resolve import HubSource

_ENVIRONMENT = """
The environment: HF_HOME is the directory with the cache (default: ~/.cache/huggingface), HF_TOKEN the token for gated
and private models, HF_ENDPOINT another hub or mirror, and HF_HUB_OFFLINE=1 forbids all requests.
"""
EXAMPLES = {
    "pull": """\
  triptych pull org/llama
  triptych pull org/llama@v1.0
  triptych pull org/llama-GGUF --gguf Q4_K_M             # also org/llama-GGUF:Q4_K_M""",
    "list": "  triptych list",
    "show": "  triptych show org/llama",
    "rm": "  triptych rm org/llama",
}
_ENDS = {
    "pull": "Only the files that are needed are fetched, all of one revision, and their hashes are checked. After a "
    "break the\nsame command continues. A branch that has moved is fetched again; `serve` uses what is there.\n",
    "list": "",
    "show": "",
    "rm": "Files that another revision of the model needs stay.\n",
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of a command to its parser. name: `pull`, `list`, `show` or `rm`."""
    parser.formatter_class = HelpFormatter
    parser.epilog = f"examples:\n{EXAMPLES[name]}\n\n{_ENDS[name]}{_ENVIRONMENT}"
    if name == "list":
        return
    parts = "@REVISION if needed" if name == "rm" else "@REVISION and :QUANTIZATION if needed"
    parser.add_argument("model", metavar="HUB_ID", help=f"org/name, with {parts}")
    if name in ("pull", "show"):
        parser.add_argument("--gguf", metavar="QUANTIZATION", help="the GGUF model with this quantization: Q4_K_M")
    if name == "rm":
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace, name: str) -> None:
    """Run a command. name: `pull`, `list`, `show` or `rm`.

    Raises StartError for wrong arguments, and CheckpointError for a model that cannot be found or fetched.
    """
    from weights.errors import ResolveError

    try:
        {"pull": _pull, "list": _list, "show": _show, "rm": _remove}[name](arguments)
    except ResolveError as error:
        raise CheckpointError(str(error)) from None


def _source(arguments: argparse.Namespace) -> HubSource:
    from dataclasses import replace

    from weights.resolve import hub_source

    source = hub_source(arguments.model)
    if source is None:
        raise StartError(
            f"{arguments.model!r} is not a hub id: write org/name, org/name@REVISION or org/name:QUANTIZATION"
        )
    return source if getattr(arguments, "gguf", None) is None else replace(source, gguf=arguments.gguf)


def _pull(arguments: argparse.Namespace) -> None:
    from huggingface_hub import constants

    from server.commands.downloads import Downloads, in_thread, size_text
    from weights.hub.fetch import plan
    from weights.resolve import find_cached, found_in

    source = _source(arguments)
    if constants.HF_HUB_OFFLINE:
        raise StartError("HF_HUB_OFFLINE forbids a download")
    try:
        found = plan(source.text, source.repository, source.revision, source.weights, source.gguf)
    except ValueError as error:
        raise CheckpointError(f"{source.text!r}: {error}") from None
    if not found.missing and find_cached(source) is not None:
        print(f"{source.text} is up to date (commit {found.commit[:12]}, {len(found.files)} files)")
        return
    in_thread(Downloads([source], bars=True, planned=[found]).run)
    found_in(source, found.directory)
    total = sum(file.size for file in found.files)
    print(f"{source.text}: {len(found.files)} files, {size_text(total)}, commit {found.commit[:12]}")


def _list(arguments: argparse.Namespace) -> None:
    from server.system.terminal import table
    from weights.hub.cache import cached_models

    models = cached_models()
    if not models:
        print("no models; triptych pull org/name fetches one", file=sys.stderr)
        return
    table([(model.name, _about(model)) for model in models])


def _about(model: CachedModel) -> str:
    from server.commands.downloads import size_text

    day = time.strftime("%Y-%m-%d", time.localtime(model.used))
    return f"{size_text(model.bytes)}; {', '.join(model.revisions)}; used {day}"


def _show(arguments: argparse.Namespace) -> None:
    from server.commands.downloads import size_text
    from server.system.terminal import table
    from weights.resolve import find_download

    source = _source(arguments)
    found = find_download(source)
    if not isinstance(found, Path):
        rows = [
            ("model", source.text),
            ("state", f"not fetched: triptych pull {source.text}"),
            ("revision", f"{found.revision}, commit {found.commit}"),
            ("to fetch", f"{size_text(found.total_bytes)} in {len(found.missing)} files"),
            *((file.name, size_text(file.size)) for file in found.files),
        ]
        table(rows)
        return
    directory = found if found.is_dir() else found.parent
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and (found.is_dir() or path == found)]
    table(
        [
            ("model", source.text),
            ("state", _state(found)),
            ("revision", f"{source.revision or 'main'}, commit {_commit(directory)}"),
            ("directory", str(found)),
            ("size", f"{size_text(sum(path.stat().st_size for path in files))} in {len(files)} files"),
            *((path.relative_to(directory).as_posix(), size_text(path.stat().st_size)) for path in files),
        ]
    )


def _commit(directory: Path) -> str:
    while directory.parent.name != "snapshots":
        directory = directory.parent
    return directory.name


def _state(found: Path) -> str:
    """Say in one line which architecture a downloaded model has, and whether this server can run it. Reads no weights.

    found: directory of the model, or its GGUF file.
    """
    from models.checkpoint.checkpoint_heads import read_files
    from models.config import ConfigError
    from weights.errors import ResolveError

    kind = "GGUF"
    if found.is_dir():
        try:
            config = json.loads((found / "config.json").read_text())
            kind = ", ".join(config.get("architectures") or [str(config.get("model_type"))])
        except (OSError, ValueError, AttributeError):
            kind = "no config.json"
    try:
        read_files(found).config()
    except (ConfigError, ResolveError) as error:
        return f"{kind}; not served: {' '.join(str(error).split())}"
    return f"{kind}; can be served: triptych check tells its memory and speed"


def _remove(arguments: argparse.Namespace) -> None:
    from server.commands.downloads import size_text
    from weights.hub.cache import cached_models, remove, snapshot

    source = _source(arguments)
    if source.gguf is not None:
        raise StartError(f"rm removes whole revisions, all their quantizations included: leave out :{source.gguf}")
    models = {model.name: model for model in cached_models()}
    if source.repository not in models:
        names = did_you_mean(source.repository, models) or "; triptych list shows those that are"
        raise StartError(f"{source.repository} is not in the cache{names}")
    model = models[source.repository]
    commits = model.commits
    if source.revision is not None:
        directory = snapshot(source.repository, source.revision)
        if directory is None:
            raise StartError(
                f"{source.repository} has no revision {source.revision} in the cache: {', '.join(model.revisions)}"
            )
        commits = (directory.name,)
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise StartError("rm asks before it removes a model: without a terminal, add --yes")
        size = f" ({size_text(model.bytes)})" if source.revision is None else ""
        try:
            reply = input(f"remove {source.text}{size}? [y/N] ")
        except EOFError:
            reply = ""
        if reply.strip().lower() not in ("y", "yes"):
            return
    print(f"removed {source.text}: {size_text(remove(commits))} are free again")
