"""Builds the kernels of `models/backends/cpu/kernels` with the package; everything else is in `pyproject.toml`.

They are plain C++ with OpenMP and need no torch to build. Without a compiler the package installs all the same, says
so, and computes with torch alone.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("models/backends/cpu/kernels").glob("*.cpp"))
FLAGS = ["-std=c++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-ffp-contract=fast", "-Wno-psabi", "-g0"]
# GCC warns of its own header (bug 105593).
FLAGS += ["-Wno-maybe-uninitialized"]


def side_by_side(compile_one, sources, **options):
    """Objects of the sources, as many compiled at once as there are cores: each takes twenty seconds."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiled = pool.map(lambda source: compile_one([source], **options), sources)
        return [name for names in compiled for name in names]


class BuildKernels(build_ext):
    def build_extension(self, extension: Extension) -> None:
        if sys.platform != "linux":
            print("triptych: the compiled kernels are for Linux; this installation computes with torch alone")
            return
        self.compiler.compile = partial(side_by_side, self.compiler.compile)
        try:
            super().build_extension(extension)
        except Exception as error:
            print(
                "\n".join(
                    (
                        "triptych: the compiled kernels were not built; this installation computes with torch alone,",
                        "triptych: which is slower on a CPU. Install a C++ compiler (Debian: g++) and install again.",
                        f"triptych: {error}",
                    )
                ),
                file=sys.stderr,
            )


setup(
    ext_modules=[
        Extension(
            "models.backends.cpu._kernels",
            SOURCES,
            depends=sorted(str(path) for path in Path("models/backends/cpu/kernels").glob("*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
