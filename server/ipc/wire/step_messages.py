"""Messages between two steps: results and statistics from a worker, and `Abort` to it."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.ipc.wire.encode_messages import Encoded
from server.ipc.wire.generate_messages import Finished, PromptScored, Tokens
from server.ipc.wire.message_base import Message

FailureCode = Literal["engine_error", "timeout", "request_too_large", "not_ready", "invalid_format"]


class Abort(Message, frozen=True):
    """Drop a row or an `Encode`, because its client disconnected, a stop string was found, or its result is not needed.

    Unknown ids are ignored. The worker sends no answer.
    """

    sequence_id: int


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A row or an `Encode` ended without a result. `message` is safe to show to the client."""

    sequence_id: int
    code: FailureCode
    message: str


class StepOutput(Message, frozen=True):
    """All results of one step. The order of events of a row is: prompts, tokens, finished.

    began, sent: when the step began and when this message was made, for the parts of a request's time.
    computing: ids of rows and `Encode`s that the step computes, even without results. An id is reported when its
        request starts, and again every 10 seconds (`REPORT_SECONDS` in `server.engine.sequences.events`). A reported
        request makes progress.
    """

    epoch: int
    tokens: list[Tokens] = []
    finished: list[Finished] = []
    encoded: list[Encoded] = []
    failed: list[Failed] = []
    prompts: list[PromptScored] = []
    computing: list[int] = []
    began: float = 0.0
    sent: float = 0.0


class StepTiming(msgspec.Struct, frozen=True, array_like=True):
    """Measurements of one step, for the histograms.

    rows, tokens, padding_tokens: numbers of rows, tokens and padding tokens in the batch.
    mask_wait_seconds: time spent waiting for grammar masks after the forward pass; None without grammars.
    beam_lag_tokens: for each running beam search that streams, the number of its tokens that are not certain yet.
    """

    model: str
    phase: Literal["prefill", "decode", "mixed", "encode"]
    seconds: float
    rows: int
    tokens: int
    padding_tokens: int = 0
    mask_wait_seconds: float | None = None
    beam_lag_tokens: list[int] = []


class Stats(Message, frozen=True):
    """Heartbeat of the worker's loop, with its statistics.

    running, waiting: present numbers of running and of waiting rows and `Encode`s.
    queue_tokens: number of tokens that wait.
    kv_blocks_used, kv_blocks_total: numbers of blocks by pool name, summed over all models.
    device_memory_bytes: memory in use by kind.
    state_bytes: memory of state slots of models with mixers: `sequences` and `snapshots`; empty without such models.
    host_bytes: host memory for KV blocks of the prefix cache: `used` and `total`; empty if no model has such memory.
    running_rows, waiting_rows: the numbers `running` and `waiting` by model. A model without any is absent.
    steps: all steps since the last message.
    The remaining fields count events since the last message:
    preemptions, wasted_tokens: preempted rows, and computed tokens that have to be computed again.
    prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and prompt tokens found there.
    drafts: by model, number of drafted tokens and number of accepted ones.
    host_blocks: KV blocks that were copied to host memory (`spilled`), back (`restored`), and copies that were dropped
        because their checksum was wrong (`damaged`). Empty if no model has such memory.
    """

    epoch: int
    running: int
    waiting: int
    queue_tokens: int
    kv_blocks_used: dict[str, int]
    kv_blocks_total: dict[str, int]
    device_memory_bytes: dict[str, int]
    steps: list[StepTiming] = []
    preemptions: int = 0
    wasted_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: dict[str, tuple[int, int]] = {}
    state_bytes: dict[str, int] = {}
    running_rows: dict[str, int] = {}
    waiting_rows: dict[str, int] = {}
    host_blocks: dict[str, int] = {}
    host_bytes: dict[str, int] = {}
