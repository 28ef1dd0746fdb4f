"""`triptych rerank`: sort texts by how well they fit a query."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from server.client.connection import Connection
from server.client.errors import CommandError
from server.client.interrupts import interruptible
from server.client.options import RERANKING, add_flags, fields
from server.client.records import read_records
from server.client.target import StartServer, add_target_flags, count, target
from server.system.help_texts import HelpFormatter

EXAMPLES = """\
  triptych rerank "Where did Ada live?" "Ada lived in London." "The sea is blue."
  triptych rerank "Where did Ada live?" --input passages.txt --top-n 3"""
HELP_END = f"""
examples:
{EXAMPLES}

One line for each text, the best first: score, number of the text, and the text, separated by tabs.
Exit code: 0 done, 1 the server refused something, 2 wrong command or no server, 130 Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.usage = "triptych rerank [FLAGS] QUERY [TEXT ...]"
    parser.epilog = HELP_END
    parser.add_argument("query", metavar="QUERY", help="what is looked for")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; without any, lines of a file are read")
    add_target_flags(parser)
    files = parser.add_argument_group("inputs and outputs")
    files.add_argument(
        "-i", "--input", type=Path, metavar="FILE", help="read a text per line from a file; - is standard input"
    )
    files.add_argument("--top-n", type=count, metavar="N", help="write only the N best texts")
    files.add_argument("--json", action="store_true", help="write JSON lines: index, score and text")
    add_flags(parser, RERANKING)


def run(arguments: argparse.Namespace, start: StartServer) -> None:
    """Run the command: print the texts by falling score.

    start: starts a server in this process, for `--load`.
    Raises CommandError for wrong input, without a server, and for a refused request.
    """
    records = read_records(arguments.texts, arguments.input, None, "lines", "text")
    texts = [record.item for record in records]
    if not texts:
        raise CommandError("no text to sort: the input is empty")
    body: dict[str, Any] = {"query": arguments.query, "texts": texts} | fields(arguments, RERANKING)
    with target(arguments, start) as (where, model):
        if model:
            body["model"] = model

        async def ask() -> Any:
            async with Connection(where) as connection:
                return (await connection.post("/rerank", body)).value

        ranked = asyncio.run(interruptible(ask()))
    try:
        for result in sorted(ranked, key=lambda result: -result["score"])[: arguments.top_n]:
            index, score, text = result["index"], result["score"], texts[result["index"]]
            if arguments.json:
                print(json.dumps({"index": index, "score": score, "text": text}, ensure_ascii=False))
            else:
                print(f"{score:.4f}\t{index + 1}\t{' '.join(text.split())}")
    except (LookupError, TypeError):
        raise CommandError("/rerank did not answer as Triptych does; is it another server?") from None
