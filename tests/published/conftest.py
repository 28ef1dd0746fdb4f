"""Find the published files that `tests.published.fetch` has unpacked. Without them, the tests here are skipped."""

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
    """The unpacked files that match a pattern. Empty if there are none."""
    return sorted(PACKAGES.glob(pattern))
