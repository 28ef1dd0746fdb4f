"""What is read off the hidden states of a batch of texts: vectors or logits, of a whole text or of each token.

Knows the model and what an `Encode` asks for; no queue, no events. Texts that ask for the same share one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import EncoderBatch
from models.heads import normalize, place, pool
from models.sentence import SentenceHead
from server.engine.runner import Model
from server.ipc.messages import Encode, EncodeItem


@dataclass(frozen=True, slots=True)
class Readout:
    """What came of one text. values: [rows, width], float32. token_ids: the words that they are of, for `fill_mask`."""

    values: NDArray[np.float32]
    token_ids: list[int] = field(default_factory=list)


def read_out(
    model: Model,
    sentence: SentenceHead | None,
    asked: Sequence[tuple[Encode, EncodeItem]],
    hidden: Tensor,
    batch: EncoderBatch,
) -> list[Readout]:
    """One answer for each text of the batch. hidden: what `encode` made of it, model dtype."""
    kinds = [_kind(message) for message, _ in asked]
    found: dict[int, Readout] = {}
    for kind in dict.fromkeys(kinds):
        mine = [index for index, one in enumerate(kinds) if one == kind]
        found |= zip(mine, _read(model, sentence, [asked[index] for index in mine], mine, hidden, batch), strict=True)
    return [found[index] for index in range(len(asked))]


def places(
    model: Model, sentence: SentenceHead | None, asked: Sequence[tuple[Encode, EncodeItem]], batch: EncoderBatch
) -> tuple[int, ...] | None:
    """The one token of each text that its answer is made of; None where some answer is made of more."""
    found: list[int] = []
    of_classes: list[int] | None = None
    for index, (message, item) in enumerate(asked):
        at: int | None = None
        match message.task:
            case "embed":
                modes = sentence.config.pooling if message.pooling is None and sentence is not None else ()
                mode = message.pooling or (modes[0] if len(modes) == 1 else "mean")
                at = place(mode, batch.lengths[index], item.prompt_tokens)
            case "classify":
                of_classes = of_classes or model.places_of_classes(batch)
                at = None if of_classes is None else of_classes[index]
            case "fill_mask":
                at = item.mask_index
        if at is None:
            return None
        found.append(at)
    return tuple(found)


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


def _read(
    model: Model,
    sentence: SentenceHead | None,
    asked: list[tuple[Encode, EncodeItem]],
    mine: list[int],
    hidden: Tensor,
    batch: EncoderBatch,
) -> list[Readout]:
    """The answers of the texts numbered `mine`, which all ask for what the first one does."""
    message, _ = asked[0]
    adapters = [batch.adapters[index] for index in mine] if batch.adapters else []
    match message.task:
        case "embed":
            skipped = [0] * len(batch.lengths)
            for index, (_, item) in zip(mine, asked, strict=True):
                skipped[index] = item.prompt_tokens
            if message.pooling is None and sentence is not None:
                vectors = sentence(hidden, batch, skipped)
            else:
                vectors = pool(hidden, batch, message.pooling or "mean", skipped)
            vectors = vectors if len(mine) == len(vectors) else vectors[mine]
            return _rows(normalize(vectors) if message.normalize else vectors)
        case "embed_tokens":
            tokens = _tokens_of(mine, hidden, batch).float()
            return _spans(normalize(tokens) if message.normalize else tokens, mine, batch)
        case "classify":
            return _rows(model.classify(hidden, batch)[mine])
        case "classify_tokens":
            return _spans(_tokens_of(mine, model.classify_tokens(hidden, batch), batch), mine, batch)
        case "log_mel":
            raise AssertionError("sound is not read by an encoder of texts")
        case "fill_mask":
            masks = mine
            if batch.places is None:
                masks = [batch.offsets[at] + (item.mask_index or 0) for at, (_, item) in zip(mine, asked, strict=True)]
            return _words(model.logits(hidden[masks], adapters), message.top_k, message.target_ids)


def _tokens_of(mine: list[int], hidden: Tensor, batch: EncoderBatch) -> Tensor:
    """The rows of some texts of the batch, one text after the other."""
    return torch.cat([hidden[batch.offsets[index] : batch.offsets[index + 1]] for index in mine])


def _rows(values: Tensor) -> list[Readout]:
    """[texts, width]: one row for each text."""
    return [Readout(row[None]) for row in values.float().cpu().numpy()]


def _spans(values: Tensor, mine: list[int], batch: EncoderBatch) -> list[Readout]:
    """[tokens of these texts, width]: a row for each token of each text."""
    ends = np.cumsum([batch.lengths[index] for index in mine])
    return [Readout(part) for part in np.split(values.float().cpu().numpy(), ends[:-1])]


def _words(logits: Tensor, top_k: int, targets: list[int]) -> list[Readout]:
    """The likeliest words, of `targets` if there are any; each with its probability among all. [texts, vocab]."""
    scores = torch.softmax(logits.float(), dim=-1)
    if targets:
        scores = scores[:, targets]
    values, places = (found.cpu() for found in scores.topk(min(top_k, scores.shape[1])))
    words = [[targets[place] for place in row] if targets else row for row in places.tolist()]
    return [Readout(row[None], ids) for row, ids in zip(values.numpy(), words, strict=True)]
