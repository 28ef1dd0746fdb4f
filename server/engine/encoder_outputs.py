"""What is read off the hidden states of a batch of texts: vectors or logits, of a whole text or of each token.

Knows the model and what an `Encode` asks for; no queue, no events. Texts that ask for the same share one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import EncoderBatch
from models.layers.pooling import normalize, output_positions, pool
from models.layers.sentence_head import SentenceHead
from server.engine.runner import TransformerProtocol
from server.ipc.messages import Encode, EncodeItem


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What came of one text. values: [rows, width], float32. token_ids: the words that they are of, for `fill_mask`."""

    values: NDArray[np.float32]
    token_ids: list[int] = field(default_factory=list)


def encoder_outputs(
    model: TransformerProtocol,
    sentence: SentenceHead | None,
    asked: Sequence[tuple[Encode, EncodeItem]],
    batch: EncoderBatch,
) -> list[EncoderOutput]:
    """Encode a batch of texts, and give one answer for each. sentence: how vectors are made; the mean without it."""
    items = [item for _, item in asked]
    readings: dict[Hashable, _OutputGroup] = {}
    for index, (message, _) in enumerate(asked):
        readings.setdefault(_kind(message), _OutputGroup(model, sentence, message, items, [])).mine.append(index)
    batch = replace(batch, output_positions=_output_positions(readings.values(), batch))
    hidden = model.encode(batch)
    found: dict[int, EncoderOutput] = {}
    for reading in readings.values():
        found |= zip(reading.mine, reading.read(hidden, batch), strict=True)
    return [found[index] for index in range(len(asked))]


def _kind(message: Encode) -> Hashable:
    """Equal for requests that one call can answer."""
    match message.task:
        case "embed":
            return message.task, message.pooling, message.normalize
        case "embed_tokens":
            return message.task, message.normalize
        case "classify" | "classify_tokens" | "log_mel":
            return message.task
        case "fill_mask":
            return message.task, message.top_k, tuple(message.target_ids)


def _output_positions(readings: Iterable[_OutputGroup], batch: EncoderBatch) -> tuple[int, ...] | None:
    """The one token of each text that its answer is made of; None where some answer is made of more."""
    found: dict[int, int] = {}
    for reading in readings:
        positions = reading.output_positions(batch)
        if positions is None:
            return None
        found |= {index: positions[index] for index in reading.mine}
    return tuple(found[index] for index in range(len(found)))


@dataclass(frozen=True, slots=True)
class _OutputGroup:
    """What texts that ask for the same share. items: all texts of the batch. mine: the numbers of those that ask."""

    model: TransformerProtocol
    sentence: SentenceHead | None
    message: Encode
    items: list[EncodeItem]
    mine: list[int]

    def output_positions(self, batch: EncoderBatch) -> tuple[int, ...] | None:
        """The one token of each text of the batch that `read` reads; None if it reads more."""
        match self.message.task:
            case "embed":
                if self.message.pooling is None and self.sentence is not None:
                    return self.sentence.output_positions(batch, self._skipped())
                return output_positions(batch, self.message.pooling or "mean", self._skipped())
            case "classify":
                return self.model.output_positions(batch)
            case "fill_mask":
                return self._masks()
            case _:
                return None

    def read(self, hidden: Tensor, batch: EncoderBatch) -> list[EncoderOutput]:
        """The answers of the texts that ask. hidden: what `encode` made of the batch, model dtype."""
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
            case "classify":
                return _rows(self.model.classify(hidden, batch)[mine])
            case "classify_tokens":
                return self._spans(self._tokens(self.model.classify_tokens(hidden, batch), batch), batch)
            case "fill_mask":
                adapters = [batch.adapters[index] for index in mine] if batch.adapters else []
                masks = batch.one_of_each(hidden, self._masks())[mine]
                return _words(self.model.logits(masks, adapters), message.top_k, message.target_ids)
            case "log_mel":
                raise AssertionError("sound is not read by an encoder of texts")

    def _skipped(self) -> list[int]:
        return [item.prompt_tokens for item in self.items]

    def _masks(self) -> tuple[int, ...]:
        """Where each text has its mask; those that ask for something else have none."""
        return tuple(item.mask_index or 0 for item in self.items)

    def _tokens(self, values: Tensor, batch: EncoderBatch) -> Tensor:
        """Of the texts that ask, one after the other. values: [tokens, ...]."""
        return torch.cat([values[batch.offsets[index] : batch.offsets[index + 1]] for index in self.mine])

    def _spans(self, values: Tensor, batch: EncoderBatch) -> list[EncoderOutput]:
        """[tokens of the texts that ask, width]: a row for each token of each text."""
        ends = np.cumsum([batch.lengths[index] for index in self.mine])
        return [EncoderOutput(part) for part in np.split(values.float().cpu().numpy(), ends[:-1])]


def _rows(values: Tensor) -> list[EncoderOutput]:
    """[texts, width]: one row for each text."""
    return [EncoderOutput(row[None]) for row in values.float().cpu().numpy()]


def _words(logits: Tensor, top_k: int, targets: list[int]) -> list[EncoderOutput]:
    """The likeliest words, of `targets` if there are any; each with its probability among all. [texts, vocab]."""
    scores = torch.softmax(logits.float(), dim=-1)
    if targets:
        scores = scores[:, targets]
    values, words = (found.cpu() for found in scores.topk(min(top_k, scores.shape[1])))
    token_ids = [[targets[word] for word in row] if targets else row for row in words.tolist()]
    return [EncoderOutput(row[None], ids) for row, ids in zip(values.numpy(), token_ids, strict=True)]
