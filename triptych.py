"""Start Triptych from any folder: `triptych`, `python -m triptych`, and `uvicorn --factory triptych:create_app`.

The packages `server`, `models` and `weights` have names that a file of the user may have too, such as a `server.py` in
the working folder. This module finds the packages beside itself, whatever else has their names.
"""

from __future__ import annotations

import signal
import sys
from importlib import invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOME = Path(__file__).resolve().parent
PACKAGES = ("server", "models", "weights")


def main() -> None:
    """Run the command line. Until it can handle Ctrl-C, the key ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _put_ours_first()
    from server.cli import main as run

    run()


def create_app() -> ASGIApp:
    """Create the application for another ASGI server, with settings from the environment."""
    _put_ours_first()
    from server.compose import create_app as create

    return create()


def _put_ours_first() -> None:
    """Make imports find our packages. Ends the process if another module of such a name is imported already."""
    for name in PACKAGES:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or ""
        if module is not None and HOME / name not in Path(file).resolve().parents:
            raise SystemExit(
                f"triptych: {file or f'a module {name}'} is in the way: it has the name of Triptych's package "
                f"{name!r}. Rename it, or start from another folder"
            )
    places = [Path(folder or ".") for folder in _before_home()]
    if any((place / name).is_dir() or (place / f"{name}.py").exists() for place in places for name in PACKAGES):
        sys.path.insert(0, str(HOME))
        invalidate_caches()


def _before_home() -> list[str]:
    """The folders in which Python looks before it looks in ours."""
    places = [Path(folder or ".").resolve() for folder in sys.path]
    return sys.path[: places.index(HOME)] if HOME in places else list(sys.path)


if __name__ == "__main__":
    main()
