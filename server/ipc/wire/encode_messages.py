"""Messages about encoding: requests to a worker, and the result of each item."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.ipc.wire.descriptions import Pooling
from server.ipc.wire.message_base import Message

EncodeTask = Literal[
    "embed",
    "embed_tokens",
    "embed_spans",
    "embed_sparse",
    "late_interaction",
    "max_sim",
    "classify",
    "classify_tokens",
    "labelled_spans",
    "labelled_classes",
    "answer_logits",
    "fill_mask",
    "log_mel",
    "ctc",
]
"""What an `Encode` computes for each item.

- `embed`, `embed_tokens`, `embed_spans`: a vector of the text, of each token, or of each span of tokens.
- `embed_sparse`: weights of vocabulary entries, or of the text's tokens.
- `late_interaction`: a vector of each token, for late interaction. `max_sim`: the score of these vectors with those of
  a query.
- `classify`, `classify_tokens`: class logits of the text, or of each token.
- `labelled_spans`: entities in the text that have one of the given labels. `labelled_classes`: the logit of each given
  label for the whole text.
- `answer_logits`: logits of given next tokens.
- `fill_mask`: the most probable tokens for a mask.
- `log_mel`: log-mel frames of audio samples; no encoder runs.
- `ctc`: the likeliest label of each part of a recording.
"""
FLOAT_BYTES = 4
"""Bytes of one float32 number in the audio of a message."""
SAMPLES_PER_TOKEN = 320
"""Audio samples of one source token of a speech model: 20 ms at 16 kHz."""


class EncodeItem(msgspec.Struct, frozen=True, array_like=True):
    """One text, or one recording, of an `Encode`.

    token_ids: token ids of the text; empty for a recording.
    token_type_ids: token types, or None for all zero.
    mask_index: index of the mask token, for `fill_mask`.
    samples: audio in place of a text: float32, little-endian, mono, 16 kHz. For `log_mel`, padded by reflection; for
        `ctc`, scaled as the checkpoint asks.
    prompt_tokens: number of leading tokens that do not count for the vector of the text, or get no vector of their own.
    spans: (first token, end) of each span for `embed_spans`, and of each word for `labelled_spans`.
    label_indices: index of the token before each label, for `labelled_spans` and `labelled_classes`.
    attended_tokens: number of leading tokens to which all tokens attend; 0 if all tokens attend to all tokens.
    """

    token_ids: list[int]
    token_type_ids: list[int] | None = None
    mask_index: int | None = None
    samples: bytes = b""
    prompt_tokens: int = 0
    spans: list[tuple[int, int]] = []
    label_indices: list[int] = []
    attended_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Cost of the item in tokens, for token budgets. A recording costs one token for each 320 samples."""
        return len(self.token_ids) or -(-len(self.samples) // (FLOAT_BYTES * SAMPLES_PER_TOKEN))


class Encode(Message, frozen=True):
    """Run texts or recordings through an encoder. Each item is scheduled separately and answered by one `Encoded`.

    model: name of a model, or of one of its adapters.
    task: the result to compute. Logits are returned without softmax.
    items: the texts or recordings.
    pooling: pooling of `embed`; None means the pooling of the checkpoint, with its dense layers. With "mean",
        `embed_spans` leaves out the dense layers.
    normalize: scale the vectors of `embed`, `embed_tokens` and `embed_spans` to length 1.
    top_k: number of tokens to return for `fill_mask`.
    target_ids: for `fill_mask`, the only tokens that are considered, or empty for all; for `answer_logits`, the tokens
        whose logits are returned.
    deadline: time at which unfinished items fail with `timeout`, or None.
    start_deadline: time at which the HTTP process ends the request if no item has started; None without a limit, or if
        one has started.
    key: opaque text that stands for the API key of the call; empty without keys.
    call_id: id of the call. Calls take turns in the worker's queue. 0: this message counts as a separate call.
    skipped_ids: tokens that get no vector, for `late_interaction` and `max_sim`, or no weight, for `embed_sparse` by a
        model with weights of tokens.
    query: vectors of the query, for `max_sim`: float32, little-endian, [query vectors, width].
    threshold: lowest probability of an entity, for `labelled_spans`.
    """

    sequence_id: int
    model: str
    task: EncodeTask
    items: list[EncodeItem]
    pooling: Pooling | None = None
    normalize: bool = True
    top_k: int = 5
    target_ids: list[int] = []
    deadline: float | None = None
    call_id: int = 0
    skipped_ids: list[int] = []
    query: bytes = b""
    threshold: float = 0.5
    start_deadline: float | None = None
    key: str = ""

    @property
    def num_tokens(self) -> int:
        """Cost of all items in tokens, for token budgets."""
        return sum(item.num_tokens for item in self.items)


class Encoded(msgspec.Struct, frozen=True, array_like=True):
    """Result of one item of an `Encode`.

    index: index of the item.
    values: float32, little-endian, [rows, width].
        embed, classify: one row, as wide as the vector or the number of labels.
        embed_tokens, classify_tokens: a row for each token.
        embed_spans: a row for each span.
        late_interaction: a row for each token that has a vector.
        max_sim: one number, the sum over the query vectors of the best product with a vector of the text.
        labelled_spans: a row for each entity: first word, last word, label, probability.
        answer_logits: one row, the logit of each of `Encode.target_ids`.
        embed_sparse: one row with the weights above zero, in the order of the vocabulary.
        fill_mask: one row of probabilities in descending order.
        log_mel: a row for each frame.
        ctc: a row for each part of the recording, the log-probability of its likeliest label.
    rows: number of rows of `values`.
    token_ids: the tokens to which the probabilities (`fill_mask`) or weights (`embed_sparse`) belong, or the labels
        (`ctc`); empty for other tasks.
    """

    sequence_id: int
    index: int
    values: bytes
    rows: int = 1
    token_ids: list[int] = []
