"""Stop strings with beams: hypotheses end as in transformers with an equivalent stopping criterion."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from server.engine.beams.stop_texts import StopTexts
from server.ipc.wire.generate_messages import Vocabulary
from tests.engine.diverse_oracle import diverse_search
from tests.engine.harness import generate, reference, run
from tests.engine.test_beam_cases import possible_hypotheses
from tests.parity.checkpoints import random_ids

TOKEN_BYTES = [
    b"",
    b"",
    b"",
    *(random.Random(i).choice([b"a", b"b", b"ab", b" b", b"ba ", b"c", b"\xc3", b"\xa4"]) for i in range(94)),
]
PROMPTS = random_ids(97, [1, 5, 11], seed=3)
VARIANTS = {
    "one": {"stops": [b"ab"]},
    "across tokens": {"stops": [b"abab", b"b b"]},
    "bytes of a character": {"stops": ["ä".encode()], "early_stopping": True},
    "early": {"stops": [b"ba"], "early_stopping": True, "length_penalty": -1.0},
    "never": {"stops": [b"c", b"aaa"], "early_stopping": "never", "length_penalty": 2.0},
    "beside end tokens": {"stops": [b"bab"], "end_token_ids": [2, 9, 17, 33, 34, 35]},
    "at the beginning": {"stops": [b"b"], "drops_space": True},
    "a space that is dropped": {"stops": [b" b"], "drops_space": True},
    "hardly ever": {"stops": [b"abcabcabc"]},
    "nearly always": {"stops": [b"a", b"b", b"c"], "num_return_sequences": 4},
}


def text_of(tokens: list[int], drops_space: bool) -> bytes:
    text = b"".join(TOKEN_BYTES[token] for token in tokens)
    return text.removeprefix(b" ") if drops_space else text


class ContainsStopString(transformers.StoppingCriteria):
    def __init__(self, skip: int, stops: list[bytes], drops_space: bool) -> None:
        self.skip, self.stops, self.drops_space = skip, stops, drops_space

    def __call__(self, input_ids, scores, **_):
        texts = [text_of(row[self.skip :], self.drops_space) for row in input_ids.tolist()]
        return torch.tensor([any(stop in text for stop in self.stops) for text in texts], device=input_ids.device)


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_equals_transformers(pairs, name):
    """All cases equal transformers. They run in one batch with requests without stop strings, and are streamed."""
    pair, engine = pairs(name), pairs(name).engine()
    engine.set_vocabulary(Vocabulary(name, TOKEN_BYTES))
    cases = [(prompt, dict(variant)) for variant in VARIANTS.values() for prompt in PROMPTS]
    shared = {"num_beams": 4, "max_new_tokens": 10, "num_return_sequences": 2}
    requests, expected = [], []
    for i, (prompt, variant) in enumerate(cases):
        stops, drops_space = variant.pop("stops"), variant.pop("drops_space", False)
        settings = {**shared, **variant}
        ours = {"stop_texts": stops, "text_drops_space": drops_space, "stream": True}
        requests.append(generate(pair, i, prompt, **settings, **ours))
        ends = settings.pop("end_token_ids", pair.ends)
        criterion = ContainsStopString(len(pair.starts) or len(prompt), stops, drops_space)
        theirs = reference(pair, prompt, eos_token_id=ends, stopping_criteria=[criterion], **settings)
        expected.append(possible_hypotheses(*cut(theirs, stops, drops_space), settings))
    plain = [generate(pair, 100 + n, PROMPTS[1], num_beams=n) for n in (1, 3)]
    results = run(engine, [*requests, *plain])
    ended = 0
    for i, (texts, scores) in enumerate(expected):
        assert results.texts(i) == texts, cases[i]
        assert [h.score for h in results.finished[i].hypotheses] == pytest.approx(scores, rel=1e-5, abs=1e-4)
        assert results.tokens[i] == texts[0]
        for hypothesis in results.finished[i].hypotheses:
            drops_space = requests[i].rows[0].text_drops_space
            text = text_of(hypothesis.token_ids, drops_space)
            contains_stop = any(stop in text for stop in requests[i].params.stop_texts)
            assert not contains_stop or hypothesis.finish_reason == "stop"
            ended += contains_stop
    assert ended > 10
    for n in (1, 3):
        assert results.texts(100 + n) == reference(pair, PROMPTS[1], num_beams=n, max_new_tokens=12)[0]


def cut(theirs, stops: list[bytes], drops_space: bool):
    """Cut the texts of transformers after the token that completes a stop string, because they are padded.

    theirs: texts and scores. drops_space: whether the first space of a text is dropped.
    """
    texts = []
    for text in theirs[0]:
        lengths = range(1, len(text) + 1)
        held = (n for n in lengths if any(stop in text_of(text[:n], drops_space) for stop in stops))
        texts.append(text[: next(held, len(text))])
    return texts, theirs[1]


@pytest.mark.parametrize("stops", [[b"ab", b"c"], [b"bb a"]])
def test_groups_equal_a_slow_reference(pairs, stops):
    pair, engine = pairs("llama"), pairs("llama").engine()
    engine.set_vocabulary(Vocabulary("llama", TOKEN_BYTES))
    settings = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "num_return_sequences": 4}
    settings |= {"max_new_tokens": 10}
    requests = [generate(pair, i, prompt, stop_texts=stops, **settings) for i, prompt in enumerate(PROMPTS)]
    results = run(engine, requests)
    for i, prompt in enumerate(PROMPTS):
        texts, scores = diverse_search(
            pair,
            prompt,
            end_token_ids=pair.ends,
            is_stopped=lambda tokens: any(stop in text_of(tokens, False) for stop in stops),
            **settings,
        )
        assert results.texts(i) == texts
        assert [h.score for h in results.finished[i].hypotheses] == pytest.approx(scores, abs=1e-4)
    ended = [h for i in range(len(PROMPTS)) for h in results.finished[i].hypotheses if h.finish_reason == "stop"]
    assert len(ended) > 4 or stops == [b"bb a"]


def first_difference() -> int | None:
    """Compare `StopTexts` with a search of the whole text, for 2000 random texts and stop strings of 1 to 7 bytes.

    Returns the index of the first text with a different result, or None.
    """
    chance = random.Random(5)
    for number in range(2000):
        stops = [bytes(chance.choices(b"ab c", k=chance.randint(1, 7))) for _ in range(chance.randint(1, 3))]
        drops = chance.random() < 0.5
        texts, tokens = StopTexts(TOKEN_BYTES, stops, drops), []
        for token in chance.choices(range(97), k=30):
            expected = any(stop in text_of([*tokens, token], drops) for stop in stops)
            if texts.ends(tokens, token) != expected:
                return number
            if expected:
                break
            tokens.append(token)
    return None


def test_stop_strings_are_found_like_in_the_whole_text():
    assert first_difference() is None


@pytest.mark.parametrize("bug", ["a byte short", "the first space kept"])
def test_a_wrong_search_is_noticed(monkeypatch, bug):
    """Negative control: if the search reads too few bytes, or keeps a leading space, the comparison fails."""
    init = StopTexts.__init__

    def faulty(self, spelled, stops, drops_space):
        init(self, spelled, stops, drops_space and bug != "the first space kept")
        self._reach -= 2 * (bug == "a byte short")

    monkeypatch.setattr(StopTexts, "__init__", faulty)
    assert first_difference() is not None


def test_stop_strings_without_a_vocabulary_are_refused(pairs):
    pair, engine = pairs("llama"), pairs("llama").engine()
    engine.models["llama"].generation.grammar_waits = None
    results = run(engine, [generate(pair, 0, [5], num_beams=2, stop_texts=[b"a"])])
    assert "vocabulary" in results.failed[0].message
