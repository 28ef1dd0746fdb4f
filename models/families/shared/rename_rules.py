"""Adapt rules to checkpoints whose tensor names differ only in their prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weights.rules import Rule


def renamed(rules: Sequence[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """Copy rules with the prefix `old` of their patterns replaced by `new`. Rules with another prefix are unchanged.

    old: text with which a pattern starts. new: regular expression without capturing groups.
    """
    return tuple(
        replace(rule, pattern=new + rule.pattern.removeprefix(old)) if rule.pattern.startswith(old) else rule
        for rule in rules
    )
