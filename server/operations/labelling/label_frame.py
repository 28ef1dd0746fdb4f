"""Words of a text and labels as a model reads them together (GLiNER, GLiNER2)."""

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
"""Words as in the published code of GLiNER (https://github.com/urchade/GLiNER) and of GLiNER2."""
_ENDS = (".", "!", "?")
_GROWING = ("\u0130", "\u023a", "\u023e")
"""The characters that have more bytes in lower case; the first one (İ) has two characters there."""
_SAMPLE = "a"
"""Sample text. Its encoding shows which special tokens the tokenizer adds."""


@dataclass(frozen=True)
class TextWords:
    """The words of a text. places: (start, end) of each word in characters. ids: at least one token id of each word."""

    places: list[tuple[int, int]]
    ids: list[list[int]]


@dataclass(frozen=True)
class LabelFrame:
    """The tokens that surround the words in each window. label_indices: index of the marker token before each label."""

    before: list[int]
    after: list[int]
    label_indices: list[int]


def frame_characters(about: LabelledSpansInfo) -> int:
    """Characters that are tokenized for a frame besides the labels and the name of a task."""
    return len("".join((*about.opening, *about.closing))) + len(_SAMPLE)


def frame_bound(model: ServedModel, about: LabelledSpansInfo, labels: Sequence[str], task: str = "") -> int:
    """Upper bound of the tokens of a frame. task: name of a classification."""
    texts = (*labels, *about.opening, *about.closing, task)
    return sum(map(model.tokenizer.token_bound, texts)) + (len(labels) + 1) * MAX_ADDED_TOKENS


def words_characters(about: LabelledSpansInfo, texts: Sequence[str]) -> int:
    """Upper bound of the characters that are tokenized for the words of texts."""
    if about.schema is None:
        return characters_of(texts)
    return characters_of(texts) + len(texts) + sum(text.count(_GROWING[0]) for text in texts)


def words_bound(model: ServedModel, about: LabelledSpansInfo, text: str) -> int:
    """Upper bound of the tokens of a text's words."""
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
    """The tokens before and after the words of a text.

    task: name of a classification; None for entities. Raises InvalidRequest.
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
    """The special tokens that begin and end a text."""
    (sample,) = await runtime.encode(model.tokenizer, [_SAMPLE], param=field, call=call)
    text = [index for index, special in enumerate(sample.special) if not special] or [0]
    return sample.ids[: text[0]], sample.ids[text[-1] + 1 :]


async def text_words(runtime: Runtime, call: Call, model: ServedModel, texts: Sequence[str]) -> list[TextWords]:
    """The words of each text. Each different word is tokenized once."""
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
    """The words of a text for GLiNER2, which reads a text that ends without a mark as if it ended with a full stop."""
    places = _split(_SCHEMA_WORD, text if text.endswith(_ENDS) else f"{text}.") if text.strip() else []
    return [(min(start, len(text)), min(end, len(text))) for start, end in places]


def _split(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [match.span() for match in pattern.finditer(text)]
