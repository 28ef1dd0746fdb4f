"""The folder with the unpacked packages. Without it, the tests of this room are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[2] / "build" / "published"


@pytest.fixture(scope="session", autouse=True)
def packages() -> Path:
    if not PACKAGES.exists():
        pytest.skip("make test-published downloads the packages")
    return PACKAGES


def found(pattern: str) -> list[Path]:
    """Files of the packages; empty without the packages."""
    return sorted(PACKAGES.glob(pattern))
