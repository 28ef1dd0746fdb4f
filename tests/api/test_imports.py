"""The HTTP process stays light: composing a server brings in neither torch nor the engine."""

from __future__ import annotations

import subprocess
import sys


def test_a_server_is_composed_without_torch() -> None:
    heavy = "{'torch', 'server.engine', 'transformers'}"
    code = f"import sys, server.cli, server.compose; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
