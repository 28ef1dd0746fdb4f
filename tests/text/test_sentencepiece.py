"""Tokenizers that have only a SentencePiece file give the ids of the SentencePiece library for this file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece

from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.protobuf import protobuf_fields
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from tests.text.checkpoints import CORPUS, TORTURE, train_sentencepiece

PUBLISHED = Path(__file__).parents[3] / "shared/published"
SPECIAL = ("<s>", "</s>", "<unk>")
SPACES = [" Hello", "  Hello", "a  b", " ", "   ", "▁", " ▁ a", "Hello ", "Hello  ", "\n\n x", "\u3000a \u00a0 b\r\nc"]
SYMBOLS = ["a<tool>b", " <tool> b <tool>", "<tool>", "<tool", "x<tool><t>y", "11 12  112", "ab.c ab."]
COMBINED = "\u0323\u0307"
"""Two combining accents. The `tokenizers` library drops one of them when it normalises a letter with both."""


def texts() -> list[str]:
    plain = [*TORTURE, *CORPUS[:10], *SPACES, *SYMBOLS]
    return [text for text in plain if COMBINED not in text and not any(token in text for token in SPECIAL)]


def train(directory: Path, legacy: bool = True, config: dict | None = None, **settings: object) -> Path:
    directory.mkdir(exist_ok=True)
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "vocab_size": 400}
    train_sentencepiece(directory / "tokenizer", CORPUS, **ids | settings)
    (directory / "tokenizer.vocab").unlink()
    stated = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, **(config or {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    return directory


def processor(directory: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))


def check(ours: Tokenizer, oracle: sentencepiece.SentencePieceProcessor, compared: Sequence[str]) -> None:
    for text in compared:
        (encoding,) = ours.encode([text])
        assert list(encoding.ids) == oracle.encode(text), text
        known = [index for index in encoding.ids if index != oracle.unk_id()]  # the library decodes it as " ⁇ "
        assert ours.decode(known) == oracle.decode(known), text
        stream = ours.stream()
        assert "".join(map(stream.push, known)) + stream.finish() == oracle.decode(known), text


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "new"])
@pytest.mark.parametrize("trim", [True, False], ids=["trim", "keep"])
@pytest.mark.parametrize("prefix", [True, False], ids=["prefix", "no-prefix"])
@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
        {"model_type": "bpe", "user_defined_symbols": ["<tool>", "<t>", "ab.", "12"]},
        {"model_type": "unigram", "byte_fallback": True, "user_defined_symbols": ["<tool>", "<t>", "ab.", "12"]},
        {"model_type": "char", "normalization_rule_name": "nfkc_cf"},
    ],
    ids=["bpe", "symbols", "unigram", "char"],
)
def test_ids_and_texts_equal_the_library(tmp_path: Path, settings: dict, prefix: bool, trim: bool, legacy: bool):
    directory = train(tmp_path, legacy, **settings, add_dummy_prefix=prefix, remove_extra_whitespaces=trim)
    check(load_tokenizer(directory), processor(directory), texts())


@pytest.mark.parametrize("named", ["class", "model_type"])
def test_gemma(tmp_path: Path, named: str):
    """Byte-pair merges, byte fallback, spaces and line ends as symbols, no space before a text; `<bos>` is first."""
    symbols = ["<start_of_turn>", "<tool>", "<t>", "\n", "\n\n", "▁▁", "▁▁▁", "\t\t", "<table>"]
    directory = train(
        tmp_path,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=symbols,
        **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"},
    )
    stated = {"tokenizer_class": "GemmaTokenizer"} if named == "class" else {}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    (directory / "config.json").write_text('{"model_type": "gemma3_text"}')
    ours, oracle = load_tokenizer(directory), processor(directory)
    more = ["a\n\n\nb", "    four", "<table>\t\tx<start_of_turn>user\n hi"]
    for text in [*texts(), *more]:
        (encoding,) = ours.encode([text])
        assert list(encoding.ids) == [2, *oracle.encode(text)], text
        known = [index for index in encoding.ids[1:] if index != oracle.unk_id()]
        assert ours.decode(known) == oracle.decode(known), text
    assert (ours.special.bos, ours.special.eos, ours.special.pad, ours.special.unk) == (2, 1, 0, 3)


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "new"])
def test_text_after_a_special_token(tmp_path: Path, legacy: bool):
    """With `legacy: true`, text after a special token is encoded like a new text, otherwise as a continuation."""
    settings = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}
    directory = train(tmp_path, legacy, {"add_bos_token": True}, user_defined_symbols=["<tool>"], **settings)
    ours, oracle = load_tokenizer(directory), processor(directory)
    ours_ids = [list(encoding.ids) for encoding in ours.encode(["the old</s> sailor<tool>x<s>y", "</s>frog"])]
    if legacy:
        sections = [oracle.encode(part) for part in ("the old", " sailor<tool>x", "y", "frog")]
        assert ours_ids == [[1, *sections[0], 2, *sections[1], 1, *sections[2]], [1, 2, *sections[3]]]
    else:
        continued = [oracle.encode(f"<tool>{part}")[2:] for part in (" sailor<tool>x", "y", "frog")]
        assert ours_ids == [[1, *oracle.encode("the old"), 2, *continued[0], 1, *continued[1]], [1, 2, *continued[2]]]


def test_prefix_space_of_the_configuration_turns_the_space_off(tmp_path: Path):
    settings = {"model_type": "bpe", "remove_extra_whitespaces": False, "byte_fallback": True}
    directory = train(tmp_path, config={"add_prefix_space": False}, **settings)
    content = (directory / "tokenizer.model").read_bytes()
    without = content + b"\x1a\x02\x18\x00"  # a later part of the field `normalizer_spec`: add_dummy_prefix is false
    oracle = sentencepiece.SentencePieceProcessor(model_proto=without)
    for text in texts():
        (encoding,) = load_tokenizer(directory).encode([text])
        assert list(encoding.ids) == oracle.encode(text), text


def test_reserved_pieces_get_the_names_of_the_configuration(tmp_path: Path):
    directory = train(tmp_path, model_type="bpe", byte_fallback=True, user_defined_symbols=["<reserved>"])
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"3": {"content": "<|turn|>", "special": True, "normalized": True}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(directory)
    (encoding,) = tokenizer.encode(["the<|turn|>old"])
    assert encoding.ids.count(3) == 1 and tokenizer.id_to_token(3) == "<|turn|>" and 3 in tokenizer.special_ids


_AFTER_THREE = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
_BERT_PIECES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"}
KINDS = {
    "T5": ("spiece", _T5, lambda index: index),
    "Pegasus": ("spiece", _T5, lambda index: index + 103),
    "XLMRoberta": ("sentencepiece.bpe", _AFTER_THREE, lambda index: index + 1 if index else 3),
    "Camembert": ("sentencepiece.bpe", _AFTER_THREE, lambda index: index + 4 if index else 3),
    "MBart": ("sentencepiece.bpe", _AFTER_THREE, lambda index: index + 1 if index else 3),
    "MBart50": ("sentencepiece.bpe", _AFTER_THREE, lambda index: index + 1 if index else 3),
    "DebertaV2": ("spm", {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **_BERT_PIECES}, lambda index: index),
    "Albert": ("spiece", _ALBERT, lambda index: index),
    "BigBird": ("spiece", {**_ALBERT, "bos_id": 2, "eos_id": 3}, lambda index: index),
}
"""By class: name of the file, ids given to the training, and a function from a piece's index to its token id."""


