"""The `triptych` command: serves, checks, lists and quantizes models, and runs the clients of `server.client`.

The flags of serve and check are built from `server.settings`, so that help, environment and configuration file agree.
An error is one line on stderr. The exit code is 1 for a checkpoint that cannot be loaded or a request that failed, and
2 for any other error. A command imports its modules when it is used, so that help and client commands start fast.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from server.commands.parser import Parser, fail
from server.errors import CheckpointError, StartError
from server.system.interrupts import ending_at_interrupts
from server.system.terminal import table

if TYPE_CHECKING:
    import asyncio

    from pydantic.fields import FieldInfo

    from server.settings.settings import Settings

NOT_FLAGS = frozenset({"models", "api_keys", "tls_key_password"})
"""Settings that have no flag. Models are positional arguments; keys and passwords would be visible in process lists."""
REPEATED = frozenset({"adapter", "translation_prompt"})
"""Flags that may be given more than once."""
METAVARS = {
    "adapter": "NAME=PATH_OR_HUB_ID@MODEL",
    "quantize": "[NAME=]KIND",
    "kv_cache_dtype": "[NAME=]int8|fp8|auto",
    "speculative": "[NAME=]METHOD",
    "languages": "[NAME=]SOURCE-TARGET",
    "pivot": "LANGUAGE",
    "glossaries": "DIRECTORY",
    "suggestions": "FILE",
    "rerank_prompts": "NAME=PROMPT",
    "translation_prompt": "NAME=PROMPT",
}
GROUPS = {
    "device": "models",
    "host": "network",
    "max_body_bytes": "limits on requests",
    "max_batch_tokens": "engine",
    "grace_seconds": "operation",
}
"""Headings of the help text, by the name of the first setting below the heading."""


def main(argv: Sequence[str] | None = None, worker: Sequence[str] | None = None) -> None:
    """Run one command of the command line.

    argv: arguments without the program's name; None for the arguments of this process.
    worker: command that starts a worker process; None for the usual one.
    Raises SystemExit with the exit code if the command fails.
    """
    with ending_at_interrupts():
        from server.client.errors import CommandError

        parser = _parser()
        if not (sys.argv[1:] if argv is None else argv):
            parser.print_help()
            return
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            # `parse_args` would refer to the main help, which does not list the flags of the command.
            arguments.parser.refuse(unknown)
    try:
        arguments.run(arguments, worker)
    except CommandError as error:
        fail(str(error), error.exit_code)
    except StartError as error:
        fail(str(error), _exit_status(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output has ended, as in `triptych translate | head`. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None


def _exit_status(error: StartError) -> int:
    return 1 if isinstance(error, CheckpointError) else 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="triptych",
        description="HTTP inference server for encoder, decoder and encoder-decoder transformers.",
        epilog="Every flag of serve can also be set as TRIPTYCH_NAME in the environment or in --config. "
        "triptych COMMAND --help describes a command, with examples.",
        formatter_class=_CommandList,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (text, fill) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", fill=fill)
        command.set_defaults(parser=command)
    return parser


class _CommandList(argparse.HelpFormatter):
    """Help formatter that puts the description of each command beside its name.

    argparse computes too narrow a first column, because it does not count the second indentation of the names.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(map(len, COMMANDS)) + 4


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *more: Any) -> NoReturn:
        from server.api.telemetry.telemetry import version

        print(f"triptych {version()}")
        raise SystemExit(0)


def _fill_serve(parser: Parser) -> None:
    from server.settings.settings import Settings

    parser.usage = "triptych serve [FLAGS] [[NAME=]PATH_OR_HUB_ID ...]"
    parser.add_argument("models", nargs="*", metavar="[NAME=]PATH_OR_HUB_ID", help=_help("models", with_default=False))
    _add_flags(parser, [name for name in Settings.model_fields if name not in NOT_FLAGS])
    parser.set_defaults(run=_serve)


def _fill_check(parser: Parser) -> None:
    parser.add_argument(
        "path", metavar="[NAME=]PATH_OR_HUB_ID", help="Directory or Hugging Face Hub id of the checkpoint."
    )
    _add_flags(
        parser,
        [
            *("device", "dtype", "quantize", "languages", "rerank_prompts", "translation_prompt"),
            *("kv_cache_memory", "kv_cache_dtype", "threads", "packed_cache"),
        ],
    )
    parser.add_argument("--profile", action="store_true", help="measure each operation of a step; on a CPU only")
    parser.set_defaults(run=_check)


def _fill_models(parser: Parser) -> None:
    from server.client import models

    models.add_arguments(parser)
    parser.set_defaults(run=_models)


def _fill_task(name: str) -> Callable[[Parser], None]:
    def fill(parser: Parser) -> None:
        from server.client import commands

        commands.add_arguments(parser, name)
        parser.set_defaults(run=lambda arguments, worker: commands.run(arguments, name, _server_starter(worker)))

    return fill


def _fill_chat(parser: Parser) -> None:
    from server.client import chat

    chat.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: chat.run(arguments, _server_starter(worker)))


