"""Search for the most expensive bodies and print a table: `python -m tests.chaos.dearest --tries 60`."""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from tests.chaos.dearest.measure import measured_server
from tests.chaos.dearest.search import FORGET_DOCUMENTS, measure_corpus, search
from tests.clients.models import write_models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=60, help="bodies to send to each route")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="regular expression for paths")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds after which the client leaves")
    parser.add_argument("--stacks", type=Path, help="copy the stacks of stalls to this file")
    parser.add_argument("--corpus", action="store_true", help="measure the bodies of the corpus, and search no others")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        models = write_models(Path(name) / "models")
        (Path(name) / "server").mkdir()
        with measured_server(
            Path(name) / "server", *models, *FORGET_DOCUMENTS, with_stacks=arguments.stacks is not None
        ) as server:
            report = partial(print, flush=True)
            if arguments.corpus:
                measure_corpus(server, only=arguments.only, timeout=arguments.timeout, report=report)
            if not arguments.corpus:
                search(server, arguments.tries, arguments.seed, arguments.only, arguments.timeout, report=report)
            if arguments.stacks is not None:
                arguments.stacks.write_text(server.stalls.stacks.read_text())


if __name__ == "__main__":
    main()
