"""`triptych check`: load a checkpoint in a worker, and describe it."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from server.settings.entries import split_entry
from server.settings.settings import Settings
from server.system.terminal import table


def check(
    arguments: argparse.Namespace,
    settings: Settings,
    worker: Sequence[str],
    run: Callable[[Callable[[], Awaitable[Any]]], Any],
) -> None:
    """Run the command: print a table about a checkpoint, or two for a checkpoint with a separate query encoder.

    worker: command that starts a worker process. run: runs a coroutine function and returns its result.
    Raises CheckpointError for a checkpoint that cannot be found or loaded.
    """
    from server.commands.advice import advice, measure
    from server.commands.downloads import download
    from server.commands.setting_sizes import setting_sizes, size_rows
    from server.compose import inspect
    from server.ipc.wire.fit import room, shortage
    from server.model_sources import resolved
    from server.system.cores import cores_of_this_process
    from server.system.memory import free_memory_bytes
    from weights.resolve import hub_source
    from weights.router_views import route_views

    source = hub_source(split_entry(arguments.path)[1] if "/" in arguments.path else arguments.path)
    download([] if source is None else [source])
    named, path = split_entry(arguments.path)
    views = route_views(resolved(path)) if Path(path).exists() or source is not None else {}
    for side, view in views.items():
        table([("route", side)])
        changed = argparse.Namespace(**{**vars(arguments), "path": f"{named}={view}"})
        check(changed, settings, worker, run)
    if views:
        return
    model, device, about_device = run(lambda: inspect(arguments.path, settings, worker))
    info = model.info
    context = f"{info.context_tokens} tokens"
    if info.is_encoder_decoder:
        context += f", source {info.source_tokens or 'unlimited'}"
    rows = [
        ("family", f"{info.family} ({info.architecture})"),
        ("serves", ", ".join(model.tasks)),
        ("parameters", f"{info.parameters:,}"),
        ("weights", f"{info.weight_bytes / 2**20:,.1f} MiB, {info.quantization or info.dtype} on {device}"),
        *([("device", about_device)] if about_device else []),
        *([("format", info.checkpoint_format)] if info.checkpoint_format else []),
        *(("note", note) for note in info.notes),
        ("execution", info.execution),
        *([("drafts", info.drafts)] if info.drafts else []),
        ("context", context),
        ("vocabulary", f"{info.vocab_size:,} tokens"),
    ]
    if info.kv_blocks:
        pools = ", ".join(f"{pool} {blocks} blocks" for pool, blocks in info.kv_blocks.items() if pool != "state")
        states = f", {info.kv_blocks['state']} states" if "state" in info.kv_blocks else ""
        dtype = f", {info.kv_cache_dtype}" if info.kv_cache_dtype != "auto" else ""
        size = f"{info.kv_bytes / 2**20:,.1f} MiB{dtype}"
        rows.append(("KV cache", f"{size} ({pools} of {info.block_size} tokens{states}), {room(info)}"))
    rows += [("languages", ", ".join(model.languages()[:12]))] if model.languages() else []
    problems = (shortage(info), model.language_problem, model.late_interaction_problem)
    rows += [("warning", problem) for problem in problems if problem is not None]
    if info.labels:
        rows.append(("labels", ", ".join(info.labels[:8]) + (" ..." if len(info.labels) > 8 else "")))
    origin = ", read from the packed cache" if info.is_from_packed_cache else ""
    rows.append(("loaded in", f"{info.load_seconds:.2f} s{origin}"))
    if settings.packed_cache is not None:
        rows.append(("packed cache", "its files were compared with their hashes"))
    if device == "cpu":
        sizes = setting_sizes(arguments.path, settings)
        machine = measure(settings.threads or cores_of_this_process().threads, free_memory_bytes())
        rows += [*size_rows(sizes), *advice(info, machine, sizes)]
    table(rows)
    if arguments.profile:
        from server.commands import step_profile

        table(step_profile.profile(arguments.path, settings, device))
