"""Computes the results of `Encode` items from hidden states: vectors or logits, per text or per token.

Items with equal settings are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.choice import backend
from models.layers.pooling import normalize, output_positions, pool
from models.layers.sentence_head import SentenceHead
from models.layers.token_heads import TokenHeads
from models.steps.batch import EncoderBatch
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.encoding import token_outputs
from server.ipc.wire.encode_messages import Encode, EncodeItem

MAX_LOGITS_ROWS = 64
"""Most rows whose logits over the vocabulary are in memory at once, for `embed_sparse` and `answer_logits`."""


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Result of one item.

    values: [rows, width], float32.
    token_ids: tokens that belong to the values, for tasks that return tokens; else empty.
    """

    values: NDArray[np.float32]
    token_ids: list[int] = field(default_factory=list)


def encoder_outputs(
    model: TransformerProtocol,
    encode: Callable[[EncoderBatch], Tensor],
    sentence: SentenceHead | None,
    heads: TokenHeads,
    asked: Sequence[tuple[Encode, EncodeItem]],
    batch: EncoderBatch,
) -> list[EncoderOutput]:
    """Encode a batch of texts and compute the result of each.

    model: the encoder, with its head.
    encode: computes the hidden states of texts: [tokens, hidden], or [batch, hidden] if the batch has
        `output_positions`.
    sentence: pooling and dense layers of the checkpoint for one vector per text; None means mean pooling.
    heads: the other heads of the checkpoint.
    asked: message and item of each text, in the order of the batch.
    batch: the ragged batch of the texts.
    """
    items = [item for _, item in asked]
    output_groups: dict[Hashable, _OutputGroup] = {}
    for index, (message, _) in enumerate(asked):
        output_group = _OutputGroup(model, sentence, heads, message, items, [])
        output_groups.setdefault(_settings_key(message), output_group).mine.append(index)
    batch = replace(batch, output_positions=_output_positions(output_groups.values(), batch))
    hidden = encode(batch)
    found: dict[int, EncoderOutput] = {}
    for output_group in output_groups.values():
        found |= zip(output_group.mine, output_group.compute(hidden, batch), strict=True)
    return [found[index] for index in range(len(asked))]


def _settings_key(message: Encode) -> Hashable:
    """A key that is equal for requests whose outputs are computed together."""
    match message.task:
        case "embed" | "embed_spans":
            return message.task, message.pooling, message.normalize
        case "embed_tokens":
            return message.task, message.normalize
        case "late_interaction":
            return message.task, message.normalize, tuple(message.skipped_ids)
        case "max_sim":
            return message.task, message.query, tuple(message.skipped_ids)
        case "labelled_spans":
            return message.task, message.threshold
        case "answer_logits":
            return message.task, tuple(message.target_ids)
        case "embed_sparse":
            return message.task, tuple(message.skipped_ids)
        case "classify" | "classify_tokens" | "labelled_classes" | "log_mel" | "ctc":
            return message.task
        case "fill_mask":
            return message.task, message.top_k, tuple(message.target_ids)


def _output_positions(output_groups: Iterable[_OutputGroup], batch: EncoderBatch) -> tuple[int, ...] | None:
    """For each text, the position of the only token that its result needs; None if a result needs more tokens."""
    found: dict[int, int] = {}
    for output_group in output_groups:
        positions = output_group.output_positions(batch)
        if positions is None:
            return None
        found |= {index: positions[index] for index in output_group.mine}
    return tuple(found[index] for index in range(len(found)))


