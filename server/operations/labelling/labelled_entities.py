"""Find entities whose labels the request names, with GLiNER and GLiNER2 models, which read labels and text together.

A text is split into words. A long text is read in overlapping windows of words. Source: Zaratiana et al. 2023,
arXiv:2311.08526, and 2025, arXiv:2507.18546.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import LabelledSpansInfo
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.operations.cost import Cost, characters_of
from server.operations.encode import Numbers, encoded_rows
from server.operations.labelling.entities import NamedEntity
from server.operations.labelling.label_frame import (
    LabelFrame,
    TextWords,
    frame_bound,
    frame_characters,
    label_frame,
    text_words,
    words_bound,
    words_characters,
)
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

MAX_LABELS = 256
DEFAULT_THRESHOLD = 0.5
DEFAULT_OVERLAP_WORDS = 64
_ENTITY_NUMBERS = 4
_MOST_SHARED = 8
"""Maximum number of windows that contain the same word, if windows are limited by tokens rather than words."""


@dataclass(frozen=True)
class LabelledEntitiesSpec:
    """Request for the entities of texts that have one of the given labels.

    labels: names of the kinds of entities to find.
    threshold: minimum probability of an entity.
    overlap_words: number of words by which neighbouring windows of a long text overlap; None for 64, or half of a
        window if that is less.
    """

    inputs: Sequence[str]
    labels: Sequence[str]
    model: str | None = None
    threshold: float = DEFAULT_THRESHOLD
    overlap_words: int | None = None

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission. A text has at most one word per character, and the labels
        are in every window."""
        about = model.info.labelled_spans
        assert about is not None
        prompt = frame_bound(model, about, self.labels)
        room = max(1, model.max_input_tokens - prompt)
        lengths = [words_bound(model, about, text) for text in self.inputs]
        stride = about.max_words - _overlap(about.max_words, self.overlap_words)
        sequences = sum(_most_windows(about, room, length, stride) for length in lengths)
        repeated = sequences * prompt + sum(lengths) * (_MOST_SHARED + about.max_words // max(1, stride))
        tokens = min(sequences * model.max_input_tokens, repeated)
        characters = words_characters(about, self.inputs) + characters_of(self.labels) + frame_characters(about)
        numbers = min(sequences * about.max_words, tokens) * _ENTITY_NUMBERS
        return Cost(characters, tokens, sequences, answer_numbers=numbers, placed_tokens=sum(lengths))


async def labelled_entities(runtime: Runtime, call: Call, spec: LabelledEntitiesSpec) -> list[list[NamedEntity]]:
    """Find the entities in each text that fit the labels of the request, in the order of the text.

    Entities do not overlap; with GLiNER2, only entities of the same label do not. Raises InvalidRequest for a model
    with fixed labels, ContextLengthExceeded for labels that are too long, and the errors of `Runtime.encode_with`.
    """
    fitting = runtime.candidates(spec.model, "token_classify")
    model = next((candidate for candidate in fitting if candidate.info.labelled_spans is not None), fitting[0])
    about = model.info.labelled_spans
    if about is None:
        raise InvalidRequest(f"`{model.name}` has labels of its own; send no `labels`", "labels")
    labels = list(dict.fromkeys(spec.labels))
    runtime.admission.admit(call, model, spec.cost(model))
    frame = await label_frame(runtime, call, model, about, labels)
    texts = await text_words(runtime, call, model, spec.inputs)
    spans = [_windows(model, about, frame, words, spec.overlap_words) for words in texts]
    items = [
        _item(model, frame, words, first, end)
        for words, windows in zip(texts, spans, strict=True)
        for first, end in windows
    ]
    message = Encode(call.next_id(), model.name, "labelled_spans", items, threshold=spec.threshold)
    rows = iter(await encoded_rows(call, message, _ENTITY_NUMBERS) if items else [])
    pieces = [
        partial(_entities, text, words, labels, about.schema is None, [(first, next(rows)) for first, _ in windows])
        for text, words, windows in zip(spec.inputs, texts, spans, strict=True)
    ]
    return await runtime.pools.tokenize.run_pieces(pieces, call)


def _windows(
    model: ServedModel, about: LabelledSpansInfo, frame: LabelFrame, words: TextWords, overlap_words: int | None
) -> list[tuple[int, int]]:
    """Divide the words of a text into windows: (first word, end) of each, as indices of words.

    overlap_words: number of words by which windows overlap; None for the default.
    Raises InvalidRequest for an overlap that is not less than a window, and ContextLengthExceeded for labels that leave
    no room for a word.
    """
    room = model.max_input_tokens - len(frame.before) - len(frame.after)
    longest = max(map(len, words.ids), default=1)
    if room < longest:
        raise ContextLengthExceeded(
            f"`labels` of {len(frame.before)} tokens leave no room for a word of {longest} tokens: `{model.name}` "
            f"reads at most {model.max_input_tokens}",
            "labels",
        )
    overlap = _overlap(about.max_words, overlap_words)
    if overlap >= about.max_words:
        raise InvalidRequest(f"`stride` {overlap} must be less than the {about.max_words} words of a window", "stride")
    found, first = [], 0
    while first < len(words.ids):
        end, tokens = first, 0
        while end < min(len(words.ids), first + about.max_words) and tokens + len(words.ids[end]) <= room:
            tokens += len(words.ids[end])
            end += 1
        found.append((first, end))
        if end == len(words.ids):
            break
        most = min(room // 2, room - len(words.ids[end]))
        start, tokens = first, 0
        first = end
        while first - 1 > start and end - first < overlap and tokens + len(words.ids[first - 1]) <= most:
            first -= 1
            tokens += len(words.ids[first])
    return found


def _item(model: ServedModel, frame: LabelFrame, words: TextWords, first: int, end: int) -> EncodeItem:
    """The engine item of one window. first, end: range of its words; `end` is exclusive."""
    parts = words.ids[first:end]
    starts = [*accumulate([len(frame.before), *map(len, parts)])]
    ids = [*frame.before, *(token for part in parts for token in part), *frame.after]
    spans = list(pairwise(starts))
    return EncodeItem(ids, spans=spans, label_indices=frame.label_indices)


def _entities(
    text: str,
    words: TextWords,
    labels: Sequence[str],
    exclusive: bool,
    windows: Sequence[tuple[int, Numbers]],
) -> list[NamedEntity]:
    """Collect the entities of a text from all its windows, the likeliest first, and sort them by position.

    exclusive: whether entities of different labels may not overlap either.
    windows: index of the first word of each window, and its entities: [n, 4], as first word, last word, label, score.
    """
    scored = [
        (-float(score), int(first) + offset, int(last) + offset, int(label))
        for offset, rows in windows
        for first, last, label, score in rows
    ]
    taken = [bytearray(len(words.places)) for _ in range(1 if exclusive else len(labels))]
    found = []
    for score, first, last, label in sorted(scored) if len(windows) > 1 else scored:
        own = taken[0 if exclusive else label]
        if any(own[first : last + 1]):
            continue
        own[first : last + 1] = b"\1" * (last + 1 - first)
        start, end = words.places[first][0], words.places[last][1]
        if start == end:
            continue  # the full stop that GLiNER2 reads after a text without one
        found.append(NamedEntity(labels[label], -score, text[start:end], start, end))
    return sorted(found, key=lambda entity: entity.start)


def _overlap(max_words: int, stated: int | None) -> int:
    return min(DEFAULT_OVERLAP_WORDS, max_words // 2) if stated is None else stated


def _most_windows(about: LabelledSpansInfo, room: int, tokens: int, step_words: int) -> int:
    """Upper bound of the number of windows for a text of `tokens` tokens.

    After a window that reaches the limit of words, the next window has `step_words` new words. Of two consecutive
    windows that reach the limit of tokens, at least one consists to a quarter of tokens that are in no earlier window.

    room: number of tokens in a window for words of the text.
    step_words: number of words from the start of one window to the start of the next.
    """
    if tokens <= min(room, about.max_words):
        return 1
    return 2 + tokens // max(1, step_words) + 8 * tokens // room
