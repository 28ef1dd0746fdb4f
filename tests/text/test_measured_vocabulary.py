"""The vocabulary size that we read from `tokenizer.json` equals the size that the library reports."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models

from server.text.tokenizers.bounds import MAX_ENTRY
from server.text.tokenizers.components import check_tokenizer_json
from server.text.tokenizers.fast import FastTokenizer
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from server.text.tokens.tokenizer import TokenizerError

PLAIN = {f"w{index}": index for index in range(1234)}
CASES = {
    "plain": PLAIN,
    "quotes": {**PLAIN, '"': 1234, '":': 1235, "\\": 1236, '\\": 99999, "': 1237, "é": 1238},
    "gap": {**PLAIN, "far": 5000},
    "any order": dict(sorted(PLAIN.items())),
    "highest first": {"far": 5000, **PLAIN},
}


@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_size(name: str, indent: int | None, tmp_path) -> None:
    backend = Tokenizer(models.WordLevel(CASES[name], unk_token="w0"))
    content = json.dumps(json.loads(backend.to_str()), indent=indent, ensure_ascii=False).encode()
    size = check_tokenizer_json(content)
    assert size == max(CASES[name].values()) + 1
    backend.add_special_tokens(["<added>"])
    files = read_tokenizer_files(tmp_path)
    assert FastTokenizer(backend, files, size).vocab_size == FastTokenizer(backend, files).vocab_size


def test_a_long_entry_is_left_to_the_library(tmp_path) -> None:
    backend = Tokenizer(models.WordLevel({**PLAIN, "x" * (MAX_ENTRY + 1): 1234}, unk_token="w0"))
    assert check_tokenizer_json(backend.to_str().encode()) is None
    with pytest.raises(TokenizerError, match="characters in one entry"):
        FastTokenizer(backend, read_tokenizer_files(tmp_path))