@dataclass(frozen=True, slots=True)
class _OutputGroup:
    """The texts of a batch whose messages have equal settings. Their results are computed together.

    message: one of these messages, for its settings.
    items: all items of the batch.
    mine: index in `items` of each text of this group.
    """

    model: TransformerProtocol
    sentence: SentenceHead | None
    heads: TokenHeads
    message: Encode
    items: list[EncodeItem]
    mine: list[int]

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """For each text of the batch, the position of the only token that `compute` needs; None if it needs more."""
        match self.message.task:
            case "embed":
                if self.message.pooling is None and self.sentence is not None:
                    return self.sentence.output_positions(batch, self._skipped())
                return output_positions(batch, self.message.pooling or "mean", self._skipped())
            case "classify":
                return self.model.output_positions(batch)
            case "fill_mask":
                return self._masks()
            case "answer_logits":
                return tuple(length - 1 for length in batch.lengths)
            case _:
                return None

    def compute(self, hidden: Tensor, batch: EncoderBatch) -> list[EncoderOutput]:
        """Results of the texts of this group, in order. hidden: output of `encode` for the batch, model dtype."""
        message, mine = self.message, self.mine
        match message.task:
            case "embed":
                if message.pooling is None and self.sentence is not None:
                    vectors = self.sentence(hidden, batch, self._skipped())
                else:
                    vectors = pool(hidden, batch, message.pooling or "mean", self._skipped())
                vectors = vectors if len(mine) == len(vectors) else vectors[mine]
                return _rows(normalize(vectors) if message.normalize else vectors)
            case "embed_tokens":
                tokens = self._tokens(hidden, batch).float()
                return self._spans(normalize(tokens) if message.normalize else tokens, batch)
            case "embed_spans":
                return self._span_vectors(hidden, batch)
            case "embed_sparse" if self.heads.weights is not None:
                texts = (self._text(hidden, batch, index) for index in mine)
                found = (token_outputs.token_weights(self.heads, message, *text) for text in texts)
                return [EncoderOutput(weights, ids) for weights, ids in found]
            case "embed_sparse":
                return [self._vocabulary_weights(hidden, batch, index) for index in mine]
            case "late_interaction" | "max_sim" | "labelled_spans" | "labelled_classes":
                compute = _TEXT_OUTPUTS[message.task]
                texts = (self._text(hidden, batch, index) for index in mine)
                return [EncoderOutput(compute(self.heads, message, *text).cpu().numpy()) for text in texts]
            case "answer_logits":
                last = batch.one_of_each(hidden, [length - 1 for length in batch.lengths])[mine]
                adapters = [batch.adapters[index] for index in mine] if batch.adapters else []
                starts = range(0, len(mine), MAX_LOGITS_ROWS)
                parts = (slice(start, start + MAX_LOGITS_ROWS) for start in starts)
                logits = [self.model.logits(last[part], adapters[part])[:, message.target_ids] for part in parts]
                return _rows(torch.cat(logits))
            case "classify":
                return _rows(self.model.classify(hidden, batch)[mine])
            case "classify_tokens":
                return self._spans(self._tokens(self.model.classify_tokens(hidden, batch), batch), batch)
            case "fill_mask":
                adapters = [batch.adapters[index] for index in mine] if batch.adapters else []
                masks = batch.one_of_each(hidden, self._masks())[mine]
                return _top_tokens(self.model.logits(masks, adapters), message.top_k, message.target_ids)
            case "log_mel" | "ctc":
                raise AssertionError("engines of their own read audio")

    def _text(self, hidden: Tensor, batch: EncoderBatch, index: int) -> tuple[EncodeItem, Tensor]:
        """The item at `index` in the batch, and the hidden states of its text: [tokens, hidden]."""
        return self.items[index], hidden[batch.offsets[index] : batch.offsets[index + 1]]

    def _skipped(self) -> list[int]:
        return [item.prompt_tokens for item in self.items]

    def _masks(self) -> tuple[int, ...]:
        """Position of the mask in each text of the batch; 0 for items without a mask."""
        return tuple(item.mask_index or 0 for item in self.items)

    def _tokens(self, values: Tensor, batch: EncoderBatch) -> Tensor:
        """Select the values of this group's tokens, text by text.

        values: one for each token of the batch, [tokens, ...].
        """
        return torch.cat([values[batch.offsets[index] : batch.offsets[index + 1]] for index in self.mine])

    def _span_vectors(self, hidden: Tensor, batch: EncoderBatch) -> list[EncoderOutput]:
        """One vector per span of the group's texts: the mean of the span's hidden states.

        The dense layers of the checkpoint are applied only if the message names no pooling. Vectors are normalized if
        the message says so.
        Source: Guenther et al. 2024, arXiv:2409.04701 (late chunking).
        """
        starts = [(batch.offsets[index], self.items[index].spans) for index in self.mine]
        vectors = backend(hidden).means_of_spans(
            hidden, [(start + a, start + b) for start, spans in starts for a, b in spans]
        )
        if self.message.pooling is None and self.sentence is not None:
            vectors = self.sentence.project(vectors)
        vectors = normalize(vectors) if self.message.normalize else vectors
        ends = np.cumsum([len(spans) for _, spans in starts])
        return [EncoderOutput(part) for part in np.split(vectors.float().cpu().numpy(), ends[:-1])]

    def _vocabulary_weights(self, hidden: Tensor, batch: EncoderBatch, index: int) -> EncoderOutput:
        """The vocabulary tokens of one text with weights above zero.

        A weight is log(1 + max(0, logit)), the largest one or the sum over the text's tokens. Some checkpoints apply
        the logarithm more than once. Logits are computed for a few tokens at a time, because the logits of a whole
        batch take gigabytes. If one is not finite, the result is a single NaN.
        Source: Formal et al. 2021, arXiv:2109.10086 (SPLADE v2).
        """
        adapter, settings = batch.adapters[index] if batch.adapters else "", self.heads.vocabulary
        total: Tensor | None = None
        for rows in torch.split(hidden[batch.offsets[index] : batch.offsets[index + 1]], MAX_LOGITS_ROWS):
            logits = self.model.logits(rows, [adapter] * len(rows) if adapter else [])
            if settings.pooling == "max":
                # The logarithm is monotonic, so it is computed for the largest logits only.
                most = logits.amax(0)
                total = most if total is None else torch.maximum(total, most)
            else:
                part = _logarithms(logits, settings.logarithms).sum(0)
                total = part if total is None else total + part
        assert total is not None, "a text has at least one token"
        if not torch.isfinite(total).all():
            return EncoderOutput(np.full((1, 1), np.nan, np.float32))
        weights = (_logarithms(total, settings.logarithms) if settings.pooling == "max" else total).cpu().numpy()
        (found,) = np.nonzero(weights)
        return EncoderOutput(weights[found][None], found.tolist())

    def _spans(self, values: Tensor, batch: EncoderBatch) -> list[EncoderOutput]:
        """Divide values into one result per text of this group. values: [tokens of these texts, width]."""
        ends = np.cumsum([batch.lengths[index] for index in self.mine])
        return [EncoderOutput(part) for part in np.split(values.float().cpu().numpy(), ends[:-1])]


