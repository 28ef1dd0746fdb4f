"""The command line, and the composition root: the one file that sees every part and puts them together.

`triptych serve`, `triptych check`, `triptych models`. Flags are made from `server.settings`, so that help, environment
and file always agree. A failure is one line: exit code 2 for what the operator asked for, 1 for a checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from server import settings as configuration
from server.errors import CheckpointError, StartError
from server.ipc.supervisor import WORKER_COMMAND
from server.settings import Settings

NOT_FLAGS = frozenset({"models", "api_keys"})
"""Models are arguments; keys on a command line would show in every process list."""
REPEATED = frozenset({"adapter"})
"""Flags that may be given more than once."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see {self.prog} --help)", 2)


def _fail(message: str, status: int) -> NoReturn:
    print(f"triptych: {message}", file=sys.stderr)
    raise SystemExit(status)


def main(argv: Sequence[str] | None = None, worker: Sequence[str] = WORKER_COMMAND) -> None:
    """Run one command. `worker` starts the engine's process."""
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        # `parse_args` would point to the help of the whole, which has none of the flags.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        arguments.run(arguments, worker)
    except CheckpointError as error:
        _fail(str(error), 1)
    except StartError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _parser() -> argparse.ArgumentParser:
    from server.api.telemetry import version

    parser = _Parser(
        prog="triptych",
        description="One HTTP inference server for encoder, decoder and encoder-decoder transformers.",
        epilog=f"Every flag of serve is also {configuration.PREFIX}NAME in the environment and a key of --config.",
    )
    parser.add_argument("--version", action="version", version=f"triptych {version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    serve = commands.add_parser("serve", help="serve models over HTTP", description="Serve models over HTTP.")
    serve.add_argument("models", nargs="*", metavar="[NAME=]PATH_OR_HUB_ID", help=_help("models", with_default=False))
    _add_flags(serve, [name for name in Settings.model_fields if name not in NOT_FLAGS])
    serve.set_defaults(run=_serve, parser=serve)

    check = commands.add_parser(
        "check", help="load a checkpoint and say what it is", description="Load and verify a checkpoint, then leave."
    )
    check.add_argument("path", metavar="PATH_OR_HUB_ID", help="directory or hub id of the checkpoint")
    _add_flags(check, ["device", "dtype", "quantize", "kv_cache_memory", "threads"])
    check.set_defaults(run=_check, parser=check)

    models = commands.add_parser("models", help="list the model families", description="List the model families.")
    models.set_defaults(run=_models, parser=models)
    return parser


def _add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for name in names:
        field = Settings.model_fields[name]
        flag = "--" + name.replace("_", "-")
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(name)}
        if field.annotation is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            choices = _choices(field)
            if name in REPEATED:
                options["action"] = "append"
            parser.add_argument(flag, choices=choices, metavar=None if choices else _metavar(name), **options)


def _choices(field: FieldInfo) -> tuple[str, ...] | None:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else None


def _metavar(name: str) -> str:
    return name.rpartition("_")[2].upper()


def _help(name: str, with_default: bool = True) -> str:
    field = Settings.model_fields[name]
    text = (field.description or "").replace("%", "%%")
    if not with_default or field.default in (None, "", []) or isinstance(field.default, bool):
        return text
    return f"{text} (default: {field.default})"


def _load_settings(arguments: argparse.Namespace) -> Settings:
    flags = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields and value != []}
    return configuration.load(flags, arguments.config)


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s %(message)s"
    )
    for noisy in ("uvicorn", "asyncio", "httpx", "huggingface_hub", "filelock"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def _run(main: Callable[[], Any]) -> Any:
    """Run a coroutine function on a fast event loop, where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


# --------------------------------------------------------------------------------------------------------------- serve


def _serve(arguments: argparse.Namespace, worker: Sequence[str]) -> None:
    from server.api.serve import listen
    from server.compose import Server

    settings = _load_settings(arguments)
    _start_logging(settings.log_level)
    settings.check_exposure()
    listener = listen(settings.host, settings.port)
    try:
        server = Server(settings, worker)
        _run(lambda: server.serve(listener))
    finally:
        listener.close()


# --------------------------------------------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace, worker: Sequence[str]) -> None:
    from server.compose import inspect

    settings = _load_settings(arguments)
    _start_logging("error")
    info, device = _run(lambda: inspect(arguments.path, settings, worker))
    context = f"{info.context_tokens} tokens"
    if info.is_encoder_decoder:
        context += f", source {info.source_tokens or 'unlimited'}"
    rows = [
        ("family", f"{info.family} ({info.architecture})"),
        ("serves", ", ".join(info.tasks)),
        ("parameters", f"{info.parameters:,}"),
        ("weights", f"{info.weight_bytes / 2**20:,.1f} MiB, {info.quantization or info.dtype} on {device}"),
        ("context", context),
        ("vocabulary", f"{info.vocab_size:,} tokens"),
    ]
    if info.kv_blocks:
        pools = ", ".join(f"{pool} {blocks} blocks" for pool, blocks in info.kv_blocks.items())
        rows.append(("KV cache", f"{info.kv_bytes / 2**20:,.1f} MiB ({pools} of {info.block_size} tokens)"))
    if info.labels:
        rows.append(("labels", ", ".join(info.labels[:8]) + (" ..." if len(info.labels) > 8 else "")))
    rows.append(("loaded in", f"{info.load_seconds:.2f} s"))
    _table(rows)


# -------------------------------------------------------------------------------------------------------------- models


def _models(arguments: argparse.Namespace, worker: Sequence[str]) -> None:
    from server.compose import families

    _table(families())


def _table(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")


if __name__ == "__main__":
    main()
