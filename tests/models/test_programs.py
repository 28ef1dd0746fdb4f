"""Layers that run as a program have the same bits as eager layers, for every family and precision.

A rare family is tested with only one precision. `NOT_TRACED` lists the test models that cannot run as a program. For
all others, a fallback to eager layers fails the test.
"""

from __future__ import annotations

import pytest
import torch

from models.backends import choice
from models.backends.choice import backend
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu.backend import CPU
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.lowering import lower
from models.backends.cpu.programs.symbol import NotTraceable
from models.backends.cpu.programs.trace import Trace
from models.backends.logits import LogitsRequest
from models.backends.torch.backend import TORCH
from models.checkpoint.loader import load_model
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, HYBRIDS, SEQ2SEQ
from tests.parity.paged import Rows, chunked, encoder_batch, one_by_one
from tests.rare_families import in_turn

DEVICE = torch.device("cpu")
CASES = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.float32, "int8"),
    "int4": (torch.float32, "int4"),
}
TEXTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [11, 3], [20, 21, 22, 23, 24, 25, 26], [30], [40, 41, 42]]
NOT_TRACED = {
    "paged": {"deepseek-v3", "llama4"},
    "ragged": {"bigbird-pegasus", "longt5", "longt5-local", "led", "pegasus_x", "switch_transformers"},
}
"""Test models that cannot run as a program, by kind of step.

They have latent attention, experts with weighted inputs or a capacity, sparse attention, or global vectors."""

pytestmark = pytest.mark.usefixtures("kernels")


def loaded(saved, name, case):
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ | ENCODERS)[name]
    return load_model(saved(config, architecture), dtype, DEVICE, quantization=quantization).transformer


def has_programs(model, stack, kind):
    """For the steps of a kind: (all_rows, with_logits) → whether the step ran as a program.

    all_rows: whether the step computed all rows of the last layer. with_logits: whether it computed logits.
    """
    programs = model._executors[stack]._programs.items()
    return {(key.all_rows, key.with_logits): found is not None for key, found in programs if key.kind == kind}


@pytest.mark.parametrize("name, case", in_turn([*SEQ2SEQ, *DECODERS], CASES))
@torch.inference_mode()
def test_decoding(saved, name, case):
    model = loaded(saved, name, case)
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    for feed in (chunked, one_by_one):
        found = feed(Rows(model, sources), TEXTS)
        with choice.using("cpu", programs=False):
            expected = feed(Rows(model, sources), TEXTS)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
    assert has_programs(model, model.decoder, "paged") == {(True, False): name not in NOT_TRACED["paged"]}


@pytest.mark.parametrize("name, case", in_turn([*DECODERS, *SEQ2SEQ], CASES))
@torch.inference_mode()
def test_logits(saved, name, case):
    """Logits and top-k that a program computes, for some or all tokens, equal those computed from hidden states."""
    model = loaded(saved, name, case)
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    memory = set()
    for output_lens in ({0: 1, 1: 2, 2: 0, 3: 1, 4: 3}, None):
        for k, with_logsumexp in ((1, False), (5, True)):
            rows = Rows(model, sources)
            rows.expect(TEXTS)
            if name in HYBRIDS:
                # Prompts of these models run eagerly; a program runs steps with one generated token per row.
                rows.feed(dict(enumerate(TEXTS)))
                lens = None if output_lens is None else {0: 1, 1: 1, 2: 0, 3: 1, 4: 1}
                output = rows.decode({row: [7 + row] for row in range(5)}, lens, LogitsRequest(k, with_logsumexp))
            else:
                output = rows.decode(dict(enumerate(TEXTS)), output_lens, LogitsRequest(k, with_logsumexp))
            expected = model.logits(output.hidden)
            assert torch.equal(output.logits, expected)
            memory.add(output.logits.data_ptr())
            for part, other in zip(
                output.top_k, backend(expected).logits_top_k(expected, k, with_logsumexp), strict=True
            ):
                assert part is other is None or torch.equal(part, other)
            logits, top_k = model.logits_top_k(output.hidden, LogitsRequest(k, with_logsumexp))
            assert torch.equal(logits, expected) and torch.equal(top_k.ids, output.top_k.ids)
            memory.add(logits.data_ptr())
    assert len(memory) == 1
    is_traced = name not in NOT_TRACED["paged"]
    expected = {(False, True): is_traced, (True, True): is_traced}
    if not is_traced:
        expected |= {(False, False): False, (True, False): False}
    assert has_programs(model, model.decoder, "paged") == expected


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*ENCODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_encoding(saved, name, case):
    model = loaded(saved, name, case)
    batch = encoder_batch(TEXTS, DEVICE)
    found = model.encode(batch)
    with choice.using("cpu", programs=False):
        assert torch.equal(found, model.encode(batch))
    assert has_programs(model, model.encoder, "ragged") == {(True, False): name not in NOT_TRACED["ragged"]}


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("tokens", [[5, 6, -1], [1 << 40, 5]])
@torch.inference_mode()
def test_a_token_outside_the_vocabulary_is_an_error_and_changes_no_cache(saved, name, tokens):
    model = loaded(saved, name, "float32")
    rows = Rows(model)
    before = [keys.clone() for keys in rows.pool.cache.keys]
    with pytest.raises(IndexError):
        rows.feed({0: tokens})
    assert all(torch.equal(keys, other) for keys, other in zip(rows.pool.cache.keys, before, strict=True))