_TEXT_OUTPUTS = {
    "late_interaction": token_outputs.token_vectors,
    "max_sim": token_outputs.max_sim,
    "labelled_spans": token_outputs.labelled_spans,
    "labelled_classes": token_outputs.labelled_classes,
}
"""Task to function, for the tasks whose result is computed from the hidden states of one text."""


def _logarithms(logits: Tensor, count: int) -> Tensor:
    """Set negative logits to zero, then apply `log(1 + x)` to all logits, `count` times in a row."""
    weights = torch.relu(logits)
    for _ in range(count):
        weights = torch.log1p(weights)
    return weights


def _rows(values: Tensor) -> list[EncoderOutput]:
    """Make one result of each row. values: [texts, width]."""
    return [EncoderOutput(row[None]) for row in values.float().cpu().numpy()]


def _top_tokens(logits: Tensor, top_k: int, targets: list[int]) -> list[EncoderOutput]:
    """The most probable tokens for the mask of each text, with their probabilities.

    logits: [texts, vocab], at the masks. top_k: number of tokens.
    targets: if not empty, only these tokens are considered. Probabilities are relative to the whole vocabulary.
    """
    scores = torch.softmax(logits.float(), dim=-1)
    if targets:
        scores = scores[:, targets]
    values, indices = (found.cpu() for found in scores.topk(min(top_k, scores.shape[1])))
    token_ids = [[targets[index] for index in row] if targets else row for row in indices.tolist()]
    return [EncoderOutput(row[None], ids) for row, ids in zip(values.numpy(), token_ids, strict=True)]
