"""Build the C++ kernels of `models/backends/cpu/kernels` with the package; everything else is in `pyproject.toml`.

The kernels need g++ 11 or later, or clang 14 or later; no Python headers and no torch. They are compiled for every
x86-64 level at once, and the level is chosen at run time. Without a suitable compiler the installation still succeeds
and computes with torch alone. pip hides the output of builds, so the reason is written to `_kernels_missing.txt` in the
place of the library, where `models/backends/cpu/missing.py` reads it.

Environment: CXX (compiler command), CXXFLAGS and LDFLAGS (added to the options below), KERNELS_PROGRESS (file that gets
a line for each compiled source).
"""

import contextlib
import hashlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

PACKAGE = Path("models/backends/cpu")
SOURCES = sorted((PACKAGE / "kernels").glob("*.cpp"))
HEADERS = sorted((PACKAGE / "kernels").glob("*.h"))
INTERFACE_HASH = hashlib.sha256((PACKAGE / "kernels" / "kernels.h").read_bytes()).hexdigest()
REPORT = "_kernels_missing.txt"

MIN_VERSIONS = {"g++": 11, "clang": 14}
NEEDED = "g++ 11 or later, or clang 14 or later"
REMEDY = f"Install {NEEDED} (Debian, Ubuntu: apt install g++), then install Triptych again."

# Vectors of 64 bytes are passed to inlined functions only, so the warning of g++ about their ABI does not apply.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-Wall", "-Wno-psabi"]
FLAGS += ["-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# Only `#pragma omp simd` is used, so neither compiler adds calls of an OpenMP runtime. Threads come from the runtime
# that torch has loaded: see kernels/threads.h. With -fopenmp, clang would load libomp as a second runtime.
FLAGS += ["-fopenmp-simd"]
# A library of another kernels.h is refused when it is loaded: see models/backends/cpu/library.py.
FLAGS += [f'-DTRIPTYCH_INTERFACE_HASH="{INTERFACE_HASH}"']
FLAGS_OF = {
    # g++ warns about its own AVX-512 header (GCC bug 105593).
    "g++": ["-Wno-maybe-uninitialized"],
    # clang warns about a loop under `omp simd` that it does not vectorise.
    "clang": ["-Wno-pass-failed"],
}
# No -lgomp: the functions of the OpenMP runtime are found when the library is loaded, in the runtime of torch.
LINK_FLAGS = ["-shared"]


class BuildError(Exception):
    """Raised if the kernels cannot be compiled. The message is one line: the reason and the remedy."""


class Compiler(NamedTuple):
    """An installed C++ compiler.

    command: words that start it.
    kind: key of MIN_VERSIONS.
    version: major and minor version, for example (12, 2).
    """

    command: list[str]
    kind: str
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.kind} {self.version[0]}.{self.version[1]}"


def find_compiler(environment=os.environ) -> Compiler:
    """The compiler of $CXX, or else the first installed one that is new enough.

    Raises BuildError if no compiler is installed or all are too old.
    """
    if environment.get("CXX"):
        commands = [shlex.split(environment["CXX"])]
    else:
        names = ["g++", "c++", "clang++"]
        names += [f"g++-{version}" for version in range(20, MIN_VERSIONS["g++"] - 1, -1)]
        names += [f"clang++-{version}" for version in range(30, MIN_VERSIONS["clang"] - 1, -1)]
        commands = [[name] for name in names]
    too_old = []
    for command in commands:
        compiler = identify(command, environment)
        if compiler and compiler.version[0] >= MIN_VERSIONS[compiler.kind]:
            return compiler
        if compiler:
            too_old.append(compiler)
    if too_old:
        found = too_old[0]
        raise BuildError(f"{found} is too old, {MIN_VERSIONS[found.kind]} or later is needed. {REMEDY}")
    if environment.get("CXX"):
        raise BuildError(f"CXX={environment['CXX']} is not a working g++ or clang. {REMEDY}")
    raise BuildError(f"no C++ compiler was found. {REMEDY}")


def identify(command, environment=os.environ) -> Compiler | None:
    """Kind and version of a compiler, from its predefined macros. None if there is none that is g++ or clang."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        return None
    done = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, env=dict(environment)
    )
    macros = dict(line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if len(line.split()) >= 3)
    # clang defines the macros of g++ as well.
    for kind, major, minor in (("clang", "__clang_major__", "__clang_minor__"), ("g++", "__GNUC__", "__GNUC_MINOR__")):
        if done.returncode == 0 and major in macros:
            return Compiler(command, kind, (int(macros[major]), int(macros[minor])))
    return None


def run(compiler: Compiler, arguments) -> None:
    """Run the compiler. Raises BuildError with the first error line of its output."""
    command = [*compiler.command, *map(str, arguments)]
    # Messages in English, of which the first error is reported.
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
    )
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "cannot find" in line] or lines or ["no message"]
        raise BuildError(f"{compiler} could not compile the kernels ({errors[0]}). {REMEDY}")


def report(line: str, environment=os.environ) -> None:
    """Write a line of progress to the file of $KERNELS_PROGRESS, if it can be written."""
    with contextlib.suppress(OSError, KeyError), open(environment["KERNELS_PROGRESS"], "a") as file:
        file.write(f"{line}\n")


def build(library: Path) -> None:
    """Compile and link the kernels into `library`, with the object files beside it. Raises BuildError."""
    if sys.platform != "linux":
        raise BuildError("the kernels are written for Linux.")
    compiler = find_compiler()
    flags = [*FLAGS, *FLAGS_OF[compiler.kind], *shlex.split(os.environ.get("CXXFLAGS", ""))]
    library.parent.mkdir(parents=True, exist_ok=True)
    objects = [library.with_name(f"{source.stem}.o") for source in SOURCES]
    counter = itertools.count(1)

    def compile(source: Path, out: Path) -> None:
        run(compiler, [*flags, "-c", source, "-o", out])
        report(f"  compiled {source.name} with {compiler} ({next(counter)} of {len(SOURCES)})")

    # A file takes twenty seconds or more, so all cores compile.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile, SOURCES, objects))
    run(compiler, [*objects, *LINK_FLAGS, *shlex.split(os.environ.get("LDFLAGS", "")), "-o", library])


class BuildKernels(build_ext):
    """Build the library, or write the reason why it could not be built."""

    def get_ext_filename(self, name: str) -> str:
        """One name for every Python, because the library has plain C functions."""
        return f"{Path(*name.split('.'))}.so"

    def run(self) -> None:
        directory = PACKAGE if self.inplace else Path(self.build_lib) / PACKAGE
        directory.mkdir(parents=True, exist_ok=True)
        earlier = [*directory.glob("_kernels*.so"), directory / REPORT]
        built = Path(self.build_temp) / "kernels" / "_kernels.so"
        try:
            build(built)
        except (BuildError, OSError) as error:
            print(f"triptych: the compiled kernels were not built: {error}", file=sys.stderr)
            reason = f"{error}\n"
        else:
            reason = None
        # A library of other sources or for another processor must not be loaded in place of this one.
        for path in earlier:
            path.unlink(missing_ok=True)
        if reason is None:
            shutil.copyfile(built, directory / "_kernels.so")
        else:
            (directory / REPORT).write_text(reason, encoding="utf-8")


class Wheel(bdist_wheel):
    """A wheel for every Python 3 of one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    kernels = Extension(
        ".".join((*PACKAGE.parts, "_kernels")),
        [str(path) for path in SOURCES],
        depends=[str(path) for path in HEADERS],
        optional=True,
    )
    setup(ext_modules=[kernels], cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel})
