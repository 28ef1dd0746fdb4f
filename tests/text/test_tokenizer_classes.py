"""Checkpoints without `tokenizer.json` are read by the rules of their tokenizer class. Unknown classes are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from models.families import FAMILIES
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from server.text.tokens.tokenizer import TokenizerError
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS

WITHOUT_CLASS = {
    "squeezebert": "bert",
    "convbert": "bert",
    "data2vec-text": "roberta",
    "opt": "gpt2",
    "whisper": "gpt2",
}


def name_class(directory: Path, name: str) -> None:
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "tokenizer_class": name}))


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("gpt2", "Qwen2Tokenizer", "merges.txt without tokenizer.json"),
        ("gpt2", "OpenAIGPTTokenizer", "merges.txt without tokenizer.json"),
        ("gpt2", "FlaubertTokenizer", "merges.txt without tokenizer.json"),
        ("bert", "PhobertTokenizer", "vocab.txt without tokenizer.json"),
        ("bert", "BertJapaneseTokenizer", "MeCab"),
        ("bert", "RoFormerTokenizerFast", "jieba"),
        ("xlm_roberta", "BarthezTokenizer", "sentencepiece.bpe.model without tokenizer.json"),
    ],
)
def test_other_classes_are_refused_by_name(kind: str, name: str, reason: str, tmp_path: Path) -> None:
    if kind == "gpt2":
        checkpoints.write_byte_level(tmp_path, "gpt2")
    else:
        getattr(checkpoints, f"write_{kind}")(tmp_path)
    load_tokenizer(tmp_path)
    name_class(tmp_path, name)
    with pytest.raises(TokenizerError, match=reason) as error:
        load_tokenizer(tmp_path)
    assert name in str(error.value)


def test_files_that_name_no_class_are_refused(tmp_path: Path) -> None:
    checkpoints.write_byte_level(tmp_path, "gpt2")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TokenizerError, match="names no tokenizer_class"):
        load_tokenizer(tmp_path)


def test_words_of_another_program_are_refused_with_tokenizer_json_too(tmp_path: Path) -> None:
    """RoFormer splits Chinese words with jieba, which transformers adds after it has read `tokenizer.json`."""
    checkpoints.write_llama(tmp_path)
    name_class(tmp_path, "RoFormerTokenizer")
    with pytest.raises(TokenizerError, match="jieba"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model_type", WITHOUT_CLASS)
def test_the_model_type_stands_for_a_class_that_is_not_named(model_type: str, tmp_path: Path) -> None:
    kind = WITHOUT_CLASS[model_type]
    if kind == "bert":
        checkpoints.write_bert(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()
    else:
        checkpoints.write_byte_level(tmp_path, kind)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    expected = [encoding.ids for encoding in load_tokenizer(tmp_path).encode(CORPUS[:5])]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert [encoding.ids for encoding in load_tokenizer(tmp_path).encode(CORPUS[:5])] == expected


def test_the_kind_of_a_model_type_is_that_of_its_class_in_transformers(tmp_path: Path) -> None:
    def kind_of(**settings: str) -> str:
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return read_tokenizer_files(tmp_path).kind

    classes = {family: TOKENIZER_MAPPING_NAMES.get(family) for family in FAMILIES if family != "roformer"}
    # `TokenizersBackend` stands for any `tokenizer.json`.
    named = {family: name for family, name in classes.items() if name not in (None, "TokenizersBackend")}
    kinds = {family: (kind_of(model_type=family), kind_of(tokenizer_class=name)) for family, name in named.items()}
    assert {family: pair for family, pair in kinds.items() if pair[0] not in ("", pair[1])} == {}
    assert sum(bool(ours) for ours, _ in kinds.values()) > 25