def _fill_transcribe(parser: Parser) -> None:
    from server.client import transcribe

    transcribe.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: transcribe.run(arguments, _server_starter(worker)))


def _fill_rerank(parser: Parser) -> None:
    from server.client import rerank

    rerank.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: rerank.run(arguments, _server_starter(worker)))


def _fill_hub(name: str) -> Callable[[Parser], None]:
    def fill(parser: Parser) -> None:
        from server.commands import hub

        hub.add_arguments(parser, name)
        parser.set_defaults(run=lambda arguments, worker: hub.run(arguments, name))

    return fill


def _fill_completion(parser: Parser) -> None:
    from server.commands import completion

    completion.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: print(completion.script(arguments.shell, _parser())))


def _fill_bench(parser: Parser) -> None:
    from server.client.bench import command

    command.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: command.run(arguments))


def _fill_quantize(parser: Parser) -> None:
    from server.commands import quantize

    quantize.add_arguments(parser)
    parser.set_defaults(run=lambda arguments, worker: table(quantize.run(arguments)))


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "serve": ("serve models over HTTP", _fill_serve),
    "check": ("load and verify a checkpoint, and describe it", _fill_check),
    "models": ("list the model families, or the models of a server", _fill_models),
    "pull": ("fetch a model from the Hugging Face hub", _fill_hub("pull")),
    "list": ("list the fetched models", _fill_hub("list")),
    "show": ("describe a fetched model, or what pull would fetch", _fill_hub("show")),
    "rm": ("remove a fetched model", _fill_hub("rm")),
    "quantize": ("write a checkpoint with weights of 4, 6 or 8 bits", _fill_quantize),
    "generate": ("continue prompts with a decoder or an encoder-decoder", _fill_task("generate")),
    "chat": ("talk with a model in the terminal", _fill_chat),
    "translate": ("translate texts", _fill_task("translate")),
    "embed": ("turn texts into vectors", _fill_task("embed")),
    "classify": ("label texts", _fill_task("classify")),
    "rerank": ("sort texts by how well they fit a query", _fill_rerank),
    "transcribe": ("turn recordings into text or subtitles", _fill_transcribe),
    "bench": ("measure a server under load: latencies, throughput, errors", _fill_bench),
    "completion": ("write the script that completes commands in a shell", _fill_completion),
}


def _add_flags(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    from server.settings.settings import Settings

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
    from server.settings.settings import Settings

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
    from server.settings.read import load
    from server.settings.settings import Settings

    known = Settings.model_fields
    flags = {name: value for name, value in vars(arguments).items() if name in known and value != []}
    return load(flags, arguments.config)


def _run(main: Callable[[], Any]) -> Any:
    """Run a coroutine function to its end, on uvloop except on Windows. Returns its result."""
    import asyncio

    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def _worker(worker: Sequence[str] | None) -> Sequence[str]:
    from server.ipc.workers.worker_process import WORKER_COMMAND

    return WORKER_COMMAND if worker is None else worker


def _server_starter(
    worker: Sequence[str] | None,
) -> Callable[[str, Mapping[str, str]], AbstractContextManager[tuple[str, str]]]:
    """Return a function that starts a server in this process, for a client command without the URL of a server.

    The function takes a model and flags, and returns a context manager of the server's URL and API key.
    """

    def start(model: str, flags: Mapping[str, str]) -> AbstractContextManager[tuple[str, str]]:
        from server.commands.in_process import serve_in_process
        from server.log_format import start_logging

        start_logging("critical", "text")  # the command itself reports a failure
        return serve_in_process(model, flags, _worker(worker))

    return start


# --------------------------------------------------------------------------------------------------------------- serve


def _serve(arguments: argparse.Namespace, worker: Sequence[str] | None) -> None:
    from server.api.serve import Endpoints
    from server.commands.downloads import download_while_serving
    from server.compose import Server
    from server.log_format import ENVIRONMENT, start_logging
    from server.system.output import open_closed_files

    open_closed_files()
    settings = _load_settings(arguments)
    os.environ[ENVIRONMENT] = settings.log_format
    start_logging(settings.log_level, settings.log_format)
    try:
        settings.check_exposure()
        with Endpoints.open(settings) as endpoints:
            download_while_serving(settings, endpoints, _run)
            server = Server(settings, _worker(worker))
            _run(lambda: server.serve_until_signal(endpoints))
    except StartError as error:
        if settings.log_format == "json":
            logging.getLogger("triptych").critical("%s", error)
            raise SystemExit(_exit_status(error)) from None
        raise


# --------------------------------------------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace, worker: Sequence[str] | None) -> None:
    from server.commands.check import check
    from server.log_format import start_logging

    settings = _load_settings(arguments)
    start_logging("error", "text")
    check(arguments, settings, _worker(worker), _run)


# -------------------------------------------------------------------------------------------------------------- models


def _models(arguments: argparse.Namespace, worker: Sequence[str] | None) -> None:
    if arguments.url is not None:
        from server.client.models import served_models

        table(served_models(arguments))
        return
    from server.compose import families

    table(families())


if __name__ == "__main__":
    main()
