"""Run a client script in a separate Python environment, which `make test-heavy-clients` creates.

The script gets the address and the key of the server from the environment variables `TRIPTYCH_URL` and
`TRIPTYCH_API_KEY`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ClientServer
from tests.e2e.conftest import REPOSITORY

HERE = Path(__file__).parent
EXAMPLES = REPOSITORY / "examples"
PYTHON = REPOSITORY / ".venv-clients" / "bin" / "python"
needs_environment = pytest.mark.skipif(not PYTHON.exists(), reason="make test-heavy-clients creates the environment")


def run_script(script: Path, server: ClientServer, directory: Path, *arguments: str) -> str:
    """Run a Python or shell script in `directory`, and return what it prints. A failed script fails the test."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    environment |= {"TRIPTYCH_URL": server.url, "TRIPTYCH_API_KEY": server.key, "HF_HUB_OFFLINE": "1"}
    command = ["bash" if script.suffix == ".sh" else PYTHON, script, *arguments]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
