"""Models of `--models-dir`: which settings they have, and how the directory is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.declared_models import LateSources, idle_limits
from server.errors import InvalidRequest
from server.ipc.wire.descriptions import Speculation
from server.settings import Settings


def write(directory: Path, name: str) -> None:
    (directory / name).mkdir()
    (directory / name / "config.json").write_text("{}")


def sources(directory: Path, **settings: object) -> LateSources:
    found = Settings(models_dir=directory, **settings)
    return LateSources(found, idle_limits(found), lambda: [])


@pytest.mark.parametrize(
    ("entries", "expected"),
    [((), None), (("ngram",), Speculation(is_optional=True)), (("other=ngram",), None)],
)
async def test_a_model_that_comes_later_speculates_as_one_that_is_not_named(tmp_path, entries, expected):
    late = sources(tmp_path, speculative=entries)
    write(tmp_path, "new")
    (found,) = await late.discover()
    assert found.spec.speculation == expected
    assert (await late.model("named", str(tmp_path / "new"))).spec.speculation == expected
    with pytest.raises(InvalidRequest):
        await late.model("a/b", str(tmp_path / "new"))
