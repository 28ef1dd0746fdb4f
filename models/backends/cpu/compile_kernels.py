"""Compile the C++ kernels in `kernels/` and link them to one library. Needs only the standard library.

The kernels need g++ 11 or later, or clang 14 or later; no Python headers and no torch. They are compiled for every
x86-64 level in one build, and the level is chosen at run time.

`setup.py` calls `build`. `python models/backends/cpu/compile_kernels.py [LIBRARY]` links them to a file, or without one
compiles the object files alone. They stay in `build/kernels`. The name of an object file has a hash of
the compiler, its options, the headers and the source, so that a source is compiled again only if one of these has
changed.

Environment variables:

- CXX: compiler command. A compiler for another processor cross-compiles.
- KERNELS_OBJECTS: directory of the object files. Use a separate directory for each processor.
- CXXFLAGS, LDFLAGS: options added to the options below.
- KERNELS_PROGRESS: file that gets a line for each compiled source.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

KERNELS = Path(__file__).parent / "kernels"
SOURCES = sorted(KERNELS.glob("*.cpp"))
HEADERS = sorted(KERNELS.glob("*.h"))
OBJECTS = Path(os.environ.get("KERNELS_OBJECTS") or Path(__file__).parents[3] / "build" / "kernels")
INTERFACE_HASH = hashlib.sha256((KERNELS / "kernels.h").read_bytes()).hexdigest()

MIN_VERSIONS = {"g++": 11, "clang": 14}
NEEDED = "g++ 11 or later, or clang 14 or later"
REMEDY = f"Install {NEEDED} (Debian, Ubuntu: apt install g++), then install Triptych again."

# Vectors of 64 bytes are passed to inlined functions only, so the warning of g++ about their ABI does not apply.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-Wall", "-Wno-psabi"]
FLAGS += ["-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# Only `#pragma omp simd` is used, so neither compiler adds calls of an OpenMP runtime. Threads come from the runtime
# that torch has loaded: see kernels/threads.h. With -fopenmp, clang would load libomp as a second runtime.
FLAGS += ["-fopenmp-simd"]
# A library of another kernels.h is refused when it is loaded: see library.py.
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

    command: the words of the command that runs it, for example ["g++"].
    kind: "g++" or "clang", a key of MIN_VERSIONS.
    version: major and minor version, for example (12, 2).
    """

    command: list[str]
    kind: str
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.kind} {self.version[0]}.{self.version[1]}"


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """The compiler of $CXX, or else the first installed one that is new enough.

    Raises BuildError if no compiler is installed, $CXX is neither g++ nor clang, or all compilers are too old.
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


def identify(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> Compiler | None:
    """Kind and version of a compiler, from its predefined macros. None if the command starts neither g++ nor clang."""
    if shutil.which(command[0], path=environment.get("PATH")) is None:
        return None
    done = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True, env=dict(environment)
    )
    macros = dict(line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if len(line.split()) >= 3)
    # clang defines the macros of g++ as well.
    for kind, major, minor in (("clang", "__clang_major__", "__clang_minor__"), ("g++", "__GNUC__", "__GNUC_MINOR__")):
        if done.returncode == 0 and major in macros:
            return Compiler(list(command), kind, (int(macros[major]), int(macros[minor])))
    return None


def run(compiler: Compiler, arguments: Sequence[object]) -> None:
    """Run the compiler. Raises BuildError with the first error line of its output."""
    command = [*compiler.command, *map(str, arguments)]
    # LC_ALL=C gives English messages, in which the first error line is found.
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
    )
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line or "cannot find" in line] or lines or ["no message"]
        raise BuildError(f"{compiler} could not compile the kernels ({errors[0]}). {REMEDY}")


def report(line: str, environment: Mapping[str, str] = os.environ) -> None:
    """Append a line of progress to the file that $KERNELS_PROGRESS names.

    Does nothing if the file cannot be written.
    """
    with contextlib.suppress(OSError, KeyError), open(environment["KERNELS_PROGRESS"], "a") as file:
        file.write(f"{line}\n")


def build(library: Path) -> None:
    """Compile the kernels and link them into the file `library`. Raises BuildError if this fails."""
    compiler, objects = compile_sources()
    library.parent.mkdir(parents=True, exist_ok=True)
    run(compiler, [*objects, *LINK_FLAGS, *shlex.split(os.environ.get("LDFLAGS", "")), "-o", library])


def compile_sources(directory: Path = OBJECTS) -> tuple[Compiler, list[Path]]:
    """Compile all sources that have changed. Returns the compiler and the paths of the object files.

    directory: where the object files are kept from one build to the next.
    Raises BuildError if the system is not Linux, no compiler is found, or a source does not compile.
    """
    if sys.platform != "linux":
        raise BuildError("the kernels are written for Linux.")
    compiler = find_compiler()
    directory.mkdir(parents=True, exist_ok=True)
    counter = itertools.count(1)

    def compile_source(source: Path) -> Path:
        result = object_file(compiler, source, directory)
        with locked(directory / f"{source.stem}.lock"):
            verb = "found" if result.exists() else "compiled"
            if not result.exists():
                unfinished = directory / f"{source.stem}.unfinished"
                run(compiler, [*flags_of(compiler), "-c", source, "-o", unfinished])
                for older in directory.glob(f"{source.stem}-*.o"):
                    older.unlink()
                unfinished.rename(result)
        report(f"  {verb} {source.name} with {compiler} ({next(counter)} of {len(SOURCES)})")
        return result

    # A file takes twenty seconds or more, so all cores compile.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return compiler, list(pool.map(compile_source, SOURCES))


def flags_of(compiler: Compiler) -> list[str]:
    """The options for compiling the kernels: common options, options for this kind of compiler, and $CXXFLAGS."""
    return [*FLAGS, *FLAGS_OF[compiler.kind], *shlex.split(os.environ.get("CXXFLAGS", ""))]


def object_file(compiler: Compiler, source: Path, directory: Path = OBJECTS) -> Path:
    """Path of the object file of a source. The file exists if this compiler has already compiled the current source."""
    headers = hashlib.sha256(b"".join(header.read_bytes() for header in HEADERS)).hexdigest()
    made_of = repr((compiler, flags_of(compiler), headers, source.read_bytes()))
    return directory / f"{source.stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.o"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager that holds a lock on a file, so that two processes do not compile the same source."""
    import fcntl  # not on Windows, where an installation compiles nothing

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            build(Path(sys.argv[1]))
        else:
            compile_sources()
    except (BuildError, OSError) as error:
        sys.exit(f"triptych: the kernels were not compiled: {error}")
