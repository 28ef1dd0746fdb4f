"""Selective state spaces (Mamba-2) in the checkpoints of several families."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from models.config import ConfigError
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule


def state_space_rules(theirs: str, ours: str) -> Sequence[Rule]:
    """Rules for the tensors of the state spaces.

    theirs: regular expression for the prefix of their names, with a group for the index of the layer.
    ours: prefix of our names.
    """
    return (
        Rename(theirs + r"in_proj\.(weight|bias)", ours + r"input.\2"),
        Rename(theirs + r"conv1d\.(weight|bias)", ours + r"convolution.\2"),
        Rename(theirs + "A_log", ours + "log_decay"),
        Rename(theirs + "dt_bias", ours + "time_step_bias"),
        Rename(theirs + "D", ours + "skip"),
        Rename(theirs + r"norm\.weight", ours + "norm.weight"),
        Rename(theirs + r"out_proj\.(weight|bias)", ours + r"output.\2"),
    )


def head_dim_of_state(fields: Fields, name: str, width: int, heads: int) -> int:
    """Width of one head of a state space. Raises ConfigError unless `mamba_d_head` is this width or `auto`.

    name: setting that decides the width of all heads, for error messages.
    """
    if width % heads:
        raise ConfigError(f"{name!r}: the width {width} of the state space is not a multiple of mamba_n_heads {heads}")
    fields.refuse_unless("mamba_d_head", "auto", width // heads)
    return width // heads


def time_step_limits(fields: Fields) -> tuple[float, float]:
    """Read `time_step_limit`: two numbers; transformers writes infinity as an object."""
    value = fields.raw("time_step_limit")
    if value is None:
        return 0.0, math.inf
    numbers = [_number(number) for number in value] if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise ConfigError("'time_step_limit' must be two numbers of at least 0 in ascending order")
    return numbers[0], numbers[1]


def _number(value: Any) -> float:
    """A number of `config.json`, or infinity; NaN for anything else."""
    if value == {"__float__": "Infinity"}:
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
