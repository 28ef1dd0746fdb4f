"""`docs/adding-an-operation.md` names all places in the backends that a new operation needs, and no others."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-an-operation.md").read_text()
INTRODUCTION = PAGE.partition("\n## ")[0]
PLACES = re.findall(r"^\| (\d) \| (.*?) \| `(.*?)` \|$", PAGE, re.MULTILINE)


def test_each_place_has_what_the_page_says():
    assert [int(number) for number, _, _ in PLACES] == [1, 2, 3, 4, 5]
    path = ""
    for _, place, text in PLACES:
        named = re.search(r"`(models/.*?)`", place)
        path = named[1] if named else path
        assert any(text in file.read_text() for file in ROOT.glob(path)), f"{path} has no {text!r}"


def test_further_places_exist_and_are_all():
    """The page names every macro and function of the kernels that lists operations, and the files that have it."""
    found = re.findall(r"^\| (`[^|]*?`): `([#\w]+)` \| ", INTRODUCTION, re.MULTILINE)
    assert {name for _, name in found} == {"#include", "is_valid", "IS_MATRIX_PRODUCT", "ISA_CHANGES"}
    kernels = ROOT / "models/backends/cpu/kernels"
    for files, name in found:
        named = set(re.findall(r"`([\w.]+)`", files))
        pattern = rf"#define {name}\b" if name == "ISA_CHANGES" else re.escape(name)
        assert all(re.search(pattern, (kernels / file).read_text()) for file in named), name
        if name == "ISA_CHANGES":
            assert named == {path.name for path in kernels.glob("*.cpp") if re.search(pattern, path.read_text())}
    others = re.findall(r"^\| `(models/[\w/.]+)` \| ", INTRODUCTION, re.MULTILINE)
    assert others and all((ROOT / path).is_file() for path in others)


def test_the_places_of_an_activation_function_are_all():
    """The page lists every source file of the models that mentions an example, the activation `relu_squared`."""
    section = PAGE.partition("## An activation function\n")[2].partition("\n## ")[0]
    named = dict(re.findall(r"^\| `(models/[\w/.]+)`: `([\w ]+)` \| ", section, re.MULTILINE))
    assert all(text in (ROOT / path).read_text() for path, text in named.items())
    sources = [path for path in (ROOT / "models").rglob("*") if path.suffix in (".py", ".h", ".cpp")]
    naming = {path for path in sources if re.search(r"\brelu_squared\b", path.read_text(), re.IGNORECASE)}
    assert {str(path.relative_to(ROOT)) for path in naming} == named.keys()


def test_there_are_no_other_places():
    """The page lists every source file of the backends that mentions its example, the operation `rms_norm`.

    `add_rms_norm` and `rms_norm_from_one` are other operations and are not counted.
    """
    sources = [path for path in (ROOT / "models/backends").rglob("*") if path.suffix in (".py", ".h", ".cpp")]
    naming = {path for path in sources if re.search(r"(?<!add_)\brms_norm\b", path.read_text())}
    assert {str(path.relative_to(ROOT / "models/backends")) for path in naming} == {
        "torch/operations.py",
        "cpu/operations.py",
        "cpu/kernels/kernels.h",
        "cpu/kernels/norms.h",
        "cuda/operations.py",
        "cuda/kernels/norms.py",
    }
