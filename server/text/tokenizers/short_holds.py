"""Build and free models of the `tokenizers` library without holding Python's global lock for long.

The library holds the lock while it parses a `tokenizer.json`: 0.12 s for 50,000 entries, over a second for 256,000. The
event loop stands meanwhile. Here Python parses the file in portions, and the library converts lists and ids that run
Python code, where the lock can be released. The library holds the lock in one piece only while it builds its tables.
See docs/decisions/0193-loading-tokenizers.md.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from tokenizers import AddedToken, models, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.tokens.library_calls import panic_of

PORTION = 4096
"""Items of a list or an object that are parsed in one call. They take about a millisecond."""
_STRIDE = 256
"""One id in so many runs Python code when it is read."""
_NONE = msgspec.Raw(b"null")

T = TypeVar("T")

_unused: list[LibraryTokenizer] = []
"""Tokenizers to free."""


class _AddedEntry(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class _ModelParts(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    vocab: msgspec.Raw
    merges: msgspec.Raw = _NONE
    unk_token: str | None = None
    dropout: None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    max_input_chars_per_word: int | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class _Unusual(ValueError):
    """A `tokenizer.json` is valid, but has another form than the files that the library writes."""


def _itself(item: T) -> T:
    return item


class _Yielding(list[T]):
    """A list whose iterator runs Python code for each item, so that other threads get the global lock in between."""

    def __iter__(self) -> Iterator[T]:
        return map(_itself, super().__iter__())


class _Id:
    """A token id whose conversion to an integer runs Python code, so that other threads get the global lock."""

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def bpe(ids: Mapping[str, int], merges: Iterable[tuple[str, str]], **settings: Any) -> models.BPE:
    """Build a BPE model. ids: id of each token. settings: further arguments of the library's model."""
    return models.BPE(_readable(ids), _Yielding(merges), **settings)


def word_piece(ids: Mapping[str, int], **settings: Any) -> models.WordPiece:
    """Build a WordPiece model. ids: id of each token. settings: further arguments of the library's model."""
    return models.WordPiece(_readable(ids), **settings)


def unigram(pieces: Iterable[tuple[str, float]], unk_id: int | None, byte_fallback: bool) -> models.Unigram:
    """Build a Unigram model. pieces: text and log-probability of each piece, by id."""
    return models.Unigram(_Yielding(pieces), unk_id=unk_id, byte_fallback=byte_fallback)


def from_json(content: bytes) -> LibraryTokenizer:
    """Build the tokenizer that `Tokenizer.from_buffer` builds from the content of a `tokenizer.json`.

    Some files are left to the library: a file of an unusual form; a file with a fault, because the library's message
    describes it; and a Unigram model, whose numbers Python may read with another last bit.
    """
    try:
        return _from_parts(content)
    except (ValueError, OverflowError, TypeError):
        return LibraryTokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain exceptions
        if type(error) is not Exception:
            raise
        return LibraryTokenizer.from_buffer(content)


def free_later(tokenizer: object) -> None:
    """Let `free_unused` free the memory of a tokenizer as soon as nothing refers to the tokenizer any more."""
    for backend in _backends(tokenizer):
        weakref.finalize(tokenizer, _unused.append, backend).atexit = False


def free_unused() -> None:
    """Free the memory of the tokenizers that were given to `free_later` and are not used any more."""
    while _unused:
        free(_unused.pop())


def _backends(part: object) -> Iterator[LibraryTokenizer]:
    """Yield the tokenizers of the library that a tokenizer, or a part of one, consists of."""
    if isinstance(part, LibraryTokenizer):
        yield part
    elif type(part).__module__.startswith(__package__):
        for inner in vars(part).values() if hasattr(part, "__dict__") else ():
            yield from _backends(inner)


def free(backend: LibraryTokenizer) -> None:
    """Free the memory of a tokenizer's model. The tokenizer has an empty vocabulary afterwards.

    Training releases the lock, and replaces the tables of a model. Otherwise the last reference would free them with
    the lock held: 0.13 s for 256,000 entries.
    """
    settings: dict[str, Any] = {"show_progress": False, "special_tokens": []}
    texts: Sequence[str] = ()
    trainer: trainers.Trainer
    match backend.model:
        case models.BPE():
            trainer = trainers.BpeTrainer(**settings)
        case models.WordPiece():
            trainer = trainers.WordPieceTrainer(**settings)
        case models.WordLevel():
            trainer = trainers.WordLevelTrainer(**settings)
        case _:
            trainer = trainers.UnigramTrainer(**settings, vocab_size=100, n_sub_iterations=1)
            texts = ["the cat sat on the mat"] * 4
    fresh = LibraryTokenizer(backend.model)
    try:
        fresh.train_from_iterator(texts, trainer)
    except BaseException as error:  # what is not freed here is freed with the last reference
        if type(error) is not Exception and panic_of(error) is None:
            raise


