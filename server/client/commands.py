"""The commands generate, translate, embed and classify: their flags, and a run that sends inputs and writes answers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from server.client.batch import run_batch
from server.client.connection import Connection, error_message
from server.client.documents import check_fields, document, translate_document
from server.client.errors import AnswerCut, CommandError, RequestFailed
from server.client.interrupts import interruptible
from server.client.options import add_flags, add_format_flags, fields, response_format
from server.client.records import JSON_SUFFIXES, JsonLines, Outcome, Record, finish_reasons, read_records, remaining
from server.client.target import StartServer, add_target_flags, count, target
from server.client.tasks import TASKS, TextTask, groups, send
from server.system.help_texts import HelpFormatter

EXAMPLES = {
    "generate": """\
  triptych generate "Once upon a time" --max-new-tokens 40
  triptych generate --load /path/llama --temperature 0.8 --seed 1 "Once upon a time"
  cat prompt.txt | triptych generate > answer.txt
  triptych generate --input prompts.jsonl --output answers.jsonl --concurrency 16""",
    "translate": """\
  triptych translate --source-lang en --target-lang fr "I am a student"
  triptych translate --target-lang fr letter.docx -o lettre.docx     # also md, html, pptx, odt, epub, srt, po...
  triptych translate < english.txt > french.txt          # line by line
  triptych translate --input texts.jsonl --output answers.jsonl --resume""",
    "embed": """\
  triptych embed "The cat sleeps." "The dog runs."
  triptych embed --input sentences.txt --output vectors.jsonl""",
    "classify": """\
  triptych classify "I loved this wonderful film"
  triptych classify --top-k 3 < reviews.txt              # label, score, text; one line each""",
}
"""Examples in the help texts, by command. `tests/client/test_commands.py` parses each one."""

TIME_LIMIT = "the time limit of the request passed (--timeout)"
TOKEN_LIMIT = "the limit of tokens was reached (--max-new-tokens)"
HELP_END = """
examples:
{examples}

A line of a .jsonl file is a text in quotes, or an object with the text in `{field}` and any other fields of {path}.
The output has one object per line: `line`, `id` if the input had one, and `answer` or `error`.
Exit code: 0 done, 1 the server refused something, 2 wrong command or no server, 3 a limit of tokens or time cut an
answer (in JSON lines, `finish_reason` tells a limit of tokens, and the code is 0), 130 Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of a command to its parser. name: `generate`, `translate`, `embed` or `classify`."""
    task = TASKS[name]
    parser.formatter_class = HelpFormatter
    parser.usage = f"triptych {name} [FLAGS] [TEXT ...]"
    parser.epilog = HELP_END.format(examples=EXAMPLES[name], field=task.field, path=task.path)
    more = "; or the name of a document to translate to --output" if name == "translate" else ""
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT", help="texts; without any, a file or standard input is read" + more
    )
    add_target_flags(parser)
    files = parser.add_argument_group("inputs and outputs")
    files.add_argument("-i", "--input", type=Path, metavar="FILE", help="read texts from a file; - is standard input")
    files.add_argument(
        "--input-format",
        choices=("text", "lines", "jsonl"),
        help="how the input is read: as one text, a text per line, or JSON lines "
        f"(default: jsonl for *.jsonl, else {task.format})",
    )
    files.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to a file; *.jsonl gets JSON lines")
    files.add_argument("--json", action="store_true", help="write JSON lines with the server's whole answers")
    files.add_argument(
        "--resume", action="store_true", help="continue an output file: send only inputs without a complete answer"
    )
    files.add_argument("--overwrite", action="store_true", help="replace an output file")
    files.add_argument("-q", "--quiet", action="store_true", help="no progress bar and no summary")
    files.add_argument("--concurrency", type=count, default=8, metavar="N", help="requests at a time (default: 8)")
    if task.group_size > 1:
        files.add_argument(
            "--batch-size",
            type=count,
            default=task.group_size,
            metavar="N",
            help=f"texts per request (default: {task.group_size})",
        )
    add_flags(parser, task.options)
    if task.generates:
        add_format_flags(parser)


