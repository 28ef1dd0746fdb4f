"""A minimal engine for tests: sequences with a paged KV cache whose blocks are allocated in random order."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from models.backends.logits import DecoderOutput, LogitsRequest
from models.config import CHUNK_TOKENS, SamplesEmbeddingConfig
from models.steps.batch import AudioBatch, DecoderBatch, EncoderBatch, SourceBatch, WaveformBatch
from models.steps.kv_cache import KVCache
from models.steps.state_memory import ZERO_STATE, StateMemory
from models.transformer import Transformer


class Pool:
    """A KV cache, and the blocks of it that each sequence has.

    Unused slots contain large values, so that reading one changes the result.
    """

    def __init__(self, layers, num_blocks: int, block_size: int, model: Transformer, seed: int, dtype=None) -> None:
        self.cache = KVCache(layers, num_blocks, block_size, dtype or model.attention_dtype, model.device)
        for tensor in self.cache.tensors:
            tensor.fill_(50.0)
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self.blocks: dict[int, list[int]] = {}

    def slots(self, row: int, start: int, end: int) -> list[int]:
        owned, size = self.blocks.setdefault(row, []), self.cache.block_size
        while len(owned) * size < end:
            owned.append(self._free.pop())
        return [owned[position // size] * size + position % size for position in range(start, end)]

    def tables(self, rows, device) -> torch.Tensor:
        width = max(len(self.blocks[row]) for row in rows)
        padded = [self.blocks[row] + [0] * (width - len(self.blocks[row])) for row in rows]
        return torch.tensor(padded, device=device)


class Rows:
    """Sequences (rows) of a decoder. A test feeds each of them any number of tokens per step.

    Mixers take one token after the other, except from a multiple of `CHUNK_TOKENS` to the next or to the end of the
    prompt.

    sources: the source text or recording of each row, for an encoder-decoder.
    adapters: the name of each row's adapter.
    dtype: dtype of the KV cache. None: the dtype in which attention computes.
    """

    def __init__(
        self,
        model: Transformer,
        sources=None,
        num_blocks: int = 128,
        block_size: int = 4,
        seed: int = 0,
        adapters: tuple[str, ...] = (),
        dtype: torch.dtype | None = None,
    ):
        self.model, self.device = model, model.device
        self.pool = Pool(model.self_attention_layers(), num_blocks, block_size, model, seed, dtype)
        self.lengths: dict[int, int] = {}
        self.adapters = tuple(adapters)
        self.prompt_lens: dict[int, int] = {}
        self.states = StateMemory(model.mixers(), num_blocks, self.device) if model.mixers() else None
        for tensor in self.state_tensors():
            tensor.fill_(50.0)
        self.cross = None
        if sources is not None:
            self.cross = Pool(model.cross_attention_layers(), num_blocks, block_size, model, seed + 1, dtype)
            batch = replace(source_batch(model, sources), adapters=self.adapters)
            self.source_lens = dict(enumerate(batch.lengths))
            hidden = model.encode(batch)
            slots = [slot for row, length in self.source_lens.items() for slot in self.cross.slots(row, 0, length)]
            model.write_cross(hidden, torch.tensor(slots, device=self.device), self.cross.cache, batch)

    def expect(self, prompts) -> None:
        """Set the prompt length of each row. Later tokens count as generated."""
        self.prompt_lens = {row: len(prompt) for row, prompt in enumerate(prompts)}

    def feed(self, tokens: dict[int, list[int]], output_lens: dict[int, int] | None = None) -> list[torch.Tensor]:
        """Run the next tokens of some rows in one step.

        Returns the hidden states of each row, [seq, hidden]: of all its tokens, or of its last `output_lens`.
        """
        lens = tuple(map(len, tokens.values())) if output_lens is None else tuple(output_lens[row] for row in tokens)
        return list(self.decode(tokens, output_lens).hidden.split(lens))

    @torch.inference_mode()
    def decode(
        self,
        tokens: dict[int, list[int]],
        output_lens: dict[int, int] | None = None,
        logits: LogitsRequest | None = None,
    ) -> DecoderOutput:
        """Run one step like `feed`, and return the whole output of the decoder."""
        rows = list(tokens)
        spans = {row: (self.lengths.get(row, 0), self.lengths.get(row, 0) + len(tokens[row])) for row in rows}
        slots = [slot for row in rows for slot in self.pool.slots(row, *spans[row])]
        source = {}
        if self.cross is not None:
            source = {
                "source_lens": tuple(self.source_lens[row] for row in rows),
                "source_block_tables": self.cross.tables(rows, self.device),
            }
        if self.states is not None:
            source |= {
                "state_sources": tuple(self.state_slot(row) if spans[row][0] else ZERO_STATE for row in rows),
                "state_slots": tuple(self.state_slot(row) for row in rows),
                "chunked_rows": tuple(self._is_chunked(row, *spans[row]) for row in rows),
            }
        batch = DecoderBatch(
            token_ids=torch.tensor([token for row in rows for token in tokens[row]], device=self.device),
            positions=torch.tensor([position for row in rows for position in range(*spans[row])], device=self.device),
            query_lens=tuple(len(tokens[row]) for row in rows),
            key_lens=tuple(spans[row][1] for row in rows),
            slot_mapping=torch.tensor(slots, device=self.device),
            block_tables=self.pool.tables(rows, self.device),
            adapters=tuple(self.adapters[row] for row in rows) if self.adapters else (),
            rope_lengths=torch.tensor(
                [max(self.prompt_lens.get(row, 0), position + 1) for row in rows for position in range(*spans[row])],
                device=self.device,
            ),
            output_lens=None if output_lens is None else tuple(output_lens[row] for row in rows),
            **source,
        )
        cross_cache = self.cross.cache if self.cross else None
        output = self.model.decode(batch, self.pool.cache, cross_cache, logits, self.states)
        self.lengths |= {row: end for row, (_, end) in spans.items()}
        return output

    def state_tensors(self) -> list[torch.Tensor]:
        """The tensors that hold the states of mixers, each [slots, ...]."""
        return [] if self.states is None else [tensor for tensors in self.states.states.values() for tensor in tensors]

    def state_slot(self, row: int) -> int:
        """The index of the slot with a row's state.

        Rows have slots in reverse order, so that row and slot usually differ.
        """
        assert self.states is not None
        return self.states.num_slots - 1 - row

    def _is_chunked(self, row: int, start: int, end: int) -> bool:
        return start % CHUNK_TOKENS == 0 and (end % CHUNK_TOKENS == 0 or end == self.prompt_lens.get(row))


def encoder_batch(texts, device) -> EncoderBatch:
    ids = torch.tensor([token for text in texts for token in text], device=device)
    return EncoderBatch(ids, tuple(len(text) for text in texts))


def audio_batch(recordings, device) -> AudioBatch:
    """A batch of recordings as log-mel frames. recordings: one tensor, [frames, num_mels], per recording."""
    return AudioBatch(torch.cat(recordings).to(device), tuple(len(frames) for frames in recordings))


def waveform_batch(model: Transformer, recordings) -> WaveformBatch:
    """A batch of recordings as samples. recordings: one tensor, [samples], per recording."""
    assert model.config.encoder is not None
    embedding = model.config.encoder.embedding
    assert isinstance(embedding, SamplesEmbeddingConfig)
    lengths = tuple(map(len, recordings))
    return WaveformBatch(torch.cat(recordings).to(model.device), lengths, tuple(map(embedding.num_tokens, lengths)))


def source_batch(model: Transformer, sources) -> SourceBatch:
    """A batch of sources: texts, or recordings as log-mel frames or as samples, whichever the model reads."""
    if not torch.is_tensor(sources[0]):
        return encoder_batch(sources, model.device)
    return waveform_batch(model, sources) if sources[0].ndim == 1 else audio_batch(sources, model.device)


def one_shot(rows: Rows, texts) -> list[torch.Tensor]:
    """Feed all texts completely in one step."""
    rows.expect(texts)
    return rows.feed(dict(enumerate(texts)))


def chunked(rows: Rows, texts, seed: int = 0) -> list[torch.Tensor]:
    """In each step, feed random rows a chunk of random length, from a single token on."""
    rows.expect(texts)
    draw = random.Random(seed)
    done, parts = dict.fromkeys(range(len(texts)), 0), {row: [] for row in range(len(texts))}
    while any(done[row] < len(text) for row, text in enumerate(texts)):
        open_rows = [row for row, text in enumerate(texts) if done[row] < len(text)]
        draw.shuffle(open_rows)
        step = {}
        for row in open_rows[: draw.randint(1, len(open_rows))]:
            step[row] = texts[row][done[row] : done[row] + draw.choice([1, 1, 2, 3, 7])]
            done[row] += len(step[row])
        for row, hidden in zip(step, rows.feed(step), strict=True):
            parts[row].append(hidden)
    return [torch.cat(parts[row]) for row in range(len(texts))]


def one_by_one(rows: Rows, texts) -> list[torch.Tensor]:
    """Feed one token of every unfinished row in each step."""
    rows.expect(texts)
    parts = [[] for _ in texts]
    for position in range(max(map(len, texts))):
        step = {row: [text[position]] for row, text in enumerate(texts) if position < len(text)}
        for row, hidden in zip(step, rows.feed(step), strict=True):
            parts[row].append(hidden)
    return [torch.cat(part) for part in parts]


def greedy(rows: Rows, prompts, count: int) -> list[list[int]]:
    """Generate `count` tokens of every row with greedy decoding."""
    rows.expect(prompts)
    step, answers = dict(enumerate(prompts)), [[] for _ in prompts]
    for _ in range(count):
        last = torch.stack([hidden[-1] for hidden in rows.feed(step)])
        for row, token in enumerate(rows.model.logits(last).argmax(-1).tolist()):
            answers[row].append(token)
        step = {row: [answer[-1]] for row, answer in enumerate(answers)}
    return answers
