"""Models in the directory `--models-dir`: their settings, and when the server reads the directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from server import declared_models
from server.declared_models import LateSources, first_directories, first_models
from server.errors import InvalidRequest
from server.ipc.wire.descriptions import ModelSpec, Speculation
from server.settings.settings import Settings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def write(directory: Path, name: str) -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "config.json").write_text("{}")
    return directory / name


def sources(directory: Path, *start: ModelSpec, clock: Clock | None = None, **settings: object) -> LateSources:
    found = Settings(models_dir=directory, **settings)
    return LateSources(found, {spec.name: spec for spec in start}, clock or Clock())


@pytest.mark.parametrize(
    ("entries", "expected"),
    [((), None), (("ngram",), Speculation(is_optional=True)), (("other=ngram",), None)],
)
async def test_a_model_that_comes_later_speculates_as_one_that_is_not_named(tmp_path, entries, expected):
    late = sources(tmp_path, speculative=entries)
    directory = write(tmp_path, "new")
    assert (await late.discover())["new"].spec.speculation == expected
    assert (await late.model("named", str(directory))).spec.speculation == expected
    with pytest.raises(InvalidRequest):
        await late.model("a/b", str(directory))


async def test_a_model_that_returns_has_the_settings_of_its_name(tmp_path):
    spec = ModelSpec("a", str(write(tmp_path, "a")), "auto", "int8", adapters={"tone": "/adapters/tone"})
    late = sources(tmp_path, spec, quantize=("a=int8",), idle_seconds=("a=5",))
    write(tmp_path, "b")
    found = await late.discover()
    assert found["a"].spec is spec and found["a"].idle_seconds == 5
    assert found["b"].spec.quantization is None and found["b"].idle_seconds is None
    assert found["a"].is_in_directory


async def test_the_directory_is_read_once_a_second_or_when_it_changes(tmp_path, monkeypatch):
    clock, reads = Clock(), []
    read = declared_models.models_in_directory
    monkeypatch.setattr(declared_models, "models_in_directory", lambda path: reads.append(path) or read(path))
    write(tmp_path, "a")
    late = sources(tmp_path, clock=clock)
    assert list(await late.discover()) == ["a"]
    for _ in range(50):
        assert await late.discover() is None
    assert len(reads) == 1
    write(tmp_path, "b")
    assert list(await late.discover()) == ["a", "b"]
    (tmp_path / "a" / "config.json").unlink()  # which changes the subdirectory alone
    assert await late.discover() is None
    clock.now += declared_models.SCAN_SECONDS
    assert list(await late.discover()) == ["b"]
    shutil.rmtree(tmp_path)
    assert await late.discover() is None  # as if its file system were not mounted
    assert len(reads) == 3


def test_models_that_settings_name_are_not_of_the_directory(tmp_path):
    inside, named = write(tmp_path / "dir", "inside"), write(tmp_path, "named")
    settings = Settings(models_dir=tmp_path / "dir", models=(f"named={named}",))
    directories = first_directories(settings)
    assert directories == {"inside": inside, "named": named}
    specs = [ModelSpec(name, str(path), "auto") for name, path in directories.items()]
    assert [model.is_in_directory for model in first_models(settings, specs)] == [True, False]
