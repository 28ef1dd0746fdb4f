"""Join the tensors that store one quantised matrix, and unpack layouts that several formats use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import gcd

import torch
from torch import Tensor

from weights.quantized_matrix import QuantizedMatrix
from weights.stored import Stored, StoredMatrix, StoredTensor

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Parts:
    """The tensors that store one quantised matrix, by the ending of their names.

    Methods raise ValueError, with the ending, for a tensor that is missing or not as required.

    name: name of the matrix in an unquantised checkpoint.
    """

    def __init__(self, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.name, self._tensors = name, tensors

    def __contains__(self, ending: str) -> bool:
        return ending in self._tensors

    def shape(self, ending: str, dimensions: int | None = None) -> tuple[int, ...]:
        """Shape of a tensor. dimensions: required number of dimensions, None for any."""
        if ending not in self._tensors:
            raise ValueError(f"{ending} is missing")
        shape = self._tensors[ending].shape
        if dimensions not in (None, len(shape)):
            raise ValueError(f"{ending} is {list(shape)}, not of {dimensions} dimensions")
        return shape

    def check(self, ending: str, dtypes: Sequence[torch.dtype], *shapes: Sequence[int]) -> None:
        """Raise ValueError unless the tensor has one of `dtypes` and one of `shapes`; without `shapes`, any shape."""
        found = self.shape(ending)
        dtype = self._tensors[ending].dtype
        if shapes and found not in {tuple(shape) for shape in shapes}:
            raise ValueError(f"{ending} is {list(found)}, not {' or '.join(str(list(shape)) for shape in shapes)}")
        if dtype not in dtypes:
            raise ValueError(f"{ending} has dtype {_name(dtype)}, not {' or '.join(map(_name, dtypes))}")

    def check_floats(self, ending: str, *shapes: Sequence[int]) -> None:
        """Raise ValueError unless the tensor is float32, float16 or bfloat16, in one of `shapes` if any are given."""
        self.check(ending, _FLOATS, *shapes)

    def nbytes(self, ending: str) -> int:
        """Size of a tensor in the file, in bytes."""
        self.shape(ending)
        return self._tensors[ending].nbytes

    def dtype(self, ending: str) -> torch.dtype | None:
        self.shape(ending)
        return self._tensors[ending].dtype

    def read(self, ending: str) -> Tensor:
        """Read a tensor, as a view of the memory-mapped file."""
        return self._tensors[ending].read()


Description = tuple[QuantizedMatrix, Callable[[], QuantizedMatrix]]
"""A matrix on the meta device (shapes without contents), and a function that reads the matrix."""


def combine(
    stored: Mapping[str, StoredTensor],
    role: Callable[[str, StoredTensor], tuple[str, str] | None],
    main: Sequence[str],
    describe: Callable[[Parts], Description],
    unused: Sequence[str] = (),
) -> dict[str, Stored]:
    """Replace the tensors of each quantised matrix by the matrix, in the order of the file.

    role: returns, for a tensor, the name of the matrix that it belongs to and the ending that identifies its part;
        None for a tensor that belongs to no matrix.
    main: endings that the name of a matrix's main part may have, for example the codes. If a matrix has no main part,
        its other parts are returned as plain tensors, and loading reports them as unexpected.
    describe: returns the description of a matrix. Raises ValueError if the parts do not fit together.
    unused: endings of the names of tensors that are left out.
    """
    roles = {name: role(name, tensor) for name, tensor in stored.items()}
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, matched in roles.items():
        if matched is not None:
            found.setdefault(matched[0], {})[matched[1]] = stored[name]
    combined: dict[str, Stored] = {}
    for name, tensor in stored.items():
        matched = roles[name]
        if name.endswith(tuple(unused)):
            continue
        if matched is None or not any(ending in found[matched[0]] for ending in main):
            combined[name] = tensor
        elif matched[1] in main:
            parts = found[matched[0]]
            size = sum(part.nbytes for part in parts.values())
            combined[matched[0]] = StoredMatrix(tensor.file, size, partial(describe, Parts(matched[0], parts)))
    return combined


def part_of_module(name: str, endings: Sequence[str]) -> tuple[str, str] | None:
    """Name of the matrix that a tensor belongs to, `<module>.weight`, and the last component of the tensor's name.

    None if this component is not one of `endings`.
    """
    module, _, ending = name.rpartition(".")
    return (f"{module}.weight", ending) if ending in endings else None


def groups_text(group: int) -> str:
    """Text for users about the size of groups. group: number of inputs that share a scale, -1 for all inputs."""
    return "one group a row" if group == -1 else f"groups of {group}"


def layout(
    shape: Sequence[int],
    bits: int,
    group: int,
    *,
    signed: bool = False,
    minimums: bool = False,
    table: Tensor | None = None,
) -> QuantizedMatrix:
    """A quantised matrix on the meta device: shapes and dtypes without contents.

    shape: [..., out, in]. bits: bits per code. group: number of inputs that share a scale.
    signed: whether codes are int8, not uint8. minimums: whether it has minimums. table: value of each code, or None.
    """
    groups = (*shape[:-1], -(-shape[-1] // group))
    scales = torch.empty(groups, dtype=torch.float32, device="meta")
    codes = torch.empty(tuple(shape), dtype=torch.int8 if signed else torch.uint8, device="meta")
    return QuantizedMatrix(codes, bits, group, scales, torch.empty_like(scales) if minimums else None, table)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Unpack numbers of `bits` bits that are stored one after the other, starting at the lowest bit of each word.

    A number may continue in the next word.

    words: [..., words], int32.
    Returns the first `count` numbers, [..., count], uint8.
    """
    per_period, words_per_period = 32 // gcd(32, bits), bits // gcd(32, bits)
    periods = -(-count // per_period)
    missing = periods * words_per_period - words.shape[-1]
    padded = torch.nn.functional.pad(words, (0, missing)) if missing > 0 else words
    grouped = padded[..., : periods * words_per_period].unflatten(-1, (periods, words_per_period))  # type: ignore[no-untyped-call]
    numbers = torch.empty((*words.shape[:-1], periods, per_period), dtype=torch.uint8)
    for index in range(per_period):
        word, offset = divmod(index * bits, 32)
        low = min(bits, 32 - offset)
        number = (grouped[..., word] >> offset) & ((1 << low) - 1)
        if low < bits:
            number |= (grouped[..., word + 1] & ((1 << (bits - low)) - 1)) << low
        numbers[..., index] = number
    return numbers.flatten(-2)[..., :count]


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers of `bits` bits one after the other, from the lowest bit of each word: the reverse of `unpack`.

    numbers: [rows, count], uint8, below `2 ** bits`; may be on the meta device.
    Returns [rows, words], int32.
    """
    rows, count = numbers.shape
    words = -(-count * bits // 32)
    if numbers.is_meta:
        return torch.empty((rows, words), dtype=torch.int32, device="meta")
    per_period, words_per_period = 32 // gcd(32, bits), bits // gcd(32, bits)
    periods = -(-count // per_period)
    padded = torch.nn.functional.pad(numbers, (0, periods * per_period - count)).view(rows, periods, per_period)
    packed = torch.zeros((rows, periods, words_per_period), dtype=torch.int32)
    for index in range(per_period):
        word, offset = divmod(index * bits, 32)
        number = padded[..., index].int()
        packed[..., word] |= number << offset
        if offset + bits > 32:
            packed[..., word + 1] |= number >> (32 - offset)
    return packed.flatten(1)[:, :words].contiguous()


def signed(codes: Tensor, bits: int) -> Tensor:
    """Subtract `2 ** (bits - 1)` from codes, so that they are symmetric to zero. codes: uint8. Returns int8."""
    middle = 1 << (bits - 1)
    return (codes ^ middle).view(torch.int8) if bits == 8 else codes.view(torch.int8) - middle


def groups_of_inputs(parts: Parts, ending: str, width: int, group: int) -> Tensor | None:
    """The group of each input, [width], int64, if groups do not consist of neighbouring inputs.

    ending: ending of the name of the tensor with the groups. width: number of inputs. group: inputs per group.
    Returns None if the tensor is absent, or assigns consecutive inputs to each group.
    Raises ValueError for a group that does not exist.
    """
    if ending not in parts:
        return None
    parts.check(ending, (torch.int32, torch.int64), (width,))
    index = parts.read(ending).long()
    if torch.equal(index, torch.arange(width) // group):
        return None
    if width and not 0 <= int(index.min()) <= int(index.max()) < -(-width // group):
        raise ValueError(f"{ending} has numbers that are no group")
    return index


def by_output(of_groups: Tensor, order: Tensor | None) -> Tensor:
    """Transpose scales or minimums, which are stored per group: [groups, out] to [out, groups].

    order: the group of each input, [in]; the result then has one number per input, [out, in]. None if groups consist of
        consecutive inputs.
    """
    return (of_groups if order is None else of_groups[order]).T.contiguous()


def scales_of_blocks(scales: Tensor, shape: Sequence[int], rows: int) -> Tensor:
    """Repeat scales that several output features share, so that each output feature has its own scales.

    scales: [..., blocks, groups], where a block is `rows` output features; or [..., blocks] for one group per row; or
        one scale for the whole matrix.
    shape: shape of the matrix, [..., out, in].
    Returns [..., out, groups], float32.
    """
    scales = scales.float()
    if scales.numel() == 1:
        return scales.reshape((1,) * len(shape)).expand((*shape[:-1], 1)).contiguous()
    if scales.dim() < len(shape):
        scales = scales.unsqueeze(-1)
    return scales.repeat_interleave(rows, -2)[..., : shape[-2], :].contiguous()


def _name(dtype: torch.dtype | None) -> str:
    return "an unknown one" if dtype is None else str(dtype).removeprefix("torch.")
