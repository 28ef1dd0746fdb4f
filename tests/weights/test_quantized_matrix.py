"""Quantised matrices: their arithmetic, and the changes of layout that weight rules make."""

import pytest
import torch
from torch import Tensor

from weights.quantized_matrix import QuantizedMatrix
from weights.rules import Rule, repeat_rows, skip, split, transpose

OUT, WIDTH = 12, 40


def matrix(group: int = 8, minimums: bool = True, table: bool = False, units: bool = False) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(group)
    groups = -(-WIDTH // group)
    return QuantizedMatrix(
        codes=torch.randint(0, 16, (OUT, WIDTH), generator=generator, dtype=torch.uint8),
        bits=4,
        group=group,
        scales=torch.rand(OUT, groups, generator=generator) + 0.1,
        minimums=torch.randn(OUT, groups, generator=generator) if minimums else None,
        table=torch.arange(16.0) ** 2 - 20 if table else None,
        units=torch.rand(OUT, 1, 2, generator=generator) if units else None,
    )


def reference(matrix: QuantizedMatrix) -> Tensor:
    """The weights by the documented formula, computed one value at a time in float64."""
    result = torch.empty(matrix.shape, dtype=torch.float64)
    for o in range(matrix.shape[0]):
        for i in range(matrix.shape[1]):
            code = int(matrix.codes[o, i])
            value = float(code if matrix.table is None else matrix.table[code])
            least = 0.0 if matrix.minimums is None else float(matrix.minimums[o, i // matrix.group])
            result[o, i] = float(matrix.scales[o, i // matrix.group]) * value - least
    return result


@pytest.mark.parametrize("group", [8, 40, 16], ids=["groups", "rows", "a shorter last group"])
@pytest.mark.parametrize(("minimums", "table"), [(True, False), (False, True), (True, True)])
def test_weights_are_those_of_the_formula(group: int, minimums: bool, table: bool) -> None:
    quantized = matrix(group, minimums, table)
    torch.testing.assert_close(quantized.dequantized(torch.float64), reference(quantized), rtol=1e-6, atol=1e-5)
    half = quantized.dequantized(torch.bfloat16)
    assert torch.equal(half, quantized.dequantized(torch.float32).bfloat16())


def test_signed_codes_are_their_values() -> None:
    quantized = QuantizedMatrix(torch.tensor([[-8, 7]], dtype=torch.int8), 4, 2, torch.tensor([[0.5]]))
    assert quantized.dequantized(torch.float32).tolist() == [[-4.0, 3.5]]


CHANGES = {
    "renamed": ((), 1),
    "three parts": ((split(),), 3),
    "parts of other sizes": ((split((6, 3, 3)),), 3),
    "parts of each head": ((split(3, groups=2),), 3),
    "a part of the inputs": ((split(2, dim=1),), 2),
    "without the first rows": ((skip(5),), 1),
    "repeated rows": ((repeat_rows(3),), 1),
    "without the first inputs": ((skip(3, dim=1),), 1),
    "transposed": ((transpose,), 1),
    "transposed and split": ((transpose, split(2)), 2),
}


@pytest.mark.parametrize("steps", CHANGES.values(), ids=CHANGES)
def test_rules_change_a_matrix_as_they_change_its_weights(steps: tuple[tuple, int]) -> None:
    rule = Rule("w", tuple(f"part {index}" for index in range(steps[1])), steps[0])
    quantized = matrix(units=True)
    expected = rule.change(quantized.dequantized(torch.float32))
    shapes = rule.change(quantized.to_meta())
    for part, plain, shape in zip(rule.change(quantized), expected, shapes, strict=True):
        dense = part.dequantized(torch.float32) if isinstance(part, QuantizedMatrix) else part
        assert torch.equal(dense, plain)
        assert type(shape) is type(part) and shape.shape == plain.shape and shape.is_meta


@pytest.mark.parametrize("name", ["renamed", "three parts", "parts of each head", "without the first rows"])
def test_a_change_along_the_outputs_keeps_the_codes(name: str) -> None:
    steps, count = CHANGES[name]
    parts = Rule("w", ("part",) * count, steps).change(matrix())
    assert all(isinstance(part, QuantizedMatrix) for part in parts)


@pytest.mark.parametrize(
    ("width", "is_quantized", "has_units"), [(4, False, False), (8, True, False), (20, False, False)]
)
def test_inputs_in_another_order(width: int, is_quantized: bool, has_units: bool) -> None:
    quantized = matrix(units=True)
    order = list(range(WIDTH // width))[::-1]
    expected = torch.unflatten(quantized.dequantized(torch.float32), 1, (-1, width))[:, order].flatten(1)
    changed = quantized.with_inputs(order, width)
    assert isinstance(changed, QuantizedMatrix) is is_quantized
    assert torch.equal(
        changed.dequantized(torch.float32) if isinstance(changed, QuantizedMatrix) else changed, expected
    )
    assert isinstance(changed, Tensor) or (changed.units is not None) is has_units
    described = quantized.to_meta().with_inputs(order, width)
    assert described.shape == changed.shape and isinstance(described, QuantizedMatrix) is is_quantized


def test_units_stay_with_runs_of_whole_blocks() -> None:
    units = torch.rand(OUT, 5, 1)
    quantized = QuantizedMatrix(torch.zeros(OUT, WIDTH, dtype=torch.int8), 4, 8, torch.ones(OUT, 5), units=units)
    changed = quantized.with_inputs([4, 0, 3, 1, 2], 8)
    assert isinstance(changed, QuantizedMatrix) and changed.units is not None
    assert torch.equal(changed.units, units[:, [4, 0, 3, 1, 2]])


def test_parts_concatenate_to_the_whole() -> None:
    quantized = matrix(units=True)
    parts = [part for part in quantized.split([5, 4, 3]) if isinstance(part, QuantizedMatrix)]
    assert QuantizedMatrix.concatenated(parts).equal(quantized)
    shape = QuantizedMatrix.concatenated([part.to_meta() for part in parts])
    assert shape.is_meta and shape.shape == quantized.shape and shape.has_layout_of(quantized)


def test_layouts_are_compared_without_contents() -> None:
    first = matrix()
    assert first.has_layout_of(matrix().to_meta()) and not first.equal(matrix(group=40))
    for other in (matrix(group=40), matrix(minimums=False), matrix(table=True), matrix(units=True)):
        assert not first.has_layout_of(other)
    assert matrix(table=True).has_layout_of(matrix(table=True))


def test_a_matrix_that_cannot_be_cut_is_refused_by_the_rule() -> None:
    with pytest.raises(ValueError, match=r"\[12, 40\] cannot be rearranged"):
        Rule("w", ("a", "b"), (split((6, 5)),)).change(matrix())


def test_numbers_that_are_not_finite_are_found() -> None:
    assert matrix(table=True).is_finite()
    for name in ("scales", "minimums"):
        damaged = matrix()
        getattr(damaged, name)[3, 1] = float("nan")
        assert not damaged.is_finite()
    codes = torch.zeros((2, 4), dtype=torch.uint8)
    of_table = QuantizedMatrix(codes, 2, 4, torch.ones(2, 1), table=torch.tensor([0.0, 1.0, 2.0, float("inf")]))
    assert of_table.is_finite()
    codes[1, 2] = 3
    assert not of_table.is_finite()


def test_memory_is_counted_and_copies_are_separate() -> None:
    quantized = matrix()
    assert quantized.nbytes == OUT * WIDTH + 2 * 4 * OUT * 5 and quantized.numel() == OUT * WIDTH
    copied = quantized.clone()
    copied.codes[0, 0] ^= 1
    assert not copied.equal(quantized)
