"""`triptych transcribe`: turn recordings into text, subtitles or JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from server.client.connection import Connection
from server.client.errors import CommandError
from server.client.interrupts import interruptible
from server.client.options import TRANSCRIPTION, add_flags, fields
from server.client.target import StartServer, add_target_flags, target
from server.system.help_texts import HelpFormatter

FORMATS = {"text": "txt", "srt": "srt", "vtt": "vtt", "json": "json", "verbose_json": "json"}
"""Suffix of an output file, by the format of the answer."""
STANDARD_INPUT = "recording"
"""Name that is used for a recording from standard input."""
EXAMPLES = """\
  triptych transcribe meeting.mp3
  triptych transcribe talk.wav --language en --format srt -o talk.srt
  triptych transcribe *.wav --format vtt -o subtitles/         # a file for each recording
  triptych transcribe interview.ogg --translate                # into English"""
HELP_END = f"""
examples:
{EXAMPLES}

The recordings are sent one after another. Without --output, several texts have the name of their file before them,
separated by a tab, and several JSON answers are one object per line.
Exit code: 0 done, 1 the server refused something, 2 wrong command or no server, 130 Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.usage = "triptych transcribe [FLAGS] RECORDING ..."
    parser.epilog = HELP_END
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING", help="files; - is standard input")
    add_target_flags(parser)
    files = parser.add_argument_group("outputs")
    files.add_argument("--format", choices=tuple(FORMATS), default="text", help="format of the answer (default: text)")
    files.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write to a file, or into a directory, a file per recording"
    )
    files.add_argument("--overwrite", action="store_true", help="replace output files")
    parser.add_argument("--translate", action="store_true", help="translate the speech into English")
    add_flags(parser, TRANSCRIPTION)


def run(arguments: argparse.Namespace, start: StartServer) -> None:
    """Run the command: transcribe the recordings one after another, and write each transcript.

    start: starts a server in this process, for `--load`.
    Raises CommandError for wrong arguments or files, without a server, and for a refused request.
    """
    if arguments.translate and arguments.language is not None:
        raise CommandError("--translate detects the language of the speech: leave out --language")
    outputs = _outputs(arguments)
    form = {name: _text(value) for name, value in fields(arguments, TRANSCRIPTION).items()}
    path = f"/v1/audio/{'translations' if arguments.translate else 'transcriptions'}"
    with target(arguments, start) as (where, model):
        if model:
            form["model"] = model

        async def work() -> None:
            async with Connection(where) as connection:
                for recording, output in zip(arguments.recordings, outputs, strict=True):
                    name, data = _read(recording)
                    whole = {**form, "response_format": arguments.format}
                    _write(arguments, name, await connection.upload_for_text(path, whole, name, data), output)

        asyncio.run(interruptible(work()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _outputs(arguments: argparse.Namespace) -> list[Path | None]:
    """Return the output file of each recording; None for standard output.

    Raises CommandError if several recordings would go into one file, or if a file exists and may not be replaced.
    """
    output: Path | None = arguments.output
    several = len(arguments.recordings) > 1
    if output is None:
        if several and arguments.format in ("srt", "vtt"):
            raise CommandError("several recordings as subtitles need --output with a directory")
        return [None] * len(arguments.recordings)
    if not output.is_dir():
        if several:
            raise CommandError(f"--output: several recordings need a directory, and {output} is none")
        files = [output]
    else:
        files = [output / f"{_stem(recording)}.{FORMATS[arguments.format]}" for recording in arguments.recordings]
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise CommandError(f"two recordings would be written to {twice}")
    existing = next((file for file in files if file.exists() and not arguments.overwrite), None)
    if existing is not None:
        raise CommandError(f"{existing} exists: --overwrite replaces it")
    return list(files)


def _stem(recording: Path) -> str:
    return STANDARD_INPUT if str(recording) == "-" else recording.stem


def _read(recording: Path) -> tuple[str, bytes]:
    if str(recording) == "-":
        return STANDARD_INPUT, sys.stdin.buffer.read()
    try:
        return recording.name, recording.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {recording}: {error.strerror}") from None


def _write(arguments: argparse.Namespace, name: str, answer: str, output: Path | None) -> None:
    text = answer.strip("\n")
    if output is not None:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {output}: {error.strerror}") from None
    elif len(arguments.recordings) == 1:
        print(text, flush=True)
    elif arguments.format == "text":
        print(f"{name}\t{' '.join(text.split())}", flush=True)
    else:
        try:
            value = json.loads(text)
        except ValueError:
            raise CommandError("the server did not answer with JSON; is it another server?") from None
        print(json.dumps({"file": name, "answer": value}, ensure_ascii=False), flush=True)
