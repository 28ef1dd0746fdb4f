"""One planted bug for each promise. A check must fail with its bug."""

from tests.chaos.bugs import entry, http, worker
from tests.chaos.bugs.registry import BUGS, install, planted

__all__ = ["BUGS", "entry", "http", "install", "planted", "worker"]
