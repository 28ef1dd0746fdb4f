"""The number of connections follows the limit of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from server.api.serve import connection_limit
from server.errors import StartError
soft, hard, wanted = (int(one) for one in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    print(connection_limit(wanted or None), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except StartError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"),
    [
        (300, 1000, 100, "100 300"),
        (200, 1000, 500, "500 628"),
        (200, 400, 0, "272 400"),
        (200, 200, 0, "100 200"),
        (100, 200, 0, "100 200"),
        (60, 60, 0, "the limit of open files is 60 (ulimit -n); a server needs more than 128"),
    ],
)
def test_the_limit_of_open_files(soft: int, hard: int, wanted: int, found: str) -> None:
    command = [sys.executable, "-c", CODE, *map(str, (soft, hard, wanted))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == found
