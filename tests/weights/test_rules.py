"""Weight rules: which names match, changes of layout, and errors for wrong shapes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from weights.rules import Drop, Rename, Rule, Slice, Split, Transpose, first_match, skip, split, transpose

TABLE = (
    Rename(r"wte\.weight|lm_head\.weight", "tokens"),
    Rule(r"h\.(\d+)\.attn\.c_attn\.weight", tuple(rf"\1.{part}" for part in "qkv"), (transpose, split())),
    Drop(r"h\.\d+\.attn\.bias"),
    Rename(r"h\.(\d+)\.(.*)", r"layer.\1.\2"),
)


def test_the_first_rule_that_matches_the_full_name_applies():
    assert first_match(TABLE, "h.12.attn.bias") == (TABLE[2], ())
    assert first_match(TABLE, "h.12.attn.bias.x") == (TABLE[3], ("layer.12.attn.bias.x",))
    assert first_match(TABLE, "lm_head.weight") == (TABLE[0], ("tokens",))
    assert first_match(TABLE, "xwte.weight") is None


def test_steps_of_a_rule_are_chained():
    stored = torch.arange(24.0).reshape(2, 12)
    query, key, value = TABLE[1].change(stored)
    assert (
        torch.equal(query, stored[:, :4].T)
        and torch.equal(key, stored[:, 4:8].T)
        and torch.equal(value, stored[:, 8:].T)
    )


def test_split_by_sizes_and_dimension():
    stored = torch.arange(12.0).reshape(2, 6)
    left, right = Split("x", ("a", "b"), dim=1, sizes=(4, 2)).change(stored)
    assert torch.equal(left, stored[:, :4]) and torch.equal(right, stored[:, 4:])


def test_split_concatenates_the_same_parts_of_all_groups():
    stored = torch.arange(12.0)  # Two heads, each with its query (2), key (2) and value (2).
    query, key, value = Split("x", ("q", "k", "v"), groups=2).change(stored)
    assert query.tolist() == [0, 1, 6, 7] and key.tolist() == [2, 3, 8, 9] and value.tolist() == [4, 5, 10, 11]


def test_transpose_and_slice():
    stored = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(Transpose("x", "y").change(stored)[0], stored.T)
    assert torch.equal(Slice("x", "y", start=2).change(stored)[0], stored[2:])
    assert torch.equal(Rule("x", ("y",), (skip(1, dim=1),)).change(stored)[0], stored[:, 1:])


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Split("x", ("a", "b", "c")), (4,)),
        (Split("x", ("a", "b"), sizes=(3, 3)), (4, 2)),
        (Split("x", ("a", "b"), dim=1), (4,)),
        (Transpose("x", "a"), (4, 2, 2)),
        (Slice("x", "a", start=5), (4, 2)),
        (Rule("x", ("a", "b")), (4,)),
    ],
)
def test_shapes_that_do_not_fit_are_named(rule: Rule, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=str(list(shape)).replace("[", r"\[")):
        rule.change(torch.empty(shape, device="meta"))


def test_name_with_an_unknown_group_is_refused():
    with pytest.raises(ValueError, match="group"):
        Rename(r"h\.\d+", r"layer.\1")


def test_rules_import_no_torch():
    code = "import sys, weights.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
