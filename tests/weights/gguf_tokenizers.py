"""Describe the tokenizer of a checkpoint in a GGUF file, as the converter of llama.cpp does."""

from __future__ import annotations

import json
from pathlib import Path

import gguf


def add_bpe_tokenizer(
    writer: gguf.GGUFWriter,
    directory: Path,
    bos_token_id: int,
    eos_token_id: int,
    add_bos: bool = False,
    add_eos: bool = False,
) -> None:
    """Add a tokenizer of byte-level BPE that splits texts like GPT-2.

    directory: has `tokenizer.json`. Its added tokens are control tokens.
    add_bos, add_eos: whether each text begins with the first token, and ends with the second one.
    """
    content = json.loads((directory / "tokenizer.json").read_text())
    ids, special = content["model"]["vocab"], {token["id"] for token in content["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(ids, key=ids.get))
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(ids))])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]])
    writer.add_bos_token_id(bos_token_id)
    writer.add_eos_token_id(eos_token_id)
    writer.add_add_bos_token(add_bos)
    writer.add_add_eos_token(add_eos)
