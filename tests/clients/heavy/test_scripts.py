"""Packages whose requirements exclude ours, in an environment of their own: `make test-clients`.

Each script in this folder is a client of one package. It runs with the Python of that environment, and gets the
address and the key of the server from the environment variables `TRIPTYCH_URL` and `TRIPTYCH_API_KEY`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import ClientServer
from tests.e2e.conftest import REPOSITORY

PYTHON = REPOSITORY / ".venv-clients" / "bin" / "python"
SCRIPTS = sorted(Path(__file__).parent.glob("*_client.py"))


@pytest.mark.skipif(not PYTHON.exists(), reason="make test-clients creates the environment")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_script_succeeds(server: ClientServer, script: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"TRIPTYCH_URL": server.url, "TRIPTYCH_API_KEY": server.key, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([PYTHON, script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
