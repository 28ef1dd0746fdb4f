"""Find entities (names and their positions in a text) from the class scores of each token.

The rules are those of transformers' token classification pipeline, including its aggregation strategies. Labels may
mark the first token of an entity (`B-PER`) and the following ones (`I-PER`). Source: Ramshaw and Marcus 1995,
arXiv:cmp-lg/9505040. Some models also mark the last token of an entity (`E-PER`), and an entity of a single token
(`S-PER`). The pipeline of transformers splits such entities; here they stay whole. Source: Ratinov and Roth 2009,
ACL W09-1119, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from server.operations.encode import Numbers
from server.text.tokens.tokenizer import Encoding, Tokenizer
from server.text.tokens.windows import TokenWindow

Aggregation = Literal["none", "simple", "first", "average", "max"]
OUTSIDE = "O"
"""Label of tokens that belong to no entity."""


class ScoredTextToken(Struct, frozen=True, gc=False):
    """A token of the text with its scores.

    word: the token as text.
    scores: probability of each label, [labels].
    start, end: range of the token in the text, in characters; `end` is exclusive.
    index: index among the tokens of the text.
    continues_word: whether the token belongs to the same word as the token before it.
    """

    word: str
    scores: Numbers
    start: int
    end: int
    index: int
    continues_word: bool


class NamedEntity(Struct, frozen=True, gc=False):
    """An entity, or with aggregation `none` a single token.

    start, end: range of the entity in the text, in characters; `end` is exclusive.
    index: index of a single token among the tokens of the text; None for an entity.
    """

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int | None = None


def text_tokens(
    text: str, encoding: Encoding, window: TokenWindow, logits: Numbers, tokenizer: Tokenizer
) -> list[ScoredTextToken]:
    """The tokens of one window with their scores, without special tokens.

    window: indices of its tokens in the encoding. logits: [tokens of the window, labels].
    """
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = powers / powers.sum(axis=1, keepdims=True)
    found = []
    for row, index in enumerate(window):
        if encoding.special[index]:
            continue
        start, end = encoding.offsets[index]
        word, original = tokenizer.id_to_token(encoding.ids[index]) or "", text[start:end]
        if tokenizer.marks_subwords:
            continues = len(word) != len(original)
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        if encoding.ids[index] == tokenizer.special.unk:
            word, continues = original, False
        found.append(ScoredTextToken(word, scores[row], start, end, index, continues))
    return found


def entities(
    tokens: Sequence[ScoredTextToken],
    aggregation: Aggregation,
    labels: Sequence[str],
    tokenizer: Tokenizer,
    ignored_labels: Collection[str] = (OUTSIDE,),
) -> list[NamedEntity]:
    """Find the entities of one window, in the order of the text. Entities of ignored labels are left out.

    aggregation: `none` returns single tokens; `simple` joins neighbours with the same label. The other values first
        choose one label per word and then join words: the label of its `first` token, the label with the best `average`
        score of its tokens, or the label of its highest-scoring token (`max`).
    """
    if aggregation in ("none", "simple"):
        labelled = [_labelled(token, token.scores, labels) for token in tokens]
    else:
        labelled = [_word(word, aggregation, labels, tokenizer) for word in _words(tokens)]
    if aggregation == "none":
        return [token for token in labelled if token.label not in ignored_labels]
    groups = [_joined(group, tokenizer) for group in _groups(labelled, _marks_ends(labels))]
    return [group for group in groups if group.label not in ignored_labels]


def without_overlaps(found: Sequence[NamedEntity]) -> list[NamedEntity]:
    """Choose entities that do not overlap, in the order of their starts.

    Of two entities that overlap, the longer one is kept. If both have the same length, the likelier one is kept.
    """
    kept: list[NamedEntity] = []
    for entity in sorted(found, key=lambda candidate: candidate.start):
        if not kept or not kept[-1].start <= entity.start < kept[-1].end:
            kept.append(entity)
        elif (entity.end - entity.start, entity.score) > (kept[-1].end - kept[-1].start, kept[-1].score):
            kept[-1] = entity
    return kept


def _labelled(token: ScoredTextToken, scores: Numbers, labels: Sequence[str]) -> NamedEntity:
    label = int(scores.argmax())
    return NamedEntity(labels[label], float(scores[label]), token.word, token.start, token.end, token.index)


def _words(tokens: Sequence[ScoredTextToken]) -> list[list[ScoredTextToken]]:
    words: list[list[ScoredTextToken]] = []
    for token in tokens:
        if words and token.continues_word:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word(
    word: list[ScoredTextToken], aggregation: Aggregation, labels: Sequence[str], tokenizer: Tokenizer
) -> NamedEntity:
    if aggregation == "first":
        scores = word[0].scores
    elif aggregation == "max":
        scores = max(word, key=lambda token: float(token.scores.max())).scores
    else:
        scores = np.stack([token.scores for token in word]).mean(axis=0)
    text = tokenizer.join([token.word for token in word])
    first = word[0]
    return _labelled(ScoredTextToken(text, scores, first.start, word[-1].end, first.index, False), scores, labels)


def _marks_ends(labels: Collection[str]) -> bool:
    """Whether the labels also mark the last token of an entity (`E-`), and an entity of a single token (`S-`)."""
    classes = {mark: {label[2:] for label in labels if label.startswith(mark)} for mark in ("B-", "I-", "E-", "S-")}
    return bool(classes["B-"]) and all(found == classes["B-"] for found in classes.values())


def _groups(tokens: Sequence[NamedEntity], marks_ends: bool) -> list[list[NamedEntity]]:
    """Group neighbouring tokens of the same class. A `B-` label starts a new group.

    marks_ends: whether an `S-` label also starts a new group, and an `E-` or `S-` label ends its group.
    """
    groups: list[list[NamedEntity]] = []
    for token in tokens:
        begins = token.label.startswith(("B-", "S-") if marks_ends else "B-")
        begins = begins or (marks_ends and bool(groups) and groups[-1][-1].label.startswith(("E-", "S-")))
        if (
            groups
            and not begins
            and _class_name(token.label, marks_ends) == _class_name(groups[-1][-1].label, marks_ends)
        ):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _class_name(label: str, marks_ends: bool) -> str:
    return label[2:] if label.startswith(("B-", "I-", "E-", "S-") if marks_ends else ("B-", "I-")) else label


def _joined(group: list[NamedEntity], tokenizer: Tokenizer) -> NamedEntity:
    return NamedEntity(
        group[0].label.split("-", 1)[-1],
        float(np.mean([token.score for token in group])),
        tokenizer.join([token.word for token in group]),
        group[0].start,
        group[-1].end,
    )
