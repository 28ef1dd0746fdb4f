"""Fixtures with one tokenizer of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import Tokenizer
from tests.text import checkpoints

WRITERS = {
    "bert": lambda directory: checkpoints.write_bert(directory),
    "bert-cased-cleaned": lambda directory: checkpoints.write_bert(directory, lower=False, clean_up=True),
    "gpt2": lambda directory: checkpoints.write_byte_level(directory, "gpt2"),
    "roberta": lambda directory: checkpoints.write_byte_level(directory, "roberta"),
    "llama": checkpoints.write_llama,
    "sentencepiece-llama": lambda directory: checkpoints.write_sentencepiece_llama(directory),
    "sentencepiece-llama-legacy": lambda directory: checkpoints.write_sentencepiece_llama(directory, legacy=True),
    "xlm-roberta": lambda directory: checkpoints.write_xlm_roberta(directory),
    "camembert": lambda directory: checkpoints.write_xlm_roberta(directory, "Camembert"),
    "t5": checkpoints.write_t5,
    "pegasus": checkpoints.write_pegasus,
    "byt5": checkpoints.write_byt5,
    "plbart": checkpoints.write_plbart,
    "blenderbot-small": checkpoints.write_blenderbot_small,
    "marian": lambda directory: checkpoints.write_marian(directory),
    "marian-cleaned": lambda directory: checkpoints.write_marian(directory, clean_up=True),
}


@pytest.fixture(scope="session", params=WRITERS)
def tokenizer_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_directory: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_directory)
