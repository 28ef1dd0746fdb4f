"""Run the parity tests on the device that `tests.devices` selects, and mark those of rare families.

`make test` leaves tests with the mark `rare_family` out, and `make test-families` runs only them. CI runs both.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.devices import _exact_float32_on_one_thread, device

__all__ = ["_exact_float32_on_one_thread", "device"]

RARE_FILES = frozenset({"test_falcon_alibi", "test_sparse_encoder_decoders", "test_sparse_encoders"})
"""Files of rare families only."""
RARE_IDS = re.compile(
    r"albert|bigbird|big_bird|big bird|blenderbot|bloom|camembert|electra|falcon|gemma\b|gpt[-_ ]?neo|gptj|led\b"
    r"|longformer|longt5|mpt|mt5|nomic|olmo2|openai|opt\b|phi\b|smollm3|stablelm|starcoder2|ul2|umt5"
)
"""Beginnings of the parameters of tests of rare families."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            parameters = item.name.partition("[")[2].removesuffix("]")
            if item.path.stem in RARE_FILES or RARE_IDS.match(parameters):
                item.add_marker(pytest.mark.rare_family)
