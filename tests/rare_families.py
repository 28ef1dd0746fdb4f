"""Give the pytest mark `rare_family` to tests of model families that few people use.

Tests in `tests/families` mark themselves.

`make test` leaves out tests with the mark `rare_family`, `make test-families` runs only these, and CI includes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

ROOMS = ("parity", "invariance", "engine", "models")
"""Folders of `tests` in which tests of rare families get the mark."""
RARE_FILES = frozenset(
    {
        "test_falcon_alibi",
        "test_gpt_oss_mxfp4",
        "test_served_quantized_checkpoints",
        "test_sparse_encoder_decoders",
        "test_sparse_encoders",
    }
)
"""Test files in which every test gets the mark, because all test rare families or rare formats."""
RARE_IDS = re.compile(
    r"albert|apertus|arcee|bidirectional|bigbird|big_bird|big bird|biogpt|blenderbot|bloom|camembert|cohere|data2vec"
    r"|deepseek|electra|ernie|eurobert|exaone4|falcon|gemma\b|gemma3n|gemma4|glm|gpt[-_]bigcode|gpt[-_]oss"
    r"|gpt[-_ ]?neo|gptj|granite|helium|hunyuan|led\b|llama4|longformer|longt5|ministral3|mistral4"
    r"|mobilebert|convbert|modernbert[-_]decoder|megatron|mpt|mt5|nemotron|nomic|olmo|openai|opt\b|pegasus[-_]x|persimmon|phi\b|phimoe|plbart|rembert"
    r"|roberta-prelayernorm|roformer|seed[-_]oss|smollm3|squeezebert|stablelm|starcoder2|switch_transformers|t5gemma|ul2|umt5|xglm"
    r"|xlm-roberta-xl|lfm2-|lfm2_moe|lfm3|mamba2|qwen3_5-|qwen3_5_moe|qwen3_next"
    r"|afmoe|bamba|cwm|exaone|hy[-_]v3|hyperclovax|internlm3|iquestcoder|jais2|jina_bert|jina_embeddings_v5|lara[-_]mini|llama_bidirec|mellum|minicpm3|modernvbert"
    r"|mvp|ultrabert|vaultgemma|voyage|youtu|olmo_hybrid"
)
"""Matches the start of a test's parameter that names a rare family."""


def is_rare(item: pytest.Item) -> bool:
    """Whether a test checks a rare family, by its file, its first parameter, or its parameter `name` or `pair`."""
    if item.path.relative_to(Path(__file__).parent).parts[0] not in ROOMS:
        return False
    parameters = getattr(item, "callspec", None)
    named = [parameters.params.get(key) for key in ("name", "pair")] if parameters else []
    first = item.name.partition("[")[2].removesuffix("]")
    return item.path.stem in RARE_FILES or any(
        isinstance(value, str) and RARE_IDS.match(value) is not None for value in (first, *named)
    )


def in_turn(names: Iterable[str], values: Collection[str]) -> list[tuple[str, str]]:
    """Pairs of a family's name and a value: a rare family gets only one value, the next in turn, others get all values.

    For tests whose values, such as precisions or settings, do not depend on code of single families.
    """
    order = list(values)
    pairs = []
    for number, name in enumerate(names):
        chosen = [order[number % len(order)]] if RARE_IDS.match(name) else order
        pairs += [(name, value) for value in chosen]
    return pairs
