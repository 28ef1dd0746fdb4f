"""Triptych's server: an HTTP process, and engines in worker processes. They exchange messages over sockets."""

from importlib.util import find_spec
from pathlib import Path


def _check_neighbours() -> None:
    """End the process with a one-line error if `import models` or `import weights` finds a foreign module of that name.

    Such a module would hide the packages that the server needs.
    """
    home = Path(__file__).resolve().parent.parent
    for name in ("models", "weights"):
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a specification, which a test has made
            continue
        files = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        found = [Path(file).resolve() for file in files if file]
        if found and not any(home / name in (file, *file.parents) for file in found):
            raise SystemExit(
                f"triptych: {found[0]} is in the way: it has the name of Triptych's package {name!r}. Rename it, or "
                "start from another folder"
            )


_check_neighbours()
