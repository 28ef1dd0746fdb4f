"""Reads the list of CPU operations, their parameter structs and shared enumerations from `kernels/kernels.h`.

Python builds programs from these structs, and C++ runs them. Both therefore use the same header.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from models.backends.cpu.programs.traits import TRAITS, Traits

PATH = Path(__file__).parent / "kernels" / "kernels.h"

_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^(?:const )?(\w+)(\*?) (\w+(?:, \w+)*)(?:\[(\d+)\])?$")
_ENUM = r"^enum {} : int32_t \{{ (.*?) \}};"
_LIST = re.compile(r"^#define TRIPTYCH_OPERATIONS\(X\)((?:.*\\\n)+.*)", re.MULTILINE)
_ROW = re.compile(r"X\((\w+), (\w+),")


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of the list `TRIPTYCH_OPERATIONS` in `kernels/kernels.h`.

    code: integer by which programs identify the operation: its index in the list.
    fields: names of the parameters in memory order. Fields of a nested struct have no prefix; fields of an array of
        structs have the suffixes `_0`, `_1`...
    pack: one value per field -> bytes of the struct.
    values_of: values by name -> values in the order of `fields`. Raises KeyError if a field has no value.
    traits: properties that matter for fusion, memory and reports.
    """

    name: str
    code: int
    fields: tuple[str, ...]
    pack: Callable[..., bytes]
    values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    traits: Traits


def interface_hash() -> str:
    """SHA-256 of the header. `setup.py` compiles the same hash into the library."""
    return hashlib.sha256(PATH.read_bytes()).hexdigest()


def read_operations(text: str) -> dict[str, Operation]:
    """The operations that a header declares, by name. text: the contents of the header.

    Raises ValueError for a header outside the subset of C++ that this file understands.
    """
    structs: dict[str, list[tuple[str, str]]] = {}
    for name, body in _STRUCT.findall(text):
        if name not in ("bfloat16", "Kernels"):
            structs[name] = _fields(name, body, structs)
    rows = _LIST.search(text)
    if rows is None:
        raise ValueError(f"{PATH.name} has no TRIPTYCH_OPERATIONS")
    operations = {}
    for code, (name, parameters) in enumerate(_ROW.findall(rows[1])):
        if parameters not in structs:
            raise ValueError(f"{PATH.name}: operation {name} has unknown parameters {parameters}")
        fields, codes = zip(*structs[parameters], strict=True)
        pack = struct.Struct("=" + "".join(codes)).pack
        operations[name] = Operation(name, code, fields, pack, itemgetter(*fields), TRAITS.get(name, Traits()))
    return operations


def read_codes(text: str, enumeration: str) -> Mapping[str, int]:
    """The values of an enumeration in the header, by the names of its constants. text: the contents of the header.

    Raises ValueError if the header has no such enumeration.
    """
    found = re.search(_ENUM.format(enumeration), text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{PATH.name} has no enumeration {enumeration}")
    return {name: int(value) for name, value in (entry.split(" = ") for entry in found[1].split(", "))}


def _fields(name: str, body: str, structs: Mapping[str, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Names of the fields of one struct, and their format codes for Python's module `struct`.

    structs: the structs that are defined before it.
    Raises ValueError for a field that this file cannot read.
    """
    found: list[tuple[str, str]] = []
    for statement in re.sub(r"//.*", "", body).split(";")[:-1]:
        field = _FIELD.match(statement.strip())
        if field is None:
            raise ValueError(f"{PATH.name}: cannot read {statement.strip()!r} in struct {name}")
        kind, pointer, names, length = field.groups()
        if pointer or kind == "int64_t":
            found += [(member, "q") for member in names.split(", ")]
        elif kind == "double":
            found += [(member, "d") for member in names.split(", ")]
        elif kind in structs and length:
            found += [(f"{inner}_{index}", code) for index in range(int(length)) for inner, code in structs[kind]]
        elif kind in structs:
            found += structs[kind]
        else:
            raise ValueError(f"{PATH.name}: field {names} of struct {name} has the type {kind}, which is not 8 bytes")
    return found
