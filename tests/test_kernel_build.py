"""The kernels compile with every installed compiler of a supported version. Errors of a build have explanations."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from models.backends.cpu import compile_kernels
from models.backends.cpu.missing import REPORT, why_kernels_are_missing
from tests.e2e.conftest import REPOSITORY

PACKAGE = Path("models/backends/cpu")


def installed_compilers() -> list[str]:
    """The names of all g++ and clang++ commands in `PATH`, of any version and for any processor."""
    names = re.compile(r"([a-z0-9_]+-linux-gnu-)?(g|clang)\+\+(-\d+)?")
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).is_dir()]
    found = {path.resolve(): path.name for folder in folders for path in folder.iterdir() if names.fullmatch(path.name)}
    return sorted(found.values())


def has_built_the_kernels(command: str) -> bool:
    """Whether this compiler has compiled the current version of all sources for the installation."""
    compiler = compile_kernels.find_compiler()
    is_same = Path(str(shutil.which(command))).resolve() == Path(str(shutil.which(compiler.command[0]))).resolve()
    return is_same and all(compile_kernels.object_file(compiler, source).exists() for source in compile_kernels.SOURCES)


@pytest.mark.parametrize("command", installed_compilers())
def test_the_kernels_compile_with_each_installed_compiler(command: str) -> None:
    """The compiler that built this installation is left out, because it has already compiled the kernels."""
    compiler = compile_kernels.identify([command])
    assert compiler is not None
    if compiler.version[0] < compile_kernels.MIN_VERSIONS[compiler.kind]:
        pytest.skip(f"{compiler} is older than the supported versions")
    if has_built_the_kernels(command):
        return
    for source in compile_kernels.SOURCES:
        flags = [*compile_kernels.flags_of(compiler), "-fsyntax-only"]
        done = subprocess.run([command, *flags, source], capture_output=True, text=True)
        assert done.returncode == 0, f"{compiler}: {done.stderr[:2000]}"


def test_each_header_includes_what_it_needs(tmp_path: Path) -> None:
    """Each header compiles when it is included alone and twice.

    To save time, standard headers are compiled only once.
    """
    compiler = compile_kernels.find_compiler()
    interface = (compile_kernels.KERNELS / "kernels.h").read_text()
    standard = tmp_path / "standard.h"
    standard.write_text("\n".join(re.findall(r"^#include <.*>$", interface, re.MULTILINE)) + "\n")
    flags = [flag for flag in compile_kernels.flags_of(compiler) if flag != "-O3"]
    subprocess.run([*compiler.command, *flags, "-x", "c++-header", standard, "-o", f"{standard}.gch"], check=True)
    for header in compile_kernels.HEADERS:
        if header.name == "isa.h":  # compiled with each instruction set
            continue
        source = f'#include "{header}"\n' * 2
        command = [*compiler.command, *flags, "-w", "-fsyntax-only", "-include", standard, "-x", "c++", "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True)
        assert done.returncode == 0, f"{header.name}: {done.stderr[:2000]}"


def fake_compiler(folder: Path, name: str, macros: dict[str, int]) -> Path:
    """Write a program called `name` that prints predefined macros, as a compiler does for `-dM -E`."""
    lines = "".join(f"echo '#define {macro} {value}'\n" for macro, value in macros.items())
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}")
    path.chmod(0o755)
    return path


GCC_9 = {"__GNUC__": 9, "__GNUC_MINOR__": 4}
GCC_11 = {"__GNUC__": 11, "__GNUC_MINOR__": 3}
CLANG_13 = {"__GNUC__": 4, "__GNUC_MINOR__": 2, "__clang_major__": 13, "__clang_minor__": 0}
CLANG_14 = {"__GNUC__": 4, "__GNUC_MINOR__": 2, "__clang_major__": 14, "__clang_minor__": 0}


def test_no_compiler_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(compile_kernels.BuildError, match=r"no C\+\+ compiler was found.*apt install g\+\+"):
        compile_kernels.find_compiler({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "macros", "message"),
    [("g++", GCC_9, "g++ 9.4 is too old, 11 or later"), ("clang++", CLANG_13, "clang 13.0 is too old, 14 or later")],
)
def test_an_old_compiler_is_an_error_with_both_versions(tmp_path: Path, name: str, macros, message: str) -> None:
    fake_compiler(tmp_path, name, macros)
    with pytest.raises(compile_kernels.BuildError, match=re.escape(message)):
        compile_kernels.find_compiler({"PATH": str(tmp_path)})


def test_a_compiler_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(compile_kernels.BuildError, match="CXX=icpx"):
        compile_kernels.find_compiler({"PATH": str(tmp_path), "CXX": "icpx"})


def test_the_first_compiler_that_is_new_enough_is_used(tmp_path: Path) -> None:
    fake_compiler(tmp_path, "g++", GCC_9)
    fake_compiler(tmp_path, "g++-11", GCC_11)
    assert str(compile_kernels.find_compiler({"PATH": str(tmp_path)})) == "g++ 11.3"
    fake_compiler(tmp_path, "clang++", CLANG_14)
    assert str(compile_kernels.find_compiler({"PATH": str(tmp_path)})) == "clang 14.0"
    chosen = compile_kernels.find_compiler({"PATH": str(tmp_path), "CXX": "g++-11 -pthread"})
    assert chosen.command == ["g++-11", "-pthread"]


def built_wheel(folder: Path, compiler: Path | str) -> zipfile.ZipFile:
    """Build a wheel with `CXX` set to a compiler, from a copy of the repository without the demo models."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    ignored = shutil.ignore_patterns("*.so", REPORT, "__pycache__", "demo")
    for name in ("models", "server", "weights"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", folder]
    subprocess.run(command, cwd=source, env={**os.environ, "CXX": str(compiler)}, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_a_wheel_without_kernels_carries_the_reason(tmp_path: Path) -> None:
    with built_wheel(tmp_path, fake_compiler(tmp_path, "g++", GCC_9)) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]
        report = wheel.read(f"{PACKAGE}/{REPORT}").decode()
    assert report.startswith("g++ 9.4 is too old, 11 or later is needed.")
    assert report.count("\n") == 1


def test_a_failed_compilation_reports_the_first_error_and_removes_the_old_library(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, "g++", GCC_11)
    compiler.write_text(
        compiler.read_text() + 'case "$*" in *-dM*) ;; *) echo "x.h:1: fatal error: no x" >&2; exit 1; esac\n'
    )
    package = tmp_path / "lib" / PACKAGE
    package.mkdir(parents=True)
    (package / "_kernels.so").write_bytes(b"an older build")
    command = [sys.executable, "setup.py", "-q", "build_ext", "-b", tmp_path / "lib", "-t", tmp_path / "objects"]
    subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "CXX": str(compiler)}, check=True, capture_output=True)
    assert [path.name for path in package.iterdir()] == [REPORT]
    reason = why_kernels_are_missing(package)
    assert reason.startswith("g++ 11.3 could not compile the kernels (x.h:1: fatal error: no x). Install g++ 11")


