"""Check tables of positions in a checkpoint. The model computes such tables instead of reading them.

Marian, FSMT, Pegasus, M2M100 and XGLM have sinusoidal embeddings in their files; RoFormer and GPT-J have the sines and
cosines of their rotations. If a table in a file differs from the computed table, the server would compute wrong results
for this model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.layers.embeddings import SinusoidalTable
from models.layers.positions import inverse_frequencies
from models.transformer import Transformer
from weights.errors import WeightsError, shown
from weights.rules import Rule, first_match
from weights.stored import Stored, StoredTensor

_TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest allowed difference between a value in the file and the computed value, by dtype of the table. All values are
from -1 to 1."""
_FLOAT32_TOLERANCE = 1e-3
_ANGLE_ERROR = 2e-7
"""Largest relative error of an angle that is computed in float32. Published tables have angles of this precision."""


def check_constant_tables(transformer: Transformer, rules: Sequence[Rule], stored: Mapping[str, Stored]) -> None:
    """Raise WeightsError for a table of positions that differs from the computed table. The message names the tensor.

    A table may have more or fewer rows than the model has positions; the rows that both have are compared.
    """
    for name, tensor in stored.items():
        match = first_match(rules, name)
        table = "" if match is None else match[0].constant_of(name)
        if not table or not isinstance(tensor, StoredTensor):
            continue
        first, width = _place(transformer, table)
        if len(tensor.shape) != 2 or tensor.shape[1] != width:
            raise WeightsError(f"{shown(name, 160)} is {list(tensor.shape)}, not a table of positions of width {width}")
        found = tensor.read()[first:].float()
        expected = _rows(transformer, table, len(found))
        found = found[: len(expected)]
        allowed = _TOLERANCE.get(tensor.dtype or torch.float32, _FLOAT32_TOLERANCE)
        allowed += _ANGLE_ERROR * (first + len(expected))
        difference = (found - expected).abs().amax().item() if found.numel() else 0.0
        if not difference <= allowed:
            raise WeightsError(
                f"{shown(name, 160)} differs by {difference:.2g} from the positions that this architecture computes, "
                "so the checkpoint is of another architecture"
            )


def _place(transformer: Transformer, table: str) -> tuple[int, int]:
    """Index of the row in the file's table that equals row 0 of the computed table, and the width of both tables."""
    computed = _sinusoids(transformer, table)
    return (
        (0, 2 * len(_frequencies(transformer, table)))
        if computed is None
        else (
            computed.first,
            computed.table.shape[1],
        )
    )


def _rows(transformer: Transformer, table: str, count: int) -> Tensor:
    """The first rows of the computed table, at most `count` of them: [rows, width], float32."""
    computed = _sinusoids(transformer, table)
    if computed is not None:
        return computed.table[:count].float()
    rows = min(count, transformer.config.max_positions or count)
    angles = torch.arange(rows).float()[:, None] * _frequencies(transformer, table)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _sinusoids(transformer: Transformer, table: str) -> SinusoidalTable | None:
    """The module with the sinusoidal embeddings; None for the table of a rotation.

    table: name in the model, such as `encoder.embedding.positions` or `encoder.rotation`.
    """
    if table.endswith(".rotation"):
        return None
    module = transformer.get_submodule(table)
    assert isinstance(module, SinusoidalTable), f"{table} is not computed"
    return module


def _frequencies(transformer: Transformer, table: str) -> Tensor:
    """The rotary frequencies of a stack in which all layers have the same rotation.

    table: name such as `encoder.rotation`.
    """
    stack = transformer.get_submodule(table.removesuffix(".rotation"))
    (rope,) = stack.config.ropes  # type: ignore[union-attr, misc]
    return inverse_frequencies(rope)
