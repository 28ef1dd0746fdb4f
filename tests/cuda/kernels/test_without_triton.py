"""A CPU needs no Triton."""

from __future__ import annotations

import subprocess
import sys


def test_a_worker_is_imported_without_triton():
    program = "import sys; sys.modules['triton'] = None; import server.engine.service"
    subprocess.run([sys.executable, "-c", program], check=True)
