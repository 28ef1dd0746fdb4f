"""Measure how much faster the HTTP protocol refuses than the middleware does: `python -m tests.chaos.refusals`.

Two servers with the demo models run at the same time. One is the product. The other one passes every request to the
application, so that its middleware refuses. It is started with `--in-the-middleware`, a flag of this module that the
product does not have. In each round, first one server and then the other gets requests at ten times the capacity. The
order alternates.

For each round, and as medians, it prints the goodput as a share of the peak before and after it, and the median and the
p99 of the time of a refusal. The refusal in the protocol is kept if it gains at least 5% goodput, or at least halves
the time of a refusal. Measure on a quiet machine, and also with `--access-log`, which writes a line for each refusal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from tests.chaos.checks.clients import p99
from tests.chaos.checks.overload import BODIES, CLIENTS, MEAN_TOKENS, PATH, SPARE_SECONDS, in_words, tokens_per_second
from tests.e2e.conftest import COMMAND, RunningServer, serving

IN_THE_MIDDLEWARE = "--in-the-middleware"
VARIANTS = {
    "in the protocol": COMMAND,
    "in the middleware": (sys.executable, "-m", "tests.chaos.refusals", IN_THE_MIDDLEWARE),
}


def measure(running: RunningServer, rate: float, seconds: float) -> tuple[float, float, float, str]:
    """Measure a server with requests that arrive at `rate` per second, for `seconds`.

    Returns the goodput as a share of the peak, the median and the p99 time of a refusal in seconds, and the outcome as
    text.
    """
    period = 0.3 * seconds, seconds
    length = sum(period) + SPARE_SECONDS
    closed = "closed", running.url, PATH, BODIES, CLIENTS, length
    before, _ = tokens_per_second(running, closed, *period)
    goodput, outcome = tokens_per_second(
        running, ("arrivals", running.url, PATH, BODIES, rate or 10 * before / MEAN_TOKENS, length), *period
    )
    after, _ = tokens_per_second(running, closed, *period)
    refusals = outcome.refusal_seconds
    if len(refusals) < 2:
        raise SystemExit("no request was refused; give a higher --rate")
    if not before + after:
        raise SystemExit("no token was generated within the time; the machine is too busy, or --seconds too few")
    return goodput / statistics.mean([before, after]), statistics.median(refusals), p99(refusals), in_words(outcome)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.refusals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="time in which goodput is counted")
    parser.add_argument("--rate", type=float, default=0.0, help="arrivals per second; by default 10 times capacity")
    parser.add_argument("--access-log", action="store_true")
    arguments = parser.parse_args()
    flags = () if arguments.access_log else ("--no-access-log",)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(Path(directory) / name, *flags, command=command))
            for name, command in VARIANTS.items()
        }
        for number in range(arguments.rounds):
            for name in list(VARIANTS)[:: 1 if number % 2 else -1]:
                goodput, middle, slow, words = measure(servers[name], arguments.rate, arguments.seconds)
                found[name].append((goodput, middle, slow))
                print(f"{name}: goodput {goodput:.3f} of peak, refusal {middle * 1000:.2f} ms; {words}", flush=True)
    for name, rows in found.items():
        goodput, middle, slow = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"medians {name}: goodput {goodput:.3f} of peak, refusal {middle * 1000:.2f} ms, p99 {slow * 1000:.1f} ms"
        )


def serve_refusing_in_the_middleware(arguments: list[str]) -> None:
    """Run the command line of the product, but with a protocol that passes all requests to the application."""
    from server import cli
    from server.api.connection.arrivals import Arrivals

    receive = Arrivals.__call__

    class Kept(Exception):
        """Raised by this module's protocol in place of a refusal, so that the application gets the request."""

    def refuse(self: Arrivals, *request: Any) -> Response:
        raise Kept

    def hand_over(self: Arrivals, scope: Scope, body: bytearray | None, start: Callable[[], None]) -> Response | None:
        try:
            return receive(self, scope, body, start)
        except Kept:
            start()
            return None

    Arrivals._refusal = refuse  # type: ignore[method-assign]
    Arrivals.__call__ = hand_over  # type: ignore[method-assign]
    cli.main(arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_THE_MIDDLEWARE]:
        serve_refusing_in_the_middleware(sys.argv[2:])
    else:
        main()
