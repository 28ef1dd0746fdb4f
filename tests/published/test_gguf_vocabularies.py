"""Published GGUF vocabularies give the token ids that llama.cpp's tests expect, which come from transformers."""

from __future__ import annotations

from pathlib import Path
from unicodedata import is_normalized

import pytest

from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import TokenizerError
from tests.published.conftest import found

SEPARATOR = "\n__ggml_vocab_test__\n"
EXPECTED = found("llama.cpp/ggml-vocab-*.gguf.inp")
UNTESTED = [path for path in found("llama.cpp/ggml-vocab-*.gguf") if not path.with_name(f"{path.name}.inp").exists()]
REFUSED = {"aquila": "pre-tokenizer", "baichuan": "", "gpt-neox": "", "nomic-bert-moe": ""}
"""Vocabularies without expected ids. Each has a part of its error message, which is empty if it loads."""


NORMALIZED = frozenset({"qwen35"})
"""Vocabularies for which transformers normalises texts to NFC, while llama.cpp does not."""


def name_of(path: Path) -> str:
    return path.name.removeprefix("ggml-vocab-").removesuffix(".inp").removesuffix(".gguf")


@pytest.mark.parametrize("path", EXPECTED, ids=map(name_of, EXPECTED))
def test_ids(path: Path) -> None:
    tokenizer = load_tokenizer(path.with_suffix(""))
    texts = path.read_text(encoding="utf-8").removesuffix(SEPARATOR).split(SEPARATOR)
    lines = path.with_suffix(".out").read_text().splitlines()
    expected = [[int(number) for number in line.split()] for line in lines]
    assert len(texts) == len(expected) > 30
    found_ids = [encoding.ids for encoding in tokenizer.encode(texts, add_special_tokens=False, offsets=False)]
    differing = {text: ids for text, *ids in zip(texts, found_ids, expected, strict=True) if ids[0] != ids[1]}
    if name_of(path) in NORMALIZED:
        assert {text for text in differing if is_normalized("NFC", text)} == set()
        return
    assert not differing


@pytest.mark.parametrize("path", UNTESTED, ids=map(name_of, UNTESTED))
def test_vocabularies_without_expected_ids_load_or_are_refused(path: Path) -> None:
    try:
        tokenizer = load_tokenizer(path)
    except TokenizerError as error:
        assert "\n" not in str(error) and REFUSED[name_of(path)] in str(error)
        return
    (encoding,) = tokenizer.encode(["Hello, world 123."], add_special_tokens=False, offsets=False)
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True).strip().lower() == "hello, world 123."
