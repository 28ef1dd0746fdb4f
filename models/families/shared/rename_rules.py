"""The rules of one checkpoint layout for another one that only names the body differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weights.rules import Rule


def renamed(rules: Sequence[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """The same rules, with `new` where a pattern begins with `old`; both regular expressions, `new` without groups."""
    return tuple(
        replace(rule, pattern=new + rule.pattern.removeprefix(old)) if rule.pattern.startswith(old) else rule
        for rule in rules
    )
