"""A worker on a CPU neither needs Triton nor imports the Triton kernels."""

from __future__ import annotations

import subprocess
import sys


def test_a_worker_is_imported_without_triton():
    program = """
import sys
sys.modules["triton"] = None
import server.engine.process.service
print([name for name in sys.modules if name.startswith("models.backends.cuda.kernels")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-300:]
