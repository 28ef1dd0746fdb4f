"""Rules for the timestamp tokens of a speech model (Whisper).

Same rules as `transformers` 5 (`WhisperTimeStampLogitsProcessor`), so that results agree token for token:

- The first token is a timestamp, not later than `max_initial`. The token "no timestamps" is banned.
- The timestamp at the end of a segment is followed by the start of the next segment, or by the end of the text. Two
  timestamps in a row are followed by text.
- Timestamps never decrease. Only the start of a segment may equal the end of the previous one.
- If all timestamps together are more probable than any other token, a timestamp is generated.

Source: Radford et al. 2022, arXiv:2212.04356, sections 2.3 and 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from server.ipc.wire.params import TimestampRules


@dataclass(frozen=True, slots=True)
class TimestampRow:
    """One row of logits with timestamps.

    index: row of the logits. rules: token ids of the timestamps.
    end_id: end-of-text token. new: generated tokens.
    """

    index: int
    rules: TimestampRules
    end_id: int
    new: Sequence[int]


def apply_timestamp_rules(logits: Tensor, rows: Sequence[TimestampRow]) -> None:
    """Set the logits of forbidden tokens to -inf, in place. logits: [rows, vocab], float32."""
    vocab, device = logits.shape[1], logits.device
    bounds = torch.tensor([[row.rules.first_id, *_allowed(row, vocab)] for row in rows], device=device)
    first, text_from, time_from, time_to = bounds[:, :, None].unbind(1)
    ids = torch.arange(vocab, device=device)
    is_time = ids >= first
    banned = torch.where(is_time, (ids < time_from) | (ids > time_to), (ids < text_from) | (ids == first - 1))
    where = torch.tensor([row.index for row in rows], device=device)
    scores = logits[where].masked_fill(banned, -torch.inf)
    likely = scores.log_softmax(dim=-1)
    times = likely.masked_fill(~is_time, -torch.inf).logsumexp(dim=-1)
    text = likely.masked_fill(is_time, -torch.inf).amax(dim=-1)
    logits[where] = scores.masked_fill(~is_time & (times > text)[:, None], -torch.inf)


def _allowed(row: TimestampRow, vocab: int) -> tuple[int, int, int]:
    """Limits of the allowed tokens, as token ids: first text token, first timestamp and last timestamp.

    If no timestamp is allowed, the first timestamp is `vocab`. Without a limit, the last timestamp is `vocab`.

    vocab: number of token ids.
    """
    rules, new = row.rules, row.new
    first = rules.first_id
    if not new:
        return first, first, vocab if rules.max_initial is None else first + rules.max_initial
    last = next((token for token in reversed(new) if token >= first), None)
    after_time = new[-1] >= first
    if after_time and (len(new) < 2 or new[-2] >= first):
        return 0, vocab, vocab
    if after_time:
        return row.end_id, new[-1], vocab
    return 0, first if last is None else last + 1, vocab
