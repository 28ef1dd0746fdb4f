"""Python and the compiled kernels agree on operations and structs. A kernel library of another version is refused."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from models.backends import choice, linear_weights
from models.backends.cpu import header, library
from models.backends.cpu.programs.traits import TRAITS
from models.checkpoint.loader import load_model
from server.engine.loading.load import LoadError
from server.engine.process import service
from server.engine.process.service import start
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.worker_messages import Configure
from tests.engine.tiny_checkpoints import DECODERS

needs_kernels = pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
TEXT = header.PATH.read_text()


@needs_kernels
@pytest.mark.parametrize("operation", library.OPERATIONS.values(), ids=lambda described: described.name)
def test_struct_sizes_equal_those_of_the_compiler(operation):
    """Each parameter struct has the same size in C++ and in Python. All fields have 8 bytes, so offsets agree too."""
    size = library.loaded().triptych_struct_bytes(operation.code)
    assert size == 8 * len(operation.fields) == len(operation.pack(*[0] * len(operation.fields)))


@needs_kernels
@pytest.mark.parametrize("source", ['const char* triptych_interface_hash() { return "other"; }', "int nothing;"])
def test_a_library_of_another_version_is_refused(tmp_path, source):
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler")
    (tmp_path / "stale.c").write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "stale.c", "-o", "stale.so"], cwd=tmp_path, check=True)
    with pytest.raises(library.StaleKernels, match=r"^[^\n]*another version of Triptych; install it again[^\n]*$"):
        library.open_library(tmp_path / "stale.so")


@needs_kernels
def test_the_matrix_unit_is_used_or_refused_where_the_processor_has_one():
    flags = Path("/proc/cpuinfo").read_text().split()
    uses, is_refused = library.choose_isa("v4_amx"), library.is_amx_refused()
    assert not (uses and is_refused)
    if {"amx_tile", "amx_bf16", "amx_int8"} <= set(flags):
        assert uses or is_refused


def test_a_refused_matrix_unit_is_logged(monkeypatch, caplog):
    def stop(*_):
        raise LoadError("no model")

    monkeypatch.setattr(choice, "is_amx_refused", lambda: True)
    monkeypatch.setattr(service, "_load_models", stop)
    with pytest.raises(LoadError):
        start(Configure(0, [], "cpu", EngineOptions()), lambda message: None)
    assert "does not let this process use the matrix unit (AMX)" in caplog.text


@needs_kernels
@pytest.mark.parametrize("machine, is_said", [("aarch64", True), ("x86_64", False)])
def test_generic_kernels_are_logged(monkeypatch, caplog, machine, is_said):
    def stop(*_):
        raise LoadError("no model")

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(service, "_load_models", stop)
    with pytest.raises(LoadError):
        start(Configure(0, [], "cpu", EngineOptions()), lambda message: None)
    assert (f"processor ({machine}) are generic" in caplog.text) is is_said


def test_a_stale_library_stops_the_server_with_one_line(monkeypatch):
    def stale():
        raise library.StaleKernels("the compiled kernels are of another version")

    monkeypatch.setattr(library, "load", stale)
    with pytest.raises(LoadError, match=r"^the compiled kernels are of another version$"):
        start(Configure(0, [], "cpu", EngineOptions()), lambda message: None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    double eps;", "    float eps;", "eps of struct Norm has the type float, which is not 8 bytes"),
        ("    int64_t stride;", "    int64_t (*stride)[3];", "cannot read"),
        ("X(rms_norm, Norm,", "X(rms_norm, Nothing,", "rms_norm has unknown parameters Nothing"),
    ],
)
def test_a_header_that_cannot_be_read_is_an_error(old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        header.read_operations(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantization_without_kernels_is_refused(saved, dtype, kind):
    """Loading with `--quantize` fails without kernels, because int8 would be 25 times slower than bfloat16."""
    architecture, config = DECODERS["llama"]
    directory = saved(config, architecture)
    with (
        choice.using("torch"),
        pytest.raises(choice.QuantizationUnavailable, match=rf"^--quantize {kind} needs a CPU[^\n]*$"),
    ):
        load_model(directory, dtype, torch.device("cpu"), quantization=kind)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(("device", "dtype"), [("cuda", torch.bfloat16), ("cpu", torch.float16)])
def test_quantization_on_other_devices_and_dtypes_is_refused(device, dtype, kind):
    with pytest.raises(choice.QuantizationUnavailable, match=r"cuda|float16"):
        linear_weights.packer(dtype, torch.device(device), kind)


def test_traits_are_those_of_the_parameters():
    """The traits of each operation fit its parameters: products have an epilogue, and the fields of traits exist."""
    operations = library.OPERATIONS
    assert TRAITS.keys() <= operations.keys()
    for name, operation in operations.items():
        fields, traits = set(operation.fields), operation.traits
        has_epilogue = fields >= {"activation", "multiplier", "residual", "out_stride"}
        assert has_epilogue == (traits.product_width is not None), name
        assert ("tasks" in fields and has_epilogue) == traits.of_experts, name
        used = {"weight", "columns", traits.product_width} if traits.product_width else set()
        used |= {"choices", "is_gated"} if traits.of_experts else set()
        used |= {"residual", "residual_stride"} if traits.adds_residual else set()
        assert used | set(traits.overwritten) <= fields, name
