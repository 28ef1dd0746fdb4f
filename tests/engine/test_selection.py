"""Token selection: candidates equal a plain computation, and a batch of beam searches equals single ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from models.backends.choice import backend
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from server.engine.beams.beam_search import Beam, BeamSearch, advance_together
from server.engine.choosing import candidates, selection
from server.engine.choosing.logits_processors import process
from server.engine.sequences.sequence import CachedSequence, SequenceGroup
from server.ipc.wire.params import TimestampRules
from tests.engine.stored_logits import StoredLogits
from tests.ipc.one_row import one_row

VOCAB, BEAMS, STEPS = 400, 4, 3
CPU = torch.device("cpu")
SETTINGS = {
    "plain": {},
    "bad words": {"bad_words_ids": [[5], [6, 7]]},
    "repetition": {"repetition_penalty": 0.5},
    "no repetition": {"repetition_penalty": 1.7},
    "counts": {"presence_penalty": 0.5, "frequency_penalty": -0.3},
    "biased": {"logit_bias": {7: 3.0, 9: -4.0}},
    "allowed": {"allowed_token_ids": [1, 2, 30, 31, 32]},
    "no bigrams": {"no_repeat_ngram_size": 2},
    "not yet": {"min_new_tokens": 10},
    "forced end": {"max_new_tokens": STEPS + 1, "forced_eos_token_id": 2},
    "renormalized": {"renormalize_logits": True, "suppress_token_ids": list(range(40, 300))},
    "renormalized repetition": {"renormalize_logits": True, "repetition_penalty": 0.6},
    "times": {"timestamps": TimestampRules(first_id=300, max_initial=20)},
    "reported": {"logprobs": True, "top_logprobs": 3, "repetition_penalty": 1.2},
}


def group_with_tokens(number: int, settings: dict) -> SequenceGroup:
    """A group with random beams, each with `STEPS` new tokens. number: id, and seed of the random tokens."""
    params = {"max_new_tokens": 20, "num_beams": BEAMS, "end_token_ids": [2], **settings}
    message = one_row(number, "m", [5, 6], [1], **params)
    request = SequenceGroup(message, message.rows[0], True, 0.0)
    chance = random.Random(number)
    made = [[chance.randrange(3, 12) for _ in range(STEPS)] for _ in range(BEAMS)]
    request.sequences = [CachedSequence([1, *tokens]) for tokens in made]
    assert request.beams is not None
    request.beams.running = [Beam(tokens, np.float32(-chance.random() * 9)) for tokens in made]
    request.beams.length = STEPS
    return request


def found(logits: torch.Tensor, requests: list[SequenceGroup]) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.clone()
    top_k = backend(logits).logits_top_k(logits, *selection.logits_request(requests))
    return candidates.find_candidates(logits, top_k, requests)


def expected(logits: torch.Tensor, requests: list[SequenceGroup]) -> torch.Tensor:
    scores = logits.log_softmax(dim=-1)
    rows = [row for request in requests for row in candidates._processor_rows(request, 0)]
    process(scores, rows)
    again = [index for index, row in enumerate(rows) if row.params.renormalize_logits]
    scores[again] = scores[again].log_softmax(dim=-1)
    return scores


def candidates_equal_reference(requests: list[SequenceGroup]) -> bool:
    logits = torch.randn(BEAMS * len(requests), VOCAB, generator=torch.Generator().manual_seed(2)) * 4
    values, tokens = found(logits, requests)
    scores = expected(logits, requests)
    wanted = scores.topk(values.shape[1], dim=-1).values
    is_close = torch.isclose(values, wanted, atol=1e-5, rtol=1e-5)
    own = scores.gather(1, tokens)
    return bool(is_close.all() and torch.isclose(own, wanted, atol=1e-5, rtol=1e-5).all())


@pytest.mark.parametrize("name", SETTINGS)
def test_candidates_equal_the_reference(name):
    assert candidates_equal_reference([group_with_tokens(number, SETTINGS[name]) for number in range(3)])


def test_all_settings_in_one_batch():
    assert candidates_equal_reference(
        [group_with_tokens(number, settings) for number, settings in enumerate(SETTINGS.values())]
    )


def test_candidates_of_raw_logits_are_asked_for_only_if_they_are_used():
    plain, changed, reported = (group_with_tokens(0, SETTINGS[name]) for name in ("plain", "bad words", "reported"))
    assert plain.beams is not None and plain.beams.num_candidates == 2 * BEAMS
    assert selection.logits_request([plain]) == LogitsRequest(2 * BEAMS, True)
    assert selection.logits_request([plain, changed]) == LogitsRequest(2 * BEAMS, True)
    assert selection.logits_request([changed]) == LogitsRequest(1, True)
    assert selection.logits_request([changed, reported]) == LogitsRequest(3, True)


@pytest.mark.parametrize("name", ["repetition", "renormalized repetition", "forced end"])
def test_logits_in_place_of_log_probabilities_are_noticed(monkeypatch, name):
    """Negative control: if processors that need log-probabilities get logits, the candidates differ."""
    monkeypatch.setattr(candidates, "takes_log_probs", lambda row: False)
    assert not candidates_equal_reference([group_with_tokens(number, SETTINGS[name]) for number in range(3)])


def test_reported_log_probabilities_are_raw():
    requests = [
        group_with_tokens(0, {}),
        group_with_tokens(1, SETTINGS["reported"]),
        group_with_tokens(2, SETTINGS["bad words"]),
    ]
    logits = torch.randn(BEAMS * 3, VOCAB, generator=torch.Generator().manual_seed(3)) * 4
    raw = logits.log_softmax(dim=-1)
    choices = {choice.group: choice for choice in selection.select(DecoderOutput(logits), StoredLogits(), requests)}
    beams = requests[1].beams.running
    for beam, parent in zip(beams, choices[requests[1]].parents, strict=True):
        (entry,) = beam.logprobs
        assert entry.token_id == beam.tokens[-1]
        assert entry.logprob == pytest.approx(float(raw[BEAMS + parent, entry.token_id]), abs=1e-5)
        assert [token for token, _ in entry.top] == raw[BEAMS + parent].topk(3).indices.tolist()
    assert not any(beam.logprobs for request in (requests[0], requests[2]) for beam in request.beams.running)


@pytest.mark.parametrize("rows", [1, 7, 8, 64])
def test_logits_are_computed_in_parts(rows):
    """Logits of many groups are computed in parts of at most `max_logits_rows` rows, with the same results."""
    logits = torch.randn(BEAMS * len(SETTINGS), VOCAB, generator=torch.Generator().manual_seed(3)) * 4
    at_once, in_parts = ([group_with_tokens(*each) for each in enumerate(SETTINGS.values())] for _ in range(2))
    selection.select(DecoderOutput(logits), StoredLogits(len(logits)), at_once)
    part_sizes: list[int] = []

    class RecordedLogits(StoredLogits):
        def logits_top_k(self, hidden: torch.Tensor, request: LogitsRequest) -> tuple[torch.Tensor, LogitsTopK]:
            part_sizes.append(len(hidden))
            return super().logits_top_k(hidden, request)

    selection.select(DecoderOutput(logits), RecordedLogits(rows), in_parts)
    assert sum(part_sizes) == len(logits) and max(part_sizes) <= max(rows, BEAMS)
    for one, other in zip(at_once, in_parts, strict=True):
        assert (one.beams.running, one.beams.finished) == (other.beams.running, other.beams.finished)


@pytest.mark.parametrize("seed", range(20))
def test_searches_that_advance_together_equal_single_ones(seed):
    chance = np.random.default_rng(seed)
    beams, ends = int(chance.integers(2, 7)), frozenset(chance.integers(0, 60, 3).tolist())
    early = [True, False, "never"][seed % 3]
    alone, together = ([BeamSearch(beams, 9, ends, 0.7, early) for _ in range(5)] for _ in range(2))
    while not all(search.done for search in alone):
        going = [index for index, search in enumerate(alone) if not search.done]
        logits = torch.from_numpy(chance.normal(size=(len(going), len(alone[going[0]].running), 60)).astype(np.float32))
        # Multiples of 0.5 have exact sums.
        scores = ((logits * 4).round() / 2).flatten(0, 1)
        top_k = backend(scores).logits_top_k(scores, alone[0].num_candidates)
        values, tokens = (tensor.view(*logits.shape[:2], -1).numpy() for tensor in (top_k.values, top_k.ids))
        parents = [alone[index].advance(*own) for index, *own in zip(going, values, tokens, strict=True)]
        assert len({alone[index].shape for index in going}) == 1
        them = [together[index] for index in going]
        assert advance_together(them, values, tokens, [None] * len(going)) == parents
        for one, other in zip(alone, together, strict=True):
            assert (one.running, one.finished, one.done) == (other.running, other.finished, other.done)
