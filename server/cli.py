"""The commands `triptych serve`, `triptych check` and `triptych models`.

Flags are built from `server.settings`, so that help, environment and configuration file agree. An error is one line on
stderr. The exit code is 1 for a checkpoint that cannot be loaded and 2 for any other error.
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
"""Models are positional arguments. Keys on a command line would be visible in process lists."""
REPEATED = frozenset({"adapter"})
"""Flags that may be given more than once."""
METAVARS = {"adapter": "NAME=PATH_OR_HUB_ID@MODEL", "quantize": "[NAME=]int8", "speculative": "NAME=METHOD"}
GROUPS = {
    "device": "models",
    "host": "network",
    "max_body_bytes": "limits on requests",
    "max_batch_tokens": "engine",
    "grace_seconds": "operation",
}
"""Headings of the help text. Each key is the first setting below its heading."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see {self.prog} --help)", 2)


def _fail(message: str, status: int) -> NoReturn:
    print(f"triptych: {message}", file=sys.stderr)
    raise SystemExit(status)


def main(argv: Sequence[str] | None = None, worker: Sequence[str] = WORKER_COMMAND) -> None:
    """Run one command. worker: command that starts a worker process."""
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        # `parse_args` would refer to the main help, which does not list the flags of the command.
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
        description="HTTP inference server for encoder, decoder and encoder-decoder transformers.",
        epilog=f"Every flag of serve can also be set as {configuration.PREFIX}NAME in the environment or in --config.",
    )
    parser.add_argument("--version", action="version", version=f"triptych {version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    serve = commands.add_parser(
        "serve",
        help="serve models over HTTP",
        description="Serve models over HTTP.",
        usage="triptych serve [FLAGS] [[NAME=]PATH_OR_HUB_ID ...]",
    )
    serve.add_argument("models", nargs="*", metavar="[NAME=]PATH_OR_HUB_ID", help=_help("models", with_default=False))
    _add_flags(serve, [name for name in Settings.model_fields if name not in NOT_FLAGS])
    serve.set_defaults(run=_serve, parser=serve)

    check = commands.add_parser(
        "check", help="load a checkpoint and describe it", description="Load and verify a checkpoint, and describe it."
    )
    check.add_argument("path", metavar="PATH_OR_HUB_ID", help="Directory or Hugging Face Hub id of the checkpoint.")
    _add_flags(check, ["device", "dtype", "quantize", "kv_cache_memory", "threads"])
    check.set_defaults(run=_check, parser=check)

    models = commands.add_parser("models", help="list the model families", description="List the model families.")
    models.set_defaults(run=_models, parser=models)
    return parser


def _add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings; its keys are the flags with _ for -."
    )
    group: argparse._ActionsContainer = parser
    for name in names:
        if name in GROUPS:
            group = parser.add_argument_group(GROUPS[name])
        field = Settings.model_fields[name]
        flag = "--" + name.replace("_", "-")
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(name)}
        if field.annotation is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            choices = _choices(field)
            if name in REPEATED:
                options["action"] = "append"
            group.add_argument(flag, choices=choices, metavar=None if choices else _metavar(name), **options)


def _choices(field: FieldInfo) -> tuple[str, ...] | None:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else None


def _metavar(name: str) -> str:
    return METAVARS.get(name, name.rpartition("_")[2].upper())


def _help(name: str, with_default: bool = True) -> str:
    field = Settings.model_fields[name]
    text = (field.description or "").replace("%", "%%")
    if not with_default or field.default in (None, "", []):
        return text
    return f"{text} (default: {_default_text(name, field.default)})"


def _default_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_seconds"):
        return f"{value:g} s"
    if name.endswith(("_bytes", "_memory")):
        return f"{value >> 30}G" if value % (1 << 30) == 0 else f"{value >> 20}M"
    return str(value)


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
    """Run a coroutine function on uvloop where the platform has it."""
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
    from server.ipc.fit import shortage

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
    if (text := shortage(info)) is not None:
        rows.append(("warning", text))
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
