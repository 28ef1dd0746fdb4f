"""Tokenize the words of a text and the labels around them, in the form that GLiNER and GLiNER2 models read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import LabelledSpansInfo
from server.operations.cost import MAX_ADDED_TOKENS, characters_of
from server.operations.encode import check_ids
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
_SCHEMA_WORD = re.compile(
    r"(?:https?://[^\s]+|www\.[^\s]+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}|@[a-z0-9_]+|[一-鿿぀-ゟ゠-ヿ가-힣]"
    r"|\w+(?:[-_]\w+)*|\S",
    re.IGNORECASE,
)
"""Patterns that divide a text into words, `_WORD` for GLiNER and `_SCHEMA_WORD` for GLiNER2, as in the published code.

Source: https://github.com/urchade/GLiNER.
"""
_ENDS = (".", "!", "?")
_GROWING = ("\u0130", "\u023a", "\u023e")
"""All characters that have more bytes in lower case. The first one (İ) becomes two characters."""
_SAMPLE = "a"
"""Sample text. Its encoding shows which special tokens the tokenizer adds."""


@dataclass(frozen=True)
class TextWords:
    """The words of a text. places: (start, end) of each word, in characters. ids: token ids of each word."""

    places: list[tuple[int, int]]
    ids: list[list[int]]


@dataclass(frozen=True)
class LabelFrame:
    """The tokens before and after the words of a text in each window.

    label_indices: for each label, the index in `before` of the marker token that precedes it.
    """

    before: list[int]
    after: list[int]
    label_indices: list[int]


def frame_characters(about: LabelledSpansInfo) -> int:
    """Number of characters that are tokenized for a frame, without its labels and the name of its task."""
    return len("".join((*about.opening, *about.closing))) + len(_SAMPLE)


def frame_bound(model: ServedModel, about: LabelledSpansInfo, labels: Sequence[str], task: str = "") -> int:
    """Largest possible number of tokens in a frame. task: name of a classification; empty for entities."""
    texts = (*labels, *about.opening, *about.closing, task)
    return sum(map(model.tokenizer.token_bound, texts)) + (len(labels) + 1) * MAX_ADDED_TOKENS


def words_characters(about: LabelledSpansInfo, texts: Sequence[str]) -> int:
    """Upper bound of the number of characters that are tokenized for the words of texts."""
    if about.schema is None:
        return characters_of(texts)
    return characters_of(texts) + len(texts) + sum(text.count(_GROWING[0]) for text in texts)


def words_bound(model: ServedModel, about: LabelledSpansInfo, text: str) -> int:
    """Largest possible number of tokens in the words of a text."""
    bound = model.tokenizer.token_bound
    if about.schema is None:
        return bound(text)
    grown = sum(text.count(character) * bound(character.lower()) for character in _GROWING)
    return bound(text) + bound(_ENDS[0]) + grown


async def label_frame(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    about: LabelledSpansInfo,
    labels: Sequence[str],
    *,
    task: str | None = None,
) -> LabelFrame:
    """Tokenize the labels and all other tokens around the words of a text.

    task: name of a classification; None for entities.
    Raises InvalidRequest if a label contains the marker token, or if the tokenizer does not have this token.
    """
    tokenizer, field = model.tokenizer, "labels" if task is None else "candidate_labels"
    marker = about.label_token if task is None else about.class_token
    marker_id = tokenizer.token_to_id(marker)
    if marker_id is None or about.label_token_id not in (None, marker_id):
        raise InvalidRequest(f"the tokenizer of `{model.name}` has no token {marker!r}", "model")
    # The word before the last opening bracket names the task.
    opening = about.opening if task is None else (*about.opening[:-2], task, about.opening[-1])
    texts = [*labels, *opening, *about.closing]
    found = [
        encoding.ids
        for encoding in await runtime.encode(tokenizer, texts, param=field, add_special_tokens=False, call=call)
    ]
    label_ids, around = found[: len(labels)], found[len(labels) :]
    if any(marker_id in ids for ids in label_ids):
        raise InvalidRequest(f"`{field}` must not contain {marker}", field)
    start, end = ([], []) if about.schema is not None else await _around(runtime, call, model, field)
    start = [*start, *(token for ids in around[: len(opening)] for token in ids)]
    parts = [[marker_id, *ids] for ids in label_ids]
    indices = [*accumulate([len(start), *map(len, parts)])][:-1]
    closing = (token for ids in around[len(opening) :] for token in ids)
    before = [*start, *(token for part in parts for token in part), *closing]
    return LabelFrame(check_ids(before, model.info, field), end, indices)


async def _around(runtime: Runtime, call: Call, model: ServedModel, field: str) -> tuple[list[int], list[int]]:
    """Ids of the special tokens that the tokenizer adds before and after a text."""
    (sample,) = await runtime.encode(model.tokenizer, [_SAMPLE], param=field, call=call)
    text = [index for index, special in enumerate(sample.special) if not special] or [0]
    return sample.ids[: text[0]], sample.ids[text[-1] + 1 :]


async def text_words(runtime: Runtime, call: Call, model: ServedModel, texts: Sequence[str]) -> list[TextWords]:
    """Divide texts into words, and tokenize each different word once. Words without a token are left out.

    Raises the errors of `Runtime.encode_with`.
    """
    about = model.info.labelled_spans
    assert about is not None
    lower = about.schema is not None
    runtime.check_characters(texts, "inputs")
    runtime.check_tokens(model.tokenizer, texts, "inputs")
    split = _split_sentence if lower else partial(_split, _WORD)
    places = await runtime.pools.tokenize.run_pieces([partial(split, text) for text in texts], call)
    found = [
        [(text[start:end] or ".").lower() if lower else text[start:end] for start, end in spans]
        for text, spans in zip(texts, places, strict=True)
    ]
    different = list(dict.fromkeys(word for words in found for word in words))
    ids = await runtime.encode_with(
        model.tokenizer, different, lambda encoding: encoding.ids, param="inputs", add_special_tokens=False, call=call
    )
    ids_of = dict(zip(different, (check_ids(token_ids, model.info, "inputs") for token_ids in ids), strict=True))
    read = (
        [(place, ids_of[word]) for place, word in zip(spans, words, strict=True) if ids_of[word]]
        for spans, words in zip(places, found, strict=True)
    )
    return [TextWords([place for place, _ in pairs], [tokens for _, tokens in pairs]) for pairs in read]


def _split_sentence(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word in a text for GLiNER2. A full stop is added to a text that does not end with a mark.

    The added full stop has equal start and end, because it is not in the text.
    """
    places = _split(_SCHEMA_WORD, text if text.endswith(_ENDS) else f"{text}.") if text.strip() else []
    return [(min(start, len(text)), min(end, len(text))) for start, end in places]


def _split(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [match.span() for match in pattern.finditer(text)]
