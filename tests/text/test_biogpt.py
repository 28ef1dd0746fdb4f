"""The tokenizer of BioGPT equals transformers', which splits and joins words with sacremoses."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("sacremoses")

from transformers import AutoTokenizer, BioGptTokenizer

from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from tests.text import checkpoints
from tests.text.test_fsmt import TEXTS

MORE = [
    "COVID-19 is caused by SARS-CoV-2 (p < 0.05; n = 1,024).",
    "IL-2Rα, TNF-α & IFN-γ at 5 µg/mL, 37 °C",
    "a «quote» and “another” — with ‘dashes’ – and…",
    "\u201eGuten Tag\u201c \u00bbja\u00ab a\u0301 \u200b zero\u200bwidth \u00adsoft",
    "</s> in the middle </s>of<unk> a text <pad>",
    "\ttabs\nand\x1fcontrols\x07",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_biogpt(tmp_path_factory.mktemp("biogpt"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> BioGptTokenizer:
    return BioGptTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("offsets", [True, False])
def test_ids(tokenizer: Tokenizer, oracle: BioGptTokenizer, offsets: bool) -> None:
    texts = [*TEXTS, *MORE]
    for text, encoding in zip(texts, tokenizer.encode(texts, offsets=offsets), strict=True):
        assert encoding.ids == oracle(text).input_ids, text
        assert encoding.ids[0] == oracle.sep_token_id and encoding.special[0]
    bare = tokenizer.encode(texts, add_special_tokens=False, offsets=offsets)
    assert [encoding.ids for encoding in bare] == [oracle(text, add_special_tokens=False).input_ids for text in texts]


def test_pairs(tokenizer: Tokenizer, oracle: BioGptTokenizer) -> None:
    (encoding,) = tokenizer.encode(["The old sailor"], pairs=["sees it."])
    assert encoding.ids == oracle("The old sailor", "sees it.").input_ids


@pytest.mark.parametrize("skip", [True, False])
def test_decoding(tokenizer: Tokenizer, oracle: BioGptTokenizer, skip: bool) -> None:
    chooser = random.Random(3)
    for _ in range(100):
        ids = [chooser.randrange(len(oracle)) for _ in range(chooser.randrange(1, 40))]
        assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip), ids


def test_special_tokens(tokenizer: Tokenizer, oracle: BioGptTokenizer) -> None:
    assert tokenizer.special_ids == frozenset(oracle.all_special_ids)
    for role in ("bos", "eos", "pad", "unk", "sep"):
        assert getattr(tokenizer.special, role) == getattr(oracle, f"{role}_token_id"), role
    assert tokenizer.vocab_size == len(oracle)


def test_the_class_decides_over_tokenizer_json(directory: Path, tmp_path: Path) -> None:
    """A `tokenizer.json` changes nothing, because transformers ignores it for the class of BioGPT."""
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    checkpoints.write_llama(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    shutil.copy(directory / "config.json", tmp_path)
    text = "the old sailor's e-mails"
    expected = AutoTokenizer.from_pretrained(tmp_path)(text).input_ids
    assert load_tokenizer(tmp_path).encode([text])[0].ids == expected


def test_errors_name_the_file(tmp_path: Path) -> None:
    directory = checkpoints.write_biogpt(tmp_path)
    (directory / "vocab.json").unlink()
    with pytest.raises(TokenizerError, match=r"vocab\.json is missing"):
        load_tokenizer(directory)


def test_no_text_has_more_tokens_than_its_bound(tokenizer: Tokenizer) -> None:
    characters = "ab. !'1\n-é中😀\u0130\"`&|<>[]…—«»„“”’‘【〈，。％\u00a0(),%:;@#"
    draw = random.Random(3)
    texts = ["".join(draw.choices(characters, k=draw.randint(0, 40))) for _ in range(200)]
    for text, encoding in zip(texts, tokenizer.encode(texts, add_special_tokens=False, offsets=False), strict=True):
        assert len(encoding.ids) <= tokenizer.token_bound(text), ascii(text)
