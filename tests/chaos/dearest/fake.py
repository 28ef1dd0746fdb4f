"""Start `triptych` with the loop monitor and the fake worker of the wire tests: `... fake [--inline] FILE serve ...`.

`--inline` plants a bug: large answers are rendered on the event loop, like small ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.chaos.dearest.monitor import install
from tests.wire.fake_serve import WORKER

INLINE = "--inline"


def main(arguments: list[str]) -> None:
    from server.api.bodies import json_answer
    from server.api.routes import route, streaming_route
    from server.cli import main as triptych

    if arguments[0] == INLINE:
        arguments = arguments[1:]
        json_answer.MAX_INLINE = route.MAX_INLINE = streaming_route.MAX_INLINE = sys.maxsize
    install(Path(arguments[0]))
    triptych(arguments[1:], worker=WORKER)


if __name__ == "__main__":
    main(sys.argv[1:])
