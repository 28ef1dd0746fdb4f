"""The `triptych` command with the fake worker."""

from __future__ import annotations

import sys
from pathlib import Path

from server.cli import main

WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))

if __name__ == "__main__":
    main(worker=WORKER)