def test_a_source_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is compiled again only if it, a header or the compiler options have changed."""
    kernels, objects, log = tmp_path / "kernels", tmp_path / "objects", tmp_path / "log"
    kernels.mkdir()
    source, header = kernels / "one.cpp", kernels / "one.h"
    source.write_text('#include "one.h"\nint one() { return ONE; }\n')
    header.write_text("#define ONE 1\n")
    monkeypatch.setattr(compile_kernels, "SOURCES", [source])
    monkeypatch.setattr(compile_kernels, "HEADERS", [header])
    monkeypatch.setenv("KERNELS_PROGRESS", str(log))

    def compiled() -> str:
        log.unlink(missing_ok=True)
        _, (result,) = compile_kernels.compile_sources(objects)
        assert [path for path in objects.iterdir() if path.suffix != ".lock"] == [result] and result.stat().st_size
        return log.read_text().split()[0]

    assert [compiled(), compiled()] == ["compiled", "found"]
    header.write_text("#define ONE 2\n")
    assert [compiled(), compiled()] == ["compiled", "found"]
    monkeypatch.setenv("CXXFLAGS", "-g")
    assert [compiled(), compiled()] == ["compiled", "found"]


def test_without_library_and_report_the_message_says_how_to_install(tmp_path: Path) -> None:
    assert "Install Triptych with pip" in why_kernels_are_missing(tmp_path)


def test_the_message_names_a_library_for_another_processor(tmp_path: Path) -> None:
    header = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    header[18:20] = b"\xff\xff"
    (tmp_path / "_kernels.so").write_bytes(header)
    assert "_kernels.so was built for another processor" in why_kernels_are_missing(tmp_path)


def test_the_message_of_the_loader_is_reported(tmp_path: Path) -> None:
    (tmp_path / "_kernels.so").write_bytes(Path("/proc/self/exe").read_bytes()[:64])
    assert re.search(r"_kernels.so does not load: .*_kernels.so: .* Install", why_kernels_are_missing(tmp_path))


WORKER_WITHOUT_KERNELS = """
import sys
from server.engine.process import service, worker

service.choice.kernels_are_built = False
service.why_kernels_are_missing = lambda: "g++ 9.4 is too old."
sys.exit(worker.main())
"""


def test_check_says_in_one_line_why_the_kernels_are_missing(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER_WITHOUT_KERNELS)
    checkpoint = str(REPOSITORY / "weights" / "demo" / "story")
    check = f"from server.cli import main; main(['check', {checkpoint!r}], [{sys.executable!r}, {str(worker)!r}])"
    done = subprocess.run([sys.executable, "-c", check], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith("computes with torch alone, slower: g++ 9.4 is too old.")