def write_kind(directory: Path, kind: str, **settings: object) -> sentencepiece.SentencePieceProcessor:
    """Train a SentencePiece model, and write it with the settings of a tokenizer class from `KINDS`."""
    stem, ids, _ = KINDS[kind]
    train_sentencepiece(directory / stem, CORPUS, **{"vocab_size": 400, **ids, **settings})
    stated = {"tokenizer_class": f"{kind}Tokenizer"}
    stated |= {"do_lower_case": False, "keep_accents": True} if kind == "Albert" else {}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{stem}.model"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"byte_fallback": True, "vocab_size": 520},
        {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    ],
    ids=["no-prefix", "keep", "bytes", "as-is"],
)
def test_other_classes_follow_the_settings_of_the_file(tmp_path: Path, kind: str, settings: dict):
    oracle, to = write_kind(tmp_path, kind, **settings), KINDS[kind][2]
    ours = load_tokenizer(tmp_path)
    for text in (text for text in texts() if "<extra_id_" not in text):
        (encoding,) = ours.encode([text], add_special_tokens=False)
        assert list(encoding.ids) == [to(index) for index in oracle.encode(text)], text
        known = [index for index in encoding.ids if index not in (to(oracle.unk_id()), to(0), 3)]
        if len(known) == len(encoding.ids):
            assert ours.decode(known) == oracle.decode(oracle.encode(text)), text


@pytest.mark.parametrize("kind", KINDS)
def test_other_classes_refuse_models_that_are_not_unigram(tmp_path: Path, kind: str):
    write_kind(tmp_path, kind, model_type="bpe")
    with pytest.raises(TokenizerError, match="is not a Unigram model"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"), ({"model_type": "word"}, "whole words")],
    ids=["suffix", "word"],
)
def test_settings_that_are_not_supported_are_refused_by_name(tmp_path: Path, settings: dict, named: str):
    with pytest.raises(TokenizerError, match=named):
        load_tokenizer(train(tmp_path, **settings))


def test_unused_pieces_are_refused(tmp_path: Path):
    directory = train(tmp_path, model_type="bpe")
    content = (directory / "tokenizer.model").read_bytes()
    pieces = [bytes(value) for field, value in protobuf_fields(content) if field == 1]
    unused = pieces[-1] + b"\x18\x05"  # the field `type`, 3, with the value 5
    changed = content.replace(pieces[-1], unused)
    changed = changed.replace(bytes([len(pieces[-1])]) + unused, bytes([len(unused)]) + unused)
    (directory / "tokenizer.model").write_bytes(changed)
    with pytest.raises(TokenizerError, match="unused"):
        load_tokenizer(directory)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published files are not here")
@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("llm-tpu/Mistral/token_config/tokenizer.model", "llm-tpu/Mistral/token_config/tokenizer_config.json"),
        ("mistral-common/mistral_instruct_tokenizer_241114.model.v7", None),
    ],
    ids=["Mistral 7B v0.2", "Mistral v7"],
)
def test_published_models_equal_the_library(tmp_path: Path, model: str, config: str | None):
    stated = {"tokenizer_class": "LlamaTokenizer", "legacy": True}
    if config is not None:
        stated = json.loads((PUBLISHED / config).read_text()) | {"add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    shutil.copy(PUBLISHED / model, tmp_path / "tokenizer.model")
    check(load_tokenizer(tmp_path), processor(tmp_path), texts())
