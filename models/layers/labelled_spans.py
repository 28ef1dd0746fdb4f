"""Score spans of words against labels that are in the same text (GLiNER).

All computations are in float32, because the parts are small.

Every text is computed separately, so that its result has the same bits whatever other texts a step has.
Sources: Zaratiana et al. 2023, arXiv:2311.08526, section 2 (spans); Stepanov and Shtopko 2024, arXiv:2406.12925,
section 2 (words).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.config.entities import LabelledSpansConfig
from models.layers.linear import Linear
from models.layers.schema_labels import SchemaClasses, SchemaLabels


class _Projection(nn.Module):
    """Two linear layers with ReLU between them. forward: [rows, inputs] -> [rows, outputs]."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.up = Linear(inputs, inner, bias=True)
        self.down = Linear(inner, outputs, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down(self.up(x, "relu"))
        return projected


class SpanScorer(nn.Module):
    """Computes the probability of each span of up to `max_span_words` words, for each label."""

    def __init__(self, config: LabelledSpansConfig) -> None:
        super().__init__()
        width = config.width
        self._max_span_words = config.max_span_words
        self.start, self.end = (_Projection(width, 4 * width, width) for _ in range(2))
        schema = config.schema
        self.label = _Projection(width, 4 * width, width) if schema is None else SchemaLabels(width, schema)
        self.span = _Projection(2 * width, 4 * width, width)

    def forward(self, words: Tensor, labels: Tensor, threshold: float) -> Tensor:
        """Find the spans whose probability is above the threshold.

        words: [words, width]. labels: [labels, width].
        Returns [n, 4]: first word, last word, label, probability; by first word, then by length, then by label.
        """
        count = len(words)
        first = torch.arange(count, device=words.device).repeat_interleave(self._max_span_words)
        last = first + torch.arange(self._max_span_words, device=words.device).repeat(count)
        first, last = first[last < count], last[last < count]
        ends = torch.cat([self.start(words)[first], self.end(words)[last]], dim=1).relu()
        scores = torch.sigmoid(self.span(ends) @ self.label(labels).T)
        span, label = torch.nonzero(scores > threshold, as_tuple=True)
        columns = (first[span], last[span], label)
        return torch.stack([*(column.float() for column in columns), scores[span, label]], dim=1)


class WordScorer(nn.Module):
    """Computes the probabilities that a word is start, end or inside of an entity of a label, and builds spans."""

    def __init__(self, config: LabelledSpansConfig) -> None:
        super().__init__()
        self.token, self.label = (Linear(config.width, 2 * config.width, bias=True) for _ in range(2))
        self.output = _Projection(3 * config.width, 4 * config.width, 3)

    def forward(self, words: Tensor, labels: Tensor, threshold: float) -> Tensor:
        """Find the spans for which all probabilities are high enough: start, end, and inside for every word.

        words: [words, width]. labels: [labels, width].
        Returns [n, 4]: first word, last word, label, probability, which is the lowest of these probabilities.
        """
        word, word_factor = self.token(words).chunk(2, dim=1)
        found = []
        for index, (label, label_factor) in enumerate(zip(*self.label(labels).chunk(2, dim=1), strict=True)):
            joined = torch.cat([word, label.expand_as(word), word_factor * label_factor], dim=1)
            found.append(_spans(torch.sigmoid(self.output(joined)), index, threshold))
        return torch.cat(found)


def _spans(scores: Tensor, label: int, threshold: float) -> Tensor:
    """Find the spans of one label. scores: [words, 3], probabilities of start, end and inside.

    label: index of the label. Returns [n, 4]: first word, last word, label, probability.
    """
    start, end, inside = scores.unbind(dim=1)
    rows = []
    for first in torch.nonzero(start > threshold)[:, 0].tolist():
        lowest = torch.cummin(inside[first:], dim=0).values
        reach = int((lowest >= threshold).sum())
        lasts = torch.nonzero(end[first : first + reach] > threshold)[:, 0]
        score = torch.minimum(torch.minimum(lowest[lasts], end[first + lasts]), start[first])
        firsts = torch.full_like(score, first)
        rows.append(torch.stack([firsts, (first + lasts).float(), torch.full_like(score, label), score], dim=1))
    return torch.cat(rows) if rows else scores.new_empty(0, 4)


class LabelledSpans(nn.Module):
    """Finds the entities of one text, from the hidden states of its words and labels."""

    def __init__(self, config: LabelledSpansConfig) -> None:
        super().__init__()
        self.config = config
        same = config.width == config.encoder_width
        self.projection = None if same else Linear(config.encoder_width, config.width, bias=True)
        self.recurrent = None
        if config.recurrent_layers:
            width, layers = config.width, config.recurrent_layers
            self.recurrent = nn.LSTM(width, width // 2, layers, batch_first=True, bidirectional=True)
            self.recurrent.requires_grad_(False)
        self.scorer = WordScorer(config) if config.by_word else SpanScorer(config)
        self.classes = SchemaClasses(config.width) if config.class_token else None

    def forward(self, hidden: Tensor, words: Sequence[int], labels: Sequence[int], threshold: float) -> Tensor:
        """Find the entities of a text. They do not overlap; with a `schema`, entities of different labels may overlap.

        hidden: [tokens, encoder width], the hidden states of the text, model dtype.
        words: index of the first token of each word. labels: index of the token before each label.
        threshold: smallest probability of an entity.
        Returns [entities, 4], float32: first word, last word, label, probability; in the order of the first words.
        """
        rows = hidden[torch.tensor([*words, *labels], device=hidden.device)].float()
        rows = rows if self.projection is None else self.projection(rows)
        word_rows, label_rows = rows[: len(words)], rows[len(words) :]
        if self.recurrent is not None:
            word_rows = self.recurrent(word_rows[None])[0][0]
        found: Tensor = self.scorer(word_rows, label_rows, threshold)
        if self.config.schema is None:
            return without_overlaps(found)
        own = torch.cat([without_overlaps(found[found[:, 2] == label]) for label in range(len(labels))])
        return own[torch.argsort(own[:, 0], stable=True)]

    def classify(self, hidden: Tensor, labels: Sequence[int]) -> Tensor:
        """The logit of each label of a text classification: [labels], float32.

        hidden: [tokens, encoder width]. labels: index of the token before each label.
        """
        assert self.classes is not None, "the model does not classify"
        logits: Tensor = self.classes(hidden[torch.tensor(labels, device=hidden.device)].float())
        return logits


def without_overlaps(spans: Tensor) -> Tensor:
    """Choose the likeliest spans that share no word. spans: [n, 4]: first word, last word, label, probability.

    The likeliest span is chosen, spans that share a word with it are removed, and so on.
    Returns [m, 4], in the order of the first words.
    """
    left = spans[torch.argsort(spans[:, 3], descending=True, stable=True)]
    kept = []
    while len(left):
        best = left[0]
        kept.append(best)
        left = left[(left[:, 0] > best[1]) | (left[:, 1] < best[0])]
    found = torch.stack(kept) if kept else spans
    return found[torch.argsort(found[:, 0], stable=True)]