@dataclass
class CommandRun:
    """One run of a command, with counts of its outcomes.

    records: the inputs to send. total: number of inputs, including those that an earlier run has sent.
    body: fields of every request.
    done: outcomes so far. failed: outcomes that are errors. truncated: inputs that were cut to fit the model.
    cut: answers that a time limit has ended. short: answers that the limit of tokens has ended.
    """

    task: TextTask
    arguments: argparse.Namespace
    records: Sequence[Record]
    total: int
    body: dict[str, Any]
    failed: int = 0
    done: int = 0
    truncated: int = 0
    cut: int = 0
    short: int = 0

    @property
    def as_json(self) -> bool:
        output: Path | None = self.arguments.output
        return self.arguments.json or (output is not None and output.suffix in JSON_SUFFIXES)

    @property
    def streams(self) -> bool:
        """Whether the answer is written while it arrives.

        Only for a single input with a single answer, written as plain text to standard output.
        """
        several = any(self.body.get(name, 0) > 1 for name in ("n", "best_of", "num_return_sequences"))
        whole = several or self.body.get("num_alternatives") or self.body.get("return_attention")
        named = self.arguments.output is not None or self.as_json or self.records[0].fields
        return self.task.generates and self.total == 1 and not whole and not named


def run(arguments: argparse.Namespace, name: str, start: StartServer) -> None:
    """Run a command. name: `generate`, `translate`, `embed` or `classify`.

    start: starts a server in this process, for `--load`.
    Raises CommandError for wrong input and without a server, RequestFailed for failed texts, and AnswerCut for answers
    that a limit has ended.
    """
    task = TASKS[name]
    body = fields(arguments, task.options) | (response_format(arguments) if task.generates else {})
    if name == "translate" and (path := document(arguments)) is not None:
        check_fields(body)
        _translate_document(arguments, path, body, start)
        return
    records = read_records(arguments.texts, arguments.input, arguments.input_format, task.format, task.field)
    if not records:
        return
    this = CommandRun(task, arguments, records, len(records), body)
    output = _check_output(this)
    if arguments.resume and output is not None and output.exists():
        this.records = remaining(records, output)
        if not this.records:
            _say(arguments, f"{output} is complete: {this.total:,} answers")
            return
    if task.name == "classify" and not this.as_json:
        body.setdefault("top_k", 1)
    with target(arguments, start) as (where, model), _opened(output, arguments.resume) as file:
        if model:
            body["model"] = model

        async def work() -> None:
            async with Connection(where) as connection:
                await (_stream(connection, this) if this.streams else _send_all(connection, this, file))

        asyncio.run(interruptible(work()))
    _report(this, output)


def _report(run: CommandRun, output: Path | None) -> None:
    """Raise RequestFailed if texts failed, else AnswerCut if a limit has ended answers.

    An answer in JSON lines states its finish reason, so no error is raised if the limit of tokens has ended it.
    """
    problems = [f"{run.failed:,} of {len(run.records):,} texts failed"] if run.failed else []
    cuts = {TIME_LIMIT: run.cut, TOKEN_LIMIT: run.short}
    told = [f"{n:,} of {len(run.records):,} answers are incomplete, because {why}" for why, n in cuts.items() if n]
    if run.short and not run.cut and not run.failed and run.as_json:
        # Each line has its `finish_reason`, and a limit of tokens is usually wanted there.
        _say(run.arguments, told[0])
        return
    again = ["--resume sends them again"] if output is not None and run.as_json and (run.failed or run.cut) else []
    if run.failed:
        raise RequestFailed("; ".join(problems + told + again), 200)
    if told:
        raise AnswerCut("; ".join(told + again))


def _translate_document(arguments: argparse.Namespace, path: Path, body: dict[str, Any], start: StartServer) -> None:
    """Translate the document at `path`, and write the translation to `--output`. body: options of the translation.

    Raises CommandError if files cannot be read or written, and RequestFailed if the server cannot translate it.
    """
    output: Path = arguments.output
    if output.exists() and not arguments.overwrite:
        raise CommandError(f"{output} exists: --overwrite replaces it")
    with target(arguments, start) as (where, model):

        async def work() -> None:
            async with Connection(where) as connection:
                fields = body | ({"model": model} if model else {})
                await translate_document(connection, path, output, fields, arguments.quiet)

        asyncio.run(interruptible(work()))


