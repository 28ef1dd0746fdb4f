"""Build the C++ kernels of `models/backends/cpu/kernels` with the package; everything else is in `pyproject.toml`.

Without a suitable compiler the installation still succeeds and computes with torch alone. pip hides the output of
builds, so the reason is written to `_kernels_missing.txt` in the place of the library, where
`models/backends/cpu/missing.py` reads it. The environment variables of the build are those of `compile_kernels.py`.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# pip builds in an environment of its own, without the directory of this file.
sys.path.insert(0, str(Path(__file__).parent))

from models.backends.cpu.compile_kernels import HEADERS, SOURCES, BuildError, build
from models.backends.cpu.missing import REPORT

PACKAGE = Path("models/backends/cpu")


class BuildKernels(build_ext):
    """Build the library, or write the reason why it could not be built."""

    def get_ext_filename(self, name: str) -> str:
        """One name for every Python, because the library has plain C functions."""
        return f"{Path(*name.split('.'))}.so"

    def run(self) -> None:
        directory = PACKAGE if self.inplace else Path(self.build_lib) / PACKAGE
        directory.mkdir(parents=True, exist_ok=True)
        earlier = [*directory.glob("_kernels*.so"), directory / REPORT]
        built = Path(self.build_temp) / "_kernels.so"
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
        [str(PACKAGE / "kernels" / path.name) for path in SOURCES],
        depends=[str(PACKAGE / "kernels" / path.name) for path in HEADERS],
        optional=True,
    )
    setup(ext_modules=[kernels], cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel})
