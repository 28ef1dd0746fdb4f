"""The wheel that `make wheel` builds works without a compiler, and its kernels share the threads of torch.

The tests install it into an environment that uses the other packages of this environment. `make test-wheel` builds the
wheel and runs the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, serving
from tests.models.test_openmp import check_one_pool

KERNELS = "models/backends/cpu/_kernels.so"


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = sorted((REPOSITORY / "dist").glob("triptych-*.whl"))
    assert len(found) == 1, f"{len(found)} wheels in dist/; run `make wheel` first"
    return found[0]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the wheel and all other packages of this environment."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "-q", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(dict.fromkeys(path for path in sys.path if "site-packages" in path)))
    return home


def test_the_wheel_is_for_every_python_and_names_its_system(wheel: Path) -> None:
    assert re.fullmatch(r"triptych-[\d.]+-py3-none-(manylinux\w+\.?)+\.whl", wheel.name), wheel.name
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        assert KERNELS in names and b"libgomp.so" not in file.read(KERNELS)
    assert not [name for name in names if "libgomp" in name or name.startswith("tests/")]


def test_torch_and_the_kernels_have_one_pool_of_threads(environment: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    assert check_one_pool(environment / "bin" / "python", site) == site / KERNELS


def test_a_server_answers_with_the_kernels_and_without_a_compiler(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(environment / "bin"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = str(environment / "bin" / "triptych")
    with serving(tmp_path / "log", command=(program,), directory=tmp_path) as server:
        body = {"inputs": "I am a student", "source_lang": "en", "target_lang": "fr"}
        (translation,) = server.post("/translate", json=body).json()["translations"]
        assert translation["text"] == "Je suis un étudiant"
        maps = Path(f"/proc/{server.worker().pid}/maps").read_text()
    assert str(environment) in next(line for line in maps.splitlines() if line.endswith(KERNELS))
    assert len(set(re.findall(r"/\S+/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*", maps))) == 1
    assert "slower" not in (tmp_path / "log").read_text(), "the kernels are missing"
