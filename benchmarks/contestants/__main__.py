"""Run one contestant, which reads requests from its standard input and writes answers to its standard output."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback

from benchmarks import contestants
from benchmarks.contestants.contract import Contestant, Subject
from benchmarks.memory import resident_bytes
from benchmarks.workloads import Job


def main() -> None:
    """Answer each request line with one line of JSON, until the input ends. Errors are answers with the key `error`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    entry: Contestant | None = None
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if "load" in request:
                    entry = importlib.import_module(contestants.module(sys.argv[1])).Entry()
                    found = entry.load(Subject(**request["load"]))
                    answer = {**found, "rss_bytes": resident_bytes(os.getpid())}
                else:
                    assert entry is not None, "the first request must be load"
                    answer = entry.run(Job(**request["job"])).plain()
                    answer["extra"].setdefault("rss_bytes", resident_bytes(os.getpid()))
            except Exception as error:
                traceback.print_exc()
                answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        if entry is not None:
            with contextlib.suppress(Exception):
                entry.close()


if __name__ == "__main__":
    main()
