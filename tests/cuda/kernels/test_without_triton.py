"""A CPU needs no Triton."""

from __future__ import annotations

import subprocess
import sys


def test_models_are_imported_without_triton():
    program = "import sys; sys.modules['triton'] = None; import models.backends.interface"
    subprocess.run([sys.executable, "-c", program], check=True)
