"""Layers run as a program give the bits that they give operation by operation, for every family and every precision.

Which families no program can do is said here, so that none becomes slow unseen.
"""

from __future__ import annotations

import pytest
import torch

from models.backends import interface as ops
from models.backends.cpu import linear as cpu_linear
from models.backends.cpu import operations as cpu_ops
from models.backends.cpu.lowering import program_of
from models.backends.cpu.recording import COUNT, Chosen, Given, NotRecordable, Recording
from models.loader import load_model
from models.scoring import Scoring
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.parity.checkpoints import save
from tests.parity.paged import Rows, chunked, encoder_batch, one_by_one

CPU = torch.device("cpu")
CASES = {"float32": (torch.float32, None), "bfloat16": (torch.bfloat16, None), "int8": (torch.float32, "int8")}
TEXTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [11, 3], [20, 21, 22, 23, 24, 25, 26], [30], [40, 41, 42]]
UNRECORDED = {
    "paged": {"mixtral", "qwen2-moe", "qwen3-moe"},
    "packed": {"bigbird-pegasus", "longt5", "longt5-local", "led"},
}
"""Mixtures of experts, whose rows part, and sparse attention."""
UNSCORED = {"gemma2"}
"""Logits that are capped."""


@pytest.fixture(autouse=True)
def kernels():
    assert cpu_ops.available(), "build the kernels: pip install -e ."


def loaded(tmp_path, name, case):
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ | ENCODERS)[name]
    save(tmp_path, config, architecture)
    return load_model(tmp_path, dtype, CPU, quantization=quantization).transformer


def recorded(stack, kind):
    programs = [program for (found, *_), program in stack._recorded._programs.items() if found == kind]
    return [program is not None for program in programs]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_decoding(tmp_path, name, case):
    model = loaded(tmp_path, name, case)
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    for feed in (chunked, one_by_one):
        found = feed(Rows(model, sources), TEXTS)
        with ops.using("cpu", programs=False):
            expected = feed(Rows(model, sources), TEXTS)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
    assert recorded(model.decoder, "paged") == [name not in UNRECORDED["paged"]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_scoring(tmp_path, name, case):
    """Logits and what stands out in them, of some tokens or all, are those that are made of the hidden states."""
    model = loaded(tmp_path, name, case)
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None
    for wanted in ({0: 1, 1: 2, 2: 0, 3: 1, 4: 3}, None):
        for count, with_log_sums in ((1, False), (5, True)):
            rows, memory = Rows(model, sources), torch.full((32, model.config.vocab_size), torch.nan)
            rows.expect(TEXTS)
            scoring = Scoring(lambda hidden, out: model.logits(hidden, out=out), memory, count, with_log_sums)
            hidden = torch.cat(rows.feed(dict(enumerate(TEXTS)), wanted, scoring))
            expected = model.logits(hidden)
            assert torch.equal(scoring.logits, expected) and scoring.logits.data_ptr() == memory.data_ptr()
            for part, other in zip(scoring.seen, ops.survey(expected, count, with_log_sums), strict=True):
                assert part is other is None or torch.equal(part, other)
    programs = [program for (*_, scores), program in model.decoder._recorded._programs.items() if scores]
    assert [program is not None for program in programs] == [name not in UNSCORED | UNRECORDED["paged"]] * 2


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*ENCODERS, *SEQ2SEQ])
@torch.inference_mode()
def test_encoding(tmp_path, name, case):
    model = loaded(tmp_path, name, case)
    batch = encoder_batch(TEXTS, CPU)
    found = model.encode(batch)
    with ops.using("cpu", programs=False):
        assert torch.equal(found, model.encode(batch))
    assert recorded(model.encoder, "packed") == [name not in UNRECORDED["packed"]]


def test_what_nobody_can_record():
    rows = Recording(torch.float32).input(8)
    assert rows.shape == (COUNT, 8)
    for wrong in (lambda: rows.float(), lambda: rows[3:], lambda: rows.view(4, 2), lambda: rows[:, ::2]):
        with pytest.raises((NotRecordable, TypeError)):
            wrong()


def test_scratch_is_shared_by_what_is_never_used_together():
    recording = Recording(torch.float32)
    x, weight = recording.input(64), torch.ones(64)
    for _ in range(10):
        x = ops.rms_norm(x, weight, 1e-6)
    program = program_of(x)
    assert len(program.names) == 10
    assert program.scratch_bytes == 2 * 64 * 4
    given = torch.randn(5, 64)
    found, expected = program.run(given, {}), given
    for _ in range(10):
        expected = ops.rms_norm(expected, weight, 1e-6)
    assert torch.equal(found, expected)


def test_a_residual_joins_the_product_before_it():
    recording = Recording(torch.float32)
    x = recording.input(32)
    product = cpu_linear.FloatLinear(torch.randn(32, 32), torch.randn(32))
    program = program_of(x + product(x))
    assert len(program.names) == 1
    given = torch.randn(3, 32)
    assert torch.equal(program.run(given, {}), given + product(given))
    other = Recording(torch.float32)
    y = other.input(32)
    joined = program_of(product(y, residual=y))
    assert torch.equal(joined.run(given, {}), given + product(given))
    # Of another width, or not the last: a sum of its own.
    y = ops.rms_norm(product(x), torch.ones(32), 1e-6)
    assert len(program_of(x + y).names) > len(program.names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_with_a_number(dtype):
    x = Recording(dtype).input(100)
    given = torch.randn(7, 100).to(dtype)
    assert torch.equal(program_of(x * 0.3).run(given, {}), given * 0.3)
    for wrong in (lambda: x[:, :50] * 0.3, lambda: x * x):
        with pytest.raises(NotRecordable):
            wrong()


def test_a_part_of_a_row_is_rounded_by_itself():
    recording = Recording(torch.float32)
    x = recording.input(32)
    whole, part = cpu_linear.Int8Linear(torch.randn(8, 32), None), cpu_linear.Int8Linear(torch.randn(8, 16), None)
    program = program_of(whole(x) + part(x[:, :16]))
    given = torch.randn(3, 32)
    assert torch.equal(program.run(given, {}), whole(given) + part(given[:, :16]))


def test_some_rows_go_on():
    recording = Recording(torch.float32)
    x, product = recording.input(32), cpu_linear.FloatLinear(torch.randn(48, 32), None)
    chosen = Chosen("rows", count=Given("num_rows"))
    y = ops.take_rows(product(x)[:, 16:], chosen)
    program = program_of(ops.rms_norm(y, torch.ones(32), 1e-6))
    given = torch.randn(7, 32)
    for index in (torch.tensor([6, 1, 1]), torch.tensor([], dtype=torch.int64)):
        found = program.run(given, {"rows": index.data_ptr(), "num_rows": len(index)})
        assert torch.equal(found, ops.rms_norm(product(given)[index, 16:], torch.ones(32), 1e-6))
    with pytest.raises(NotRecordable):
        y.view(COUNT, 4, 8)
    with pytest.raises(NotRecordable):
        recording.add(x, y)
