"""The HTTP process imports neither torch nor the engine, and starts quickly for that reason."""

from __future__ import annotations

import subprocess
import sys


def test_composing_a_server_does_not_import_torch() -> None:
    forbidden = "{'torch', 'server.engine', 'transformers'}"
    code = f"import sys, server.cli, server.compose; print(sorted({forbidden} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
