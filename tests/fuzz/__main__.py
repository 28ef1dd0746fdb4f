"""Fuzz the parsers and the routes: `python -m tests.fuzz [--seconds N] [TARGET ...]`, guided by coverage (atheris).

The target `routes` sends requests generated from the OpenAPI document to a server with a fake worker. Each target runs
in a separate process for an equal part of the time.

An input that fails is written to `tests/fuzz/corpus/TARGET/`, and `make test` repeats it from then on. Other
interesting inputs are kept in `build/fuzz/TARGET/`, from which the next run starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUTES = "routes"
CORPUS = Path(__file__).with_name("corpus")
PACKAGES = ["server.api", "server.text", "server.audio", "server.client.connection", "server.api_keys", "weights.read"]
"""Packages whose code coverage guides the search."""
MAX_INPUT_BYTES = 1 << 14
INPUT_SECONDS = 25
"""Longest time that a target may take for an input."""


def main() -> int:
    """Run the targets. Returns the exit status: 1 if an input fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to run; all without any")
    parser.add_argument("--seconds", type=int, default=600, help="time for all targets together (default: 600)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        _fuzz(options.only, options.seconds)
    names = options.targets or [*sorted(path.name for path in CORPUS.iterdir()), ROUTES]
    failed = []
    for name in names:
        share = max(1, options.seconds // len(names))
        print(f"== {name}: {share} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--only", name, "--seconds", str(share)]
        if name == ROUTES:
            command = [sys.executable, "-m", "pytest", "tests/fuzz/test_schema.py", "-k", "every_route"]
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"SCHEMA_SECONDS": str(share)}).returncode:
            failed.append(name)
    print(f"{len(names)} targets, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _fuzz(name: str, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.targets import TARGETS
    found = ROOT / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={INPUT_SECONDS}",
        f"-artifact_prefix={CORPUS / name}/",
        "-print_final_stats=1",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([name, *flags, str(found), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    raise SystemExit(main())