def input_of(dtype, width):
    return Trace().input(inputs.hidden(dtype, width))


def run(program, x, others=()):
    return program.run(len(x), {inputs.hidden(x.dtype, x.shape[1]): x.data_ptr(), **dict(others)})


def test_operations_that_cannot_be_traced():
    rows = input_of(torch.float32, 8)
    assert rows.shape[1:] == (8,) and rows.shape[0] is rows.trace.rows
    for wrong in (lambda: rows.float(), lambda: rows[3:], lambda: rows.view(4, 2), lambda: rows[:, ::2]):
        with pytest.raises(NotTraceable):
            wrong()


def test_scratch_memory_is_reused():
    x, weight = input_of(torch.float32, 64), torch.ones(64)
    for _ in range(10):
        x = backend(x).rms_norm(x, weight, 1e-6)
    program = lower(x)
    assert len(program.names) == 10
    assert program.scratch_bytes == 2 * 64 * 4
    data = torch.randn(5, 64)
    found, expected = run(program, data), data
    for _ in range(10):
        expected = backend(expected).rms_norm(expected, weight, 1e-6)
    assert torch.equal(found, expected)


def test_products_write_over_operands_that_are_not_read_again():
    torch.manual_seed(0)
    up, gate, down = (cpu_linear.FloatWeight(torch.randn(64, 64), None) for _ in range(3))
    rows, data = input_of(torch.float32, 64), torch.randn(5, 64)

    def gated(x):
        x = backend(x).rms_norm(x, torch.ones(64), 1e-6)
        return x + down.multiply(gate.multiply(x, "silu", multiplier=up.multiply(x)))

    program = lower(gated(gated(rows)))
    # The result of `gate` overwrites the result of `up`, and the result of `down` overwrites x.
    assert program.scratch_bytes == 2 * 64 * 4
    assert torch.equal(run(program, data), gated(gated(data)))


def norm(x):
    return backend(x).rms_norm(x, torch.ones(x.shape[-1]), 1e-6)


OTHER_USES = {
    "product": lambda x, square, wide: x + square.multiply(x),
    "product and factor": lambda x, square, wide: square.multiply(x, multiplier=x),
    "later sum": lambda x, square, wide: x + square.multiply(square.multiply(norm(x), multiplier=x)),
    "later norm": lambda x, square, wide: norm(square.multiply(norm(x), multiplier=x)) + norm(x),
    "part of a row": lambda x, square, wide: square.multiply(norm(x), multiplier=wide.multiply(x)[:, 64:]),
}
"""Uses of a tensor x that a product must not overwrite: x is read later, or its layout differs from the result's."""


@pytest.mark.parametrize("use", OTHER_USES.values(), ids=OTHER_USES)
def test_products_do_not_write_over_other_operands(use):
    torch.manual_seed(0)
    square, wide = (cpu_linear.FloatWeight(torch.randn(columns, 64), None) for columns in (64, 128))
    rows, data = input_of(torch.float32, 64), torch.randn(5, 64)

    def compute(x):
        return norm(use(norm(x), square, wide))

    assert torch.equal(run(lower(compute(rows)), data), compute(data))