def _check_output(run: CommandRun) -> Path | None:
    """Return the output file; None for standard output.

    Raises CommandError for flags that exclude each other, and if an earlier output would be lost.
    """
    arguments = run.arguments
    output: Path | None = arguments.output
    if arguments.resume and (output is None or not run.as_json):
        raise CommandError("--resume needs --output with the name of a .jsonl file")
    if arguments.resume and arguments.overwrite:
        raise CommandError("--resume continues the output and --overwrite replaces it: choose one")
    if (
        output is not None
        and output.exists()
        and output.stat().st_size
        and not (arguments.resume or arguments.overwrite)
    ):
        hint = "--resume continues it, --overwrite replaces it" if run.as_json else "--overwrite replaces it"
        raise CommandError(f"{output} exists: {hint}")
    return output


@contextlib.contextmanager
def _opened(output: Path | None, append: bool) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        file = output.open("a" if append else "w", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from None
    with file:
        yield file


async def _send_all(connection: Connection, run: CommandRun, file: TextIO) -> None:
    """Send all inputs and write the outcomes to a file, with a progress bar on a terminal."""
    from tqdm import tqdm

    task, arguments = run.task, run.arguments
    silent = arguments.quiet or run.total == 1 or not sys.stderr.isatty() or (file is sys.stdout and file.isatty())
    bar = tqdm(total=run.total, initial=run.total - len(run.records), unit=" texts", disable=silent, desc=task.name)
    write = JsonLines(file).write if run.as_json else _text_writer(run, file)

    def on_outcome(outcome: Outcome) -> None:
        write(outcome)
        run.done += 1
        run.failed += outcome.error is not None
        run.truncated += outcome.truncated
        run.cut += outcome.cut
        run.short += outcome.short
        bar.update()

    size = getattr(arguments, "batch_size", 1)
    started = time.monotonic()
    try:
        await run_batch(
            groups(run.records, size),
            lambda group: send(connection, task, group, run.body),
            on_outcome,
            arguments.concurrency,
        )
    except (CommandError, asyncio.CancelledError):
        bar.close()
        if run.done and file is not sys.stdout:
            again = "; --resume continues" if run.as_json else ""
            _say(arguments, f"stopped after {run.done:,} of {len(run.records):,} texts{again}")
        raise
    bar.close()
    if run.truncated:
        _say(arguments, f"{run.truncated:,} texts were cut to fit the model; --no-truncate refuses them instead")
    if file is not sys.stdout:
        answers = run.done - run.failed
        _say(arguments, f"{answers:,} answers in {time.monotonic() - started:.1f} s, in {arguments.output}")


def _text_writer(run: CommandRun, file: TextIO) -> Callable[[Outcome], None]:
    """Return a function that writes an outcome as text.

    For a failed input, it writes an empty line, and the error to standard error. It raises RequestFailed if the input
    is the only one.
    """

    def write(outcome: Outcome) -> None:
        if outcome.error is not None:
            reason = error_message(outcome.error) or "failed"
            if run.total == 1:
                raise RequestFailed(reason, 200)
            print(f"triptych: text {outcome.record.line}: {reason}", file=sys.stderr)
        print("" if outcome.error is not None else run.task.text(outcome.answer, outcome.record), file=file, flush=True)

    return write


async def _stream(connection: Connection, run: CommandRun) -> None:
    """Write the answer to one text to standard output while it is generated.

    Raises RequestFailed if the answer fails or breaks off, and AnswerCut if a limit has ended it.
    """
    complete = False
    reasons: set[str] = set()
    body = run.task.body(run.records, run.body) | {"stream": True}
    written = ""
    try:
        async for event in connection.events(run.task.path, body):
            data = json.loads(event.data)
            if event.name == "token":
                written = data["text"] or written
                print(data["text"], end="", flush=True)
            elif event.name == "error":
                raise RequestFailed(error_message(data.get("error")) or "the server failed", 200)
            complete = complete or event.name == "done"
            reasons |= finish_reasons(data)
    finally:
        if complete or written:
            print(end="" if written.endswith("\n") else "\n", flush=True)
    if not complete:
        raise RequestFailed("the answer broke off", 200)
    limits = [text for reason, text in (("timeout", TIME_LIMIT), ("length", TOKEN_LIMIT)) if reason in reasons]
    if limits:
        raise AnswerCut(f"the answer is incomplete, because {limits[0]}")


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.quiet:
        print(f"triptych: {text}", file=sys.stderr)
