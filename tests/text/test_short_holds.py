"""Building and freeing models of the `tokenizers` library in short calls."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

import server.text.tokenizers.short_holds as short_holds
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.short_holds import free, free_later, free_unused, from_json
from tests.text import checkpoints

DEMO = sorted((Path(__file__).parents[2] / "weights" / "demo").glob("*/tokenizer.json"))
_ADDED = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": True, "special": True}


def _file(model: dict[str, Any], **parts: Any) -> bytes:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return json.dumps({"version": "1.0", **empty, "added_tokens": [], "model": model, **parts}).encode()


def _bpe(**settings: Any) -> dict[str, Any]:
    ids = {token: index for index, token in enumerate(["a", "b", '"', "\\", "[", "ab", 'a"', "\\[", "é", "aé", ","])}
    merges = [["a", "b"], ["a", '"'], ["\\", "["], ["a", "é"]]
    names = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    return {"type": "BPE", **dict.fromkeys(names), **flags, "vocab": ids, "merges": merges, **settings}


_WORD_PIECE = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 50,
    "vocab": {"[UNK]": 0, "a": 1, "##b": 2, '"': 7},
}
_UNIGRAM = {
    "type": "Unigram",
    "unk_id": 1,
    "byte_fallback": False,
    "vocab": [
        ["a", -0.1],
        ["<unk>", 0.0],
        ['["', -1 / 3],
        ["\\", -2.5e-7],
        *([f"p{i}", -1 / (i + 7)] for i in range(99)),
    ],
}
_WORD_LEVEL = {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}
MODELS: dict[str, dict[str, Any]] = {
    "bpe": _bpe(),
    "bpe with settings": _bpe(unk_token="a", fuse_unk=True, byte_fallback=True, ignore_merges=True),
    "bpe with merges as texts": _bpe(merges=["a b", 'a "', "\\ [", "a é"]),
    "bpe with a suffix": _bpe(end_of_word_suffix="</w>"),
    "bpe with empty affixes": _bpe(end_of_word_suffix="", continuing_subword_prefix=""),
    "bpe with a prefix": _bpe(continuing_subword_prefix="##", merges=[]),
    "bpe with dropout": _bpe(dropout=0.5),
    "bpe without merges": _bpe(merges=[]),
    "word piece": _WORD_PIECE,
    "unigram": _UNIGRAM,
    "unigram without unknown": {**_UNIGRAM, "unk_id": None},
    "word level": _WORD_LEVEL,
}


@pytest.mark.parametrize("portion", [1, 2, 3, 4096])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_gives_the_tokenizer_that_the_library_reads(name, portion, monkeypatch):
    monkeypatch.setattr(short_holds, "PORTION", portion)
    added = [{"id": 90, "content": "<x>", **_ADDED}, {"id": 0, "content": "a", **_ADDED, "special": False}]
    for indent in (None, 2):
        content = json.dumps(json.loads(_file(MODELS[name], added_tokens=added)), indent=indent).encode()
        assert from_json(content).to_str() == LibraryTokenizer.from_buffer(content).to_str()


@pytest.mark.parametrize("path", DEMO, ids=lambda path: path.parent.name)
def test_published_files(path):
    content = path.read_bytes()
    assert from_json(content).to_str() == LibraryTokenizer.from_buffer(content).to_str()


def test_files_of_the_text_tests(tokenizer_directory):
    path = tokenizer_directory / "tokenizer.json"
    if path.exists():
        content = path.read_bytes()
        assert from_json(content).to_str() == LibraryTokenizer.from_buffer(content).to_str()


@pytest.mark.parametrize("name", ["bpe", "bpe with settings", "bpe with merges as texts", "word piece"])
def test_the_usual_forms_are_not_left_to_the_library(name):
    assert short_holds._from_parts(_file(MODELS[name])).get_vocab_size() > 0


@pytest.mark.parametrize(
    "model",
    [
        _bpe(merges=[["a", "c"]]),
        _bpe(merges=["a b c"]),
        _bpe(merges=[["a", "b", "c"]]),
        _bpe(vocab={"a": -1}),
        _bpe(vocab={"a": {"b": 1}}),
        _bpe(vocab=[]),
        {**_UNIGRAM, "vocab": [["a", "b"]]},
        {**_UNIGRAM, "unk_id": 1_000},
        {**_WORD_PIECE, "vocab": {"a": 1 << 40}},
        {"type": "Other"},
    ],
)
def test_a_damaged_model_has_the_error_of_the_library(model):
    content = _file(model)
    try:
        expected = LibraryTokenizer.from_buffer(content).to_str()
    except Exception as error:
        with pytest.raises(type(error)) as caught:
            from_json(content)
        assert str(caught.value) == str(error)
    else:
        assert from_json(content).to_str() == expected


@pytest.mark.parametrize("name", ["bpe", "word piece", "unigram", "word level"])
def test_a_freed_tokenizer_has_no_entries(name):
    backend = LibraryTokenizer.from_buffer(_file(MODELS[name]))
    before = backend.get_vocab_size()
    free(backend)
    assert backend.token_to_id("a") is None or backend.get_vocab_size() < before


@pytest.mark.parametrize("write", [checkpoints.write_llama, checkpoints.write_t5])
def test_a_tokenizer_is_freed_when_nothing_uses_it(write, tmp_path):
    tokenizer = load_tokenizer(write(tmp_path))
    backends = list(short_holds._backends(tokenizer))
    sizes = [backend.get_vocab_size() for backend in backends]
    free_later(tokenizer)
    free_unused()
    assert backends and [backend.get_vocab_size() for backend in backends] == sizes
    del tokenizer
    gc.collect()
    free_unused()
    assert all(backend.get_vocab_size() < size for backend, size in zip(backends, sizes, strict=True))


def test_ids_and_lists_run_python_code_when_they_are_read(monkeypatch):
    read: list[object] = []

    def note(item: Any) -> Any:
        read.append(item)
        return item._value if isinstance(item, short_holds._Id) else item

    monkeypatch.setattr(short_holds, "_itself", note)
    monkeypatch.setattr(short_holds._Id, "__index__", note)
    model = short_holds.bpe({"a": 3, "b": 4, "ab": 5}, [("a", "b")])
    assert model.token_to_id("a") == 3
    assert ("a", "b") in read and len(read) >= 2
