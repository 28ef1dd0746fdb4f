"""`RunningBeams`, which puts the tokens of beams together only when they are read, equals beams extended one by one."""

from __future__ import annotations

import numpy as np
import pytest

from server.engine.beams.running_beams import NEVER, Beam, RunningBeams
from server.ipc.wire.logprobs import TokenLogprob

BEAMS = 4


def entry(row: int, token: int) -> TokenLogprob:
    return TokenLogprob(token, -float(row), [])


def extended(beams: list[Beam], parents: list[int], tokens: list[int], scores, reported: bool) -> list[Beam]:
    """Extend beams one by one, as the reference. parents: index of the parent of each new beam."""
    made = []
    for parent, token, score in zip(parents, tokens, scores, strict=True):
        logprobs = [*beams[parent].logprobs, entry(parent, token)] if reported else []
        made.append(Beam([*beams[parent].tokens, token], score, logprobs, bool(score > NEVER / 2)))
    return made


@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("read_every", [1, 3, 100])
def test_beams_equal_those_extended_one_by_one(read_every: int, reported: bool) -> None:
    chance = np.random.default_rng(read_every)
    slow = [Beam([7], np.float32(0.0), [entry(0, 7)] if reported else [])]
    fast = RunningBeams(slow)
    for step in range(1, 20):
        parents = chance.integers(0, len(slow), BEAMS).tolist()
        tokens = chance.integers(0, 50, BEAMS).tolist()
        scores = chance.normal(size=BEAMS).astype(np.float32) + np.where(chance.random(BEAMS) < 0.2, NEVER, 0)
        scores = scores.astype(np.float32)
        slow = extended(slow, parents, tokens, scores, reported)
        fast.extend(parents, tokens, scores, entry if reported else None)
        assert fast.last_tokens == tokens and len(fast) == BEAMS
        if step % read_every == 0:
            assert fast.beams() == slow
    assert fast.texts == [beam.tokens for beam in slow] and fast.beams() == slow
    assert fast.last_tokens == [beam.tokens[-1] for beam in slow]


def test_texts_that_were_read_do_not_change() -> None:
    beams = RunningBeams([Beam([3]), Beam([4])])
    before = beams.texts
    beams.extend([1, 1], [5, 6], np.zeros(2, dtype=np.float32), None)
    assert beams.texts == [[4, 5], [4, 6]] and before == [[3], [4]]
