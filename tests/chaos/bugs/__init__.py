"""One planted bug for each promise. A check must fail with its bug."""

from tests.chaos.bugs import http, worker
from tests.chaos.bugs.registry import BUGS, install, planted

__all__ = ["BUGS", "http", "install", "planted", "worker"]
