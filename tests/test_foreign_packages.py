"""A user's file may have the name of one of our packages. `triptych` starts anyway, or one line names the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY

CHECK = """
import sys
sys.path.insert(0, "")  # as uvicorn does
import triptych
triptych._put_ours_first()
import server.errors, weights.errors, models.config
print(server.__file__)
"""


def run(folder: Path, code: str, path: str = str(REPOSITORY)) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["server.py", "models.py", "weights.py", "server/__init__.py", "models/data.txt"])
def test_our_packages_are_found_from_any_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise RuntimeError('the file of the user was imported')")
    done = run(tmp_path, CHECK)
    assert done.returncode == 0 and done.stdout.strip() == str(REPOSITORY / "server" / "__init__.py"), done.stderr


def test_a_module_that_is_imported_already_is_named(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("")
    done = run(tmp_path, CHECK.replace("import triptych\n", "import server, triptych\n"))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"triptych: {tmp_path / 'server.py'} is in the way" in done.stderr


@pytest.mark.parametrize("name", ["models", "weights"])
def test_a_foreign_package_before_ours_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("")
    done = run(tmp_path, "import server.cli", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert (
        f"triptych: {tmp_path / name}.py is in the way: it has the name of Triptych's package {name!r}" in done.stderr
    )


def test_the_module_is_the_command_too(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise RuntimeError")
    command = [sys.executable, "-m", "triptych", "--version"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("triptych "), done.stderr


def test_the_application_is_created(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("raise RuntimeError")
    done = run(tmp_path, CHECK + "print(type(triptych.create_app()).__name__)")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "RequestMiddleware", done.stderr