def _from_parts(content: bytes) -> LibraryTokenizer:
    file = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    if "model" not in file:
        raise _Unusual
    model = _model(msgspec.json.decode(file["model"], type=_ModelParts))
    added = msgspec.json.decode(file.get("added_tokens", _NONE), type=list[_AddedEntry] | None) or []
    rest = {**file, "added_tokens": msgspec.Raw(b"[]"), "model": msgspec.Raw(models.WordLevel({}, "").__getstate__())}
    backend = LibraryTokenizer.from_buffer(msgspec.json.encode(rest))
    backend.model = model
    if added:
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        backend.add_tokens(
            [AddedToken(token.content, **{name: getattr(token, name) for name in names}) for token in added]
        )
    return backend


def _model(model: _ModelParts) -> models.Model:
    """Build the model of a `tokenizer.json`. Raises _Unusual if it is not written as the library writes it."""
    match model.type:
        case "BPE" if not model.continuing_subword_prefix:
            names = ["unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback"]
            settings = {name: getattr(model, name) for name in [*names, "ignore_merges"]}
            return bpe(
                vocabulary(bytes(model.vocab)),
                _merges(bytes(model.merges)),
                **{name: value for name, value in settings.items() if value is not None},
            )
        case "WordPiece":
            given = (model.unk_token, model.max_input_chars_per_word, model.continuing_subword_prefix)
            if None in given:
                raise _Unusual
            names = ["unk_token", "max_input_chars_per_word", "continuing_subword_prefix"]
            return word_piece(vocabulary(bytes(model.vocab)), **dict(zip(names, given, strict=True)))
    raise _Unusual


def vocabulary(content: bytes) -> dict[str, int]:
    """Parse a JSON object with the id of each token. Raises ValueError for other JSON."""
    ids: dict[str, int] = {}
    for part in _portions(content, 2):
        ids.update(msgspec.json.decode(part, type=dict[str, int]))
    return ids


def _merges(merges: bytes) -> Iterator[tuple[str, str]]:
    """Yield the merges of a JSON list: of pairs, or, in older files, of texts with a space between two tokens."""
    if merges[1:].lstrip()[:1] != b'"':
        for part in _portions(merges, 4, nested=True):
            yield from msgspec.json.decode(part, type=list[tuple[str, str]])
        return
    for part in _portions(merges, 2):
        for line in msgspec.json.decode(part, type=list[str]):
            pair = line.split(" ")
            if len(pair) != 2 or line.startswith("#"):
                raise _Unusual
            yield pair[0], pair[1]


def _portions(text: bytes, quotes_per_item: int, nested: bool = False) -> Iterator[bytes]:
    """Cut a valid JSON list or object into lists or objects of `PORTION` items.

    quotes_per_item: quotation marks of each item. nested: whether items are lists, else they begin with a text.
    A text whose items have other numbers of quotation marks is cut at wrong places; the portions are then no JSON.
    """
    masked = text
    if b"\\" in text:
        masked = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
    marks = np.flatnonzero(np.frombuffer(masked, np.uint8) == ord('"'))[:: quotes_per_item * PORTION]
    starts = [masked.rindex(b"[", 0, int(mark)) if nested else int(mark) for mark in marks]
    opening, closing = text[:1], text[-1:]
    if not starts or text[1 : starts[0]].strip():
        if text[1:-1].strip():
            raise _Unusual
        return
    for start, end in zip(starts, [*starts[1:], len(text) - 1], strict=True):
        part = text[start:end].rstrip()
        yield opening + (part[:-1] if part.endswith(b",") else part) + closing


def _readable(ids: Mapping[str, int]) -> dict[str, int]:
    """Return a copy of a vocabulary in which some ids run Python code when they are read."""
    copy: dict[str, Any] = dict(ids)
    for token, index in itertools.islice(ids.items(), 0, None, _STRIDE):
        copy[token] = _Id(index)
    return cast(dict[str, int], copy)
