"""Settings and rules of selective state spaces (Mamba-2), which several families have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from models.config import ConfigError
from models.families.shared.fields import Fields
from weights.rules import Rename, Rule


def state_space_rules(theirs: str, ours: str) -> Sequence[Rule]:
    """Rules for the tensors of the state spaces.

    theirs: regular expression for the prefix of the tensor names, with a group for the layer's index.
    ours: prefix of the parameter names in the model.
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
    """Width of one head of a state space: `width / heads`.

    name: setting that determines the width of all heads, for error messages.
    width: width of all heads together. heads: number of heads.
    Raises ConfigError if the division has a remainder, or if `mamba_d_head` is neither the result nor `auto`.
    """
    if width % heads:
        raise ConfigError(f"{name!r}: the width {width} of the state space is not a multiple of mamba_n_heads {heads}")
    fields.refuse_unless("mamba_d_head", "auto", width // heads)
    return width // heads


def time_step_limits(fields: Fields) -> tuple[float, float]:
    """The least and largest time step, from `time_step_limit`; 0 and infinity without the setting.

    Raises ConfigError unless it is two numbers of at least 0 in ascending order. Infinity may be written as an object,
    as transformers does.
    """
    value = fields.raw("time_step_limit")
    if value is None:
        return 0.0, math.inf
    numbers = [_number(number) for number in value] if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
        raise ConfigError("'time_step_limit' must be two numbers of at least 0 in ascending order")
    return numbers[0], numbers[1]


def _number(value: Any) -> float:
    """A number in `config.json` as a float. An object that stands for infinity gives infinity, anything else NaN."""
    if value == {"__float__": "Infinity"}:
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