def test_a_residual_is_fused_into_the_product_before_it():
    x = input_of(torch.float32, 32)
    weight = cpu_linear.FloatWeight(torch.randn(32, 32), torch.randn(32))
    program = lower(x + weight.multiply(x))
    assert len(program.names) == 1
    data = torch.randn(3, 32)
    assert torch.equal(run(program, data), data + weight.multiply(data))
    # A sum after a norm cannot be fused, so it is a separate operation.
    product = weight.multiply(x)
    y = backend(product).rms_norm(product, torch.ones(32), 1e-6)
    assert len(lower(x + y).names) > len(program.names)


@pytest.mark.parametrize("part", [lambda y: y, lambda y: y[:, 8:], lambda y: y.view(y.shape[0], 4, 8)])
def test_a_product_is_not_read_after_a_residual_was_fused_into_it(part):
    x = input_of(torch.float32, 32)
    product = cpu_linear.FloatWeight(torch.randn(32, 32), None).multiply(x)
    before, total = part(product), x + product
    norm(part(total))
    with pytest.raises(NotTraceable):
        norm(before)
    with pytest.raises(NotTraceable):
        norm(part(product))
    assert lower(total).names and total.trace.refusal is not None
    with pytest.raises(NotTraceable):
        lower(product)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_residual_and_norm(dtype):
    weight, norm, bias = cpu_linear.FloatWeight(torch.randn(32, 32).to(dtype), None), *torch.randn(2, 32).to(dtype)
    data = torch.randn(3, 32).to(dtype)
    for name, arguments in (
        ("add_rms_norm", (norm, 1e-6)),
        ("add_rms_norm_from_one", (norm, 1e-6)),
        ("add_layer_norm", (norm, bias, 1e-6)),
    ):
        add_norm = getattr(CPU, name)
        x = input_of(dtype, 32)
        total, normed = add_norm(x, weight.multiply(x), *arguments)
        program = lower(total + normed)
        assert len(program.names) == 3
        total, normed = add_norm(data, weight.multiply(data), *arguments)
        assert torch.equal(run(program, data), total + normed)
        with choice.using("torch"):
            expected = getattr(TORCH, name)(data, weight.multiply(data), *arguments)
        torch.testing.assert_close((total, normed), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_multiplication_by_a_number(dtype):
    x = input_of(dtype, 100)
    data = torch.randn(7, 100).to(dtype)
    assert torch.equal(run(lower(x * 0.3), data), data * 0.3)
    for wrong in (lambda: x[:, :50] * 0.3, lambda: x * x):
        with pytest.raises(NotTraceable):
            wrong()


def test_a_slice_of_a_row_is_quantized_with_its_own_scale():
    x = input_of(torch.float32, 32)
    whole, part = cpu_linear.Int8Weight(torch.randn(8, 32), None), cpu_linear.Int8Weight(torch.randn(8, 16), None)
    program = lower(whole.multiply(x) + part.multiply(x[:, :16]))
    data = torch.randn(3, 32)
    assert torch.equal(run(program, data), whole.multiply(data) + part.multiply(data[:, :16]))


def test_a_program_continues_with_selected_rows():
    trace = Trace()
    x, weight = trace.input(inputs.hidden(torch.float32, 32)), cpu_linear.FloatWeight(torch.randn(48, 32), None)
    index = trace.input(inputs.OUTPUT_ROWS, trace.count(inputs.NUM_OUTPUT_ROWS))
    y = backend(weight.multiply(x)[:, 16:]).take_rows(weight.multiply(x)[:, 16:], index)
    program = lower(backend(y).rms_norm(y, torch.ones(32), 1e-6))
    data = torch.randn(7, 32)
    for rows in (torch.tensor([6, 1, 1]), torch.tensor([], dtype=torch.int64)):
        found = run(program, data, {inputs.OUTPUT_ROWS: rows.data_ptr(), inputs.NUM_OUTPUT_ROWS: len(rows)})
        assert torch.equal(
            found,
            backend(weight.multiply(data)[rows, 16:]).rms_norm(weight.multiply(data)[rows, 16:], torch.ones(32), 1e-6),
        )
    with pytest.raises(NotTraceable):
        y.view(trace.rows, 4, 8)
    with pytest.raises(NotTraceable):
        x + y
