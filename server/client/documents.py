"""`triptych translate FILE -o OUT`: send a document to a server, wait for its translation, and write it to a file."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.client.connection import Connection
from server.client.errors import CommandError, RequestFailed

_SUFFIXES_TEXT = """
txt md html htm json srt vtt docx pptx xlsx odt odp epub po pot xliff xlf
"""
SUFFIXES = frozenset(_SUFFIXES_TEXT.split())
"""Suffixes of the document formats that the server translates."""
FIELDS = frozenset({"source_lang", "target_lang"})
"""Options of `triptych translate` that may be used with a document."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


def document(arguments: argparse.Namespace) -> Path | None:
    """Return the document that a command names instead of texts; None if its arguments are texts.

    An argument is a document if it is the only one, is the name of a file with a known suffix, and `--output` is given.
    """
    if len(arguments.texts) != 1 or arguments.output is None or arguments.input is not None:
        return None
    with contextlib.suppress(OSError, ValueError):  # a text that cannot be a path
        path = Path(arguments.texts[0])
        if path.suffix[1:].lower() in SUFFIXES and path.is_file():
            return path
    return None


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise CommandError if an option cannot be used with a document, or if the target language is missing."""
    other = next((name for name in fields if name not in FIELDS), None)
    if other is not None:
        raise CommandError(f"--{other.replace('_', '-')} is for texts, and the input is a document: leave it out")
    if "target_lang" not in fields:
        raise CommandError("a document needs --target-lang")


async def translate_document(
    connection: Connection, path: Path, output: Path, fields: Mapping[str, str], quiet: bool
) -> None:
    """Translate a document, and write the translation to a file.

    path: the document. output: file to write. fields: options of the translation. quiet: whether to print nothing.
    Raises CommandError for a file that cannot be read or written, and RequestFailed if the server cannot translate it.
    """
    from tqdm import tqdm

    started = time.monotonic()
    try:
        data = await asyncio.to_thread(path.read_bytes)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    handle = await connection.upload("/v2/document", fields, path.name, data)
    place, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    pause = _FIRST_PAUSE_SECONDS
    with tqdm(desc="translate", bar_format="{desc}: {postfix}", disable=quiet or not sys.stderr.isatty()) as bar:
        while (status := (await connection.post(place, key)).value)["status"] != "done":
            if status["status"] == "error":
                raise RequestFailed(status.get("error_message") or "the server cannot translate this document", 200)
            if (seconds := status.get("seconds_remaining")) is not None:
                bar.set_postfix_str(f"about {seconds:,} s left")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
    found = await connection.content(f"{place}/result", key)
    try:
        await asyncio.to_thread(output.write_bytes, found)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from None
    if not quiet:
        print(f"triptych: translated in {time.monotonic() - started:.1f} s, in {output}", file=sys.stderr)
