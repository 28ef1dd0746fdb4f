"""Rules for a checkpoint layout that differs from another one only in prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weights.rules import Rule


def renamed(rules: Sequence[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """Replace the prefix `old` of patterns by `new`. Both are regular expressions; `new` has no groups."""
    return tuple(
        replace(rule, pattern=new + rule.pattern.removeprefix(old)) if rule.pattern.startswith(old) else rule
        for rule in rules
    )
