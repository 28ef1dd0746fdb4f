"""Run one check in this process and print its record as JSON: `python -m tests.chaos.one NUMBER small|full [BUG]`."""

from __future__ import annotations

import json
import sys

from tests.chaos import bugs, server
from tests.chaos.promises import PROMISES
from tests.chaos.record import Record


def main(number: str, scale: str, bug: str | None = None) -> None:
    """Run one check. bug: installed in this process, and in each server that the check starts."""
    (promise,) = (one for one in PROMISES if one.number == int(number))
    server.planted = bug
    if bug is not None:
        bugs.install(bug, "http", "worker")
    try:
        record = promise.check(**(promise.full if scale == "full" else promise.small))
    except server.StartFailed as error:
        record = Record("run")
        record.must(False, f"the server did not start: {str(error)[-300:]}")
    except Exception as error:
        # A planted bug may cause any exception. A check that cannot run at all has failed too.
        record = Record("run", runs=1)
        record.must(False, f"{type(error).__name__}: {str(error)[:300]}")
    print(json.dumps(record.to_json()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
