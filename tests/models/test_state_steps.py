"""The rows of a step run through a mixer in the right order and form (stepwise or in chunks).

A mixer with exact integer results shows every error."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from models.config import CHUNK_TOKENS, ShortConvolutionConfig
from models.layers.mixer import Mixer, Projections
from models.steps.batch import DecoderBatch
from models.steps.state_memory import ZERO_STATE, StateMemory
from models.steps.state_steps import plan_waves, run_waves, run_whole

CONFIG = ShortConvolutionConfig(channels=1, kernel_size=3)
"""Shape of a state with two values: the running sum of the tokens, and the number of tokens that ran in chunks."""
MODULUS = 8191.0


class RunningSum(Mixer):
    """A fake mixer: a linear recurrence over the tokens modulo a prime, with integers, so that results are exact."""

    config, width = CONFIG, 1

    def project(self, hidden: Tensor) -> Projections:
        return (hidden,)

    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        total, count = state[0].view(2).split(1)
        rows = [self._add(token, total) for token in projections[0]]
        count += len(rows)
        return torch.stack(rows)

    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        assert len(set(slots.tolist())) == len(slots), "two rows update one slot"
        return torch.stack(
            [
                self._add(token, states[0][slot].view(2)[:1])
                for token, slot in zip(projections[0], slots.tolist(), strict=True)
            ]
        )

    @staticmethod
    def _add(token: Tensor, total: Tensor) -> Tensor:
        total.copy_((3 * total + token) % MODULUS)
        return total.clone()

    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        return mixed

    def pack(self, packer, exact_packer) -> None:
        raise AssertionError("a mixer without weights is not packed")


def sums(tokens: Sequence[float]) -> list[float]:
    """The reference: the running sum after each token, computed one token after the other."""
    total, results = 0.0, []
    for token in tokens:
        total = (3 * total + token) % MODULUS
        results.append(total)
    return results


def batch(parts: Sequence[tuple[int, int, int, bool]]) -> DecoderBatch:
    """A batch of rows. parts: for each row, its number of tokens, the slot of the state before it, the slot of the
    state after it, and whether it is part of a prompt.
    """
    lengths = tuple(part[0] for part in parts)
    tokens = torch.zeros(sum(lengths), dtype=torch.int64)
    return DecoderBatch(
        tokens,
        tokens,
        lengths,
        lengths,
        tokens,
        tokens[:, None],
        state_sources=tuple(part[1] for part in parts),
        state_slots=tuple(part[2] for part in parts),
        chunked_rows=tuple(part[3] for part in parts),
    )


def run(memory: StateMemory, parts: Sequence[tuple[int, int, int, bool]], tokens: Sequence[float]) -> list[float]:
    mixed = run_waves(5, RunningSum(), (torch.tensor(tokens)[:, None],), memory, plan_waves(batch(parts)))
    assert mixed.dtype == torch.float32
    return mixed[:, 0].tolist()


def chunked_tokens(states: StateMemory) -> list[float]:
    """For each slot: the number of tokens that ran in chunks."""
    return states.states[5][0].flatten(1)[:, 1].tolist()


def memory(slots: int) -> StateMemory:
    """A state memory whose slots contain NaN, as values of earlier owners."""
    made = StateMemory({5: CONFIG}, slots, torch.device("cpu"))
    made.states[5][0].fill_(torch.nan)
    return made


def test_rows_of_all_kinds_in_one_step():
    states, text = memory(6), [float(token) for token in range(1, 200)]
    # A prompt with a snapshot inside, and another one.
    found = run(states, [(64, ZERO_STATE, 3, True), (10, 3, 0, True), (5, ZERO_STATE, 1, True)], text[:74] + text[:5])
    assert found == sums(text[:74]) + sums(text[:5])
    assert chunked_tokens(states)[:2] == [74, 5] and chunked_tokens(states)[3] == 64
    # Three rows: three generated tokens and a draft, one generated token, and a prompt that starts from the snapshot.
    tokens = [*text[74:77], 9.0, 8.0, *text[5:6], *text[64:70]]
    parts = [(3, 0, 0, False), (2, 0, 2, False), (1, 1, 1, False), (6, 3, 4, True)]
    drafted = [*text[:77], 9.0, 8.0]
    assert run(states, parts, tokens) == sums(drafted)[74:] + sums(text[:6])[5:] + sums(text[:70])[64:]
    # The draft was rejected, so its row continues from the state before the draft.
    assert run(states, [(1, 0, 0, False), (1, 4, 4, True)], [text[77], text[70]]) == [sums(text)[77], sums(text)[70]]


@pytest.mark.parametrize("seed", range(20))
def test_any_division_gives_the_sums_of_whole_texts(seed):
    rng = random.Random(seed)
    texts = [[float(rng.randrange(1000)) for _ in range(rng.randint(1, 260))] for _ in range(3)]
    prompts = [rng.randint(1, len(text)) for text in texts]
    done, found, states = [0, 0, 0], [[], [], []], memory(9)
    while any(done[row] < len(text) for row, text in enumerate(texts)):
        parts, tokens, owners = [], [], []
        for row in rng.sample(range(3), rng.randint(1, 3)):
            source = row if done[row] else ZERO_STATE
            for number in range(rng.randint(1, 3)):
                start = done[row]
                if start == len(texts[row]):
                    break
                end = min(start + rng.randint(1, 150), len(texts[row]))
                is_prompt = start < prompts[row]
                if is_prompt and end < prompts[row]:
                    end = min(-(-end // CHUNK_TOKENS) * CHUNK_TOKENS, prompts[row])
                end = min(end, prompts[row]) if is_prompt else end
                slot = 3 + 2 * row + number % 2
                parts.append((end - start, source, slot, is_prompt))
                tokens += texts[row][start:end]
                owners += [row] * (end - start)
                source, done[row] = slot, end
            if parts and parts[-1][2] == source:
                parts[-1] = (*parts[-1][:2], row, parts[-1][3])
        for row, value in zip(owners, run(states, parts, tokens) if parts else [], strict=True):
            found[row].append(value)
    assert found == [sums(text) for text in texts]
    assert chunked_tokens(states)[:3] == prompts


def test_whole_texts_start_from_zero():
    texts = [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]
    mixed = run_whole(RunningSum(), (torch.tensor([token for text in texts for token in text])[:, None],), (3, 1, 2))
    assert mixed[:, 0].tolist() == [value for text in texts for value in sums(text)]


def test_a_wrong_order_is_noticed():
    """Negative control: if rows run in the wrong order, a row reads a state that is not written yet."""
    states, parts = memory(2), [(64, ZERO_STATE, 0, True), (3, 0, 1, True)]
    (first, second), tokens = plan_waves(batch(parts)), torch.arange(67.0)[:, None]
    mixed = run_waves(5, RunningSum(), (tokens,), states, (second, first))
    assert mixed[:, 0].tolist() != sums(list(range(67)))


def test_slot_bytes_count_all_tensors():
    mixers = {5: CONFIG, 6: ShortConvolutionConfig(channels=10, kernel_size=4)}
    made = StateMemory(mixers, 7, torch.device("cpu"))
    size = sum(tensor.numel() * tensor.element_size() for tensors in made.states.values() for tensor in tensors)
    assert size == 7 * StateMemory.slot_bytes(mixers.values()) == 7 * 4 * (2 + 30)
