"""Answers with a grammar: every answer matches its grammar, and other settings and requests are not affected.

Logits are random, so only the grammar mask makes an answer valid. Independent libraries check the answers:
`jsonschema`, Python's `re`, and for beams transformers with a mask computed by trying every token.
"""

from __future__ import annotations

import itertools
import json
import random
import re

import jsonschema
import numpy as np
import pytest
import torch
from llguidance import LLParserLimits
from transformers import LogitsProcessor

from server.engine.choosing import logits_processors
from server.engine.grammars import grammar_masks
from server.engine.grammars.grammar_masks import CACHED_GRAMMARS, GrammarMasks
from server.engine.sequences.grammar_state import GrammarState
from server.ipc.wire.generate_messages import Vocabulary
from server.ipc.wire.sections import AnswerSection
from tests.engine.grammars import (
    CHOICES,
    END,
    PATTERNS,
    SCHEMAS,
    TOKENS,
    VOCAB,
    choice_grammar,
    compute_masks,
    decode_text,
    json_grammar,
    random_engine,
    random_request,
    regex_grammar,
)
from tests.engine.harness import generate, reference, run
from tests.parity.checkpoints import random_ids

PER_SCHEMA = 50


def is_valid(text: str, schema: dict) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    return bool(validator.is_valid(value))


def ended(results, sequence_id: int) -> list[str]:
    """The texts of a request. Asserts that each ended because its grammar was complete."""
    assert sequence_id not in results.failed, results.failed[sequence_id]
    hypotheses = results.finished[sequence_id].hypotheses
    assert all(hypothesis.finish_reason == "stop" and hypothesis.stop_token_id == END for hypothesis in hypotheses), (
        hypotheses
    )
    return [decode_text(hypothesis.token_ids[:-1]) for hypothesis in hypotheses]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_thousand_random_answers_with_twenty_schemas_are_valid(name):
    """Fifty answers for each schema: sampled, filtered, greedy and with beams, all in one batch."""
    assert len(SCHEMAS) * PER_SCHEMA == 1000
    schema = SCHEMAS[name]
    kinds = [{}, {"temperature": 2.0}, {"top_k": 5}, {"do_sample": False}, {"do_sample": False, "num_beams": 3}]
    requests = [random_request(i, json_grammar(schema), **kinds[i % 5]) for i in range(PER_SCHEMA)]
    results = run(random_engine(), requests)
    texts = [text for i in range(PER_SCHEMA) for text in ended(results, i)]
    assert len(texts) >= PER_SCHEMA
    for text in texts:
        assert is_valid(text, schema), text
    if name not in ("const",):
        assert len(set(texts)) > 2, "the random model gives too few different answers"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_with_a_pattern_match_it_fully(pattern):
    requests = [random_request(i, regex_grammar(pattern), num_beams=1 + i % 2, do_sample=not i % 2) for i in range(20)]
    results = run(random_engine(), requests)
    for i in range(20):
        for text in ended(results, i):
            assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("choices", CHOICES, ids=len)
def test_only_the_choices_are_generated(choices):
    requests = [random_request(i, choice_grammar(choices), temperature=4.0) for i in range(60)]
    results = run(random_engine(), requests)
    texts = [text for i in range(60) for text in ended(results, i)]
    assert set(texts) <= set(choices)
    assert len(set(texts)) >= min(len(choices), 3)


def test_any_json_object():
    grammar = json_grammar({"type": "object"})
    results = run(random_engine(), [random_request(i, grammar, max_new_tokens=900) for i in range(40)])
    whole = 0
    for i in range(40):
        (answer,) = results.finished[i].hypotheses
        if answer.finish_reason == "stop":
            whole += 1
            assert isinstance(json.loads(decode_text(answer.token_ids[:-1])), dict)
    assert whole >= 20


@pytest.mark.parametrize("control", ["no grammar", "no mask"])
def test_without_the_mask_few_answers_are_valid(control, monkeypatch):
    """Negative control: without a grammar, or with masks that are not applied, answers are not valid."""
    schema = SCHEMAS["flat object"]
    if control == "no mask":
        monkeypatch.setattr(logits_processors, "_keep_in_grammar", lambda logits, busy: None)
    grammar = json_grammar(schema) if control == "no mask" else ""
    results = run(random_engine(), [random_request(i, grammar, max_new_tokens=60) for i in range(20)])
    texts = [
        b"".join(TOKENS[token] for token in finished.hypotheses[0].token_ids if token < len(TOKENS))
        for finished in results.finished.values()
    ]
    assert not any(is_valid(text.decode(errors="replace"), schema) for text in texts)
    assert control == "no grammar" or {failed.code for failed in results.failed.values()} == {"invalid_format"}


def test_the_mask_allows_exactly_the_valid_tokens():
    """The mask equals the tokens that keep the text a prefix of a choice, found by trying every token."""
    choices = ["a", "ab", "the cat", " the dog", "日本", "日", '{"name": 1}', "}"]
    formats = GrammarMasks(TOKENS, VOCAB)
    texts = {choice.encode()[:n] for choice in choices for n in range(len(choice.encode()) + 1)}
    seen = set()
    stack = [(GrammarState([AnswerSection(grammar=choice_grammar(choices))], 0), [], b"")]
    while stack:
        grammar_state, tokens, text = stack.pop()
        compute_masks(formats, grammar_state, tokens, [END], [5])
        bits = {i for i in range(VOCAB) if grammar_state.bits[i // 32] >> (i % 32) & 1}
        fitting = {i for i, token in enumerate(TOKENS) if token and text + token in texts and i != END}
        is_whole = text in {choice.encode() for choice in choices}
        assert bits == fitting | ({END, 5} if is_whole else set()), text
        assert (grammar_state.accepts, grammar_state.is_complete) == (is_whole, is_whole and not fitting)
        if text not in seen:
            seen.add(text)
            stack += [(grammar_state.fork(), [*tokens, token], text + TOKENS[token]) for token in fitting]
    assert seen == texts, "not all prefixes of the choices were reached"


@pytest.mark.parametrize("vocab_size", [5, 31, 32, 33, 70])
def test_the_vocabulary_may_be_longer_or_shorter_than_the_logits(vocab_size):
    """Masks are right if there are more, or fewer, tokens than logits. Tokens with equal bytes are both allowed."""
    tokens = [b"", b"a", b"b", b"a", b"", *[b"c"] * 40, b"a"]
    one = GrammarState([AnswerSection(grammar=choice_grammar(["a", "ab"]))], 0)
    formats = GrammarMasks(tokens, vocab_size)
    compute_masks(formats, one, [], [0], [])
    bits = np.unpackbits(one.bits.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [i for i in (1, 3, 45) if i < vocab_size]
    compute_masks(formats, one, [1], [0], [])
    bits = np.unpackbits(one.bits.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [0, 2]


class TriedTokens(LogitsProcessor):
    """Oracle of allowed tokens: tries every token against every choice.

    Also applies the settings whose meaning a grammar changes: min_new_tokens and the forced end token.
    """

    def __init__(
        self, vocabulary: list[bytes], choices: list[str], start: int, ends: list[int], settings: dict
    ) -> None:
        self.spelled = [token.decode() for token in vocabulary]
        self.choices, self.start, self.ends = choices, start, ends
        # Renormalization happens here, because transformers would compute NaN for a beam without allowed tokens.
        self.again = settings.pop("renormalize_logits", False)
        self.min_new_tokens = settings.pop("min_new_tokens", 0)
        self.forced_at = (
            settings["max_new_tokens"] - 1 if settings.pop("forced_eos_token_id", None) is not None else None
        )

    def __call__(self, input_ids, scores):
        masked = torch.full_like(scores, -torch.inf)
        for row, tokens in enumerate(input_ids[:, self.start :].tolist()):
            if not all(self.spelled[token] for token in tokens):
                continue  # The beam has ended, or is one of the extra beams of transformers.
            text = "".join(self.spelled[token] for token in tokens)
            allowed = [
                i
                for i, token in enumerate(self.spelled)
                if token and any(choice.startswith(text + token) for choice in self.choices)
            ]
            if text in self.choices and len(tokens) == self.forced_at:
                masked[row, self.ends] = 0.0
                continue
            if text in self.choices and (len(tokens) >= self.min_new_tokens or not allowed):
                allowed += self.ends
            kept = scores[row, allowed]
            masked[row, allowed] = kept.log_softmax(-1) if self.again else kept
        return masked


SHORT = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("abc", repeat=length)]
LETTERS = [b"", b"", b"", *(word.encode() for word in SHORT), *[b"?"] * (97 - 3 - len(SHORT))]
BEAMS = {
    "greedy": {"num_beams": 1},
    "plain": {},
    "all returned": {"num_return_sequences": 4},
    "early": {"early_stopping": True, "num_return_sequences": 2},
    "never, long favoured": {"early_stopping": "never", "length_penalty": 2.0},
    "short favoured": {"length_penalty": -0.5, "num_return_sequences": 3},
    "penalised": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "cut short": {"max_new_tokens": 3, "num_return_sequences": 2},
    "forced end": {"forced_eos_token_id": "end", "max_new_tokens": 6},
    "min new tokens": {"min_new_tokens": 3},
    "renormalized": {"renormalize_logits": True, "num_return_sequences": 4},
}


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart", "marian"])
@pytest.mark.parametrize("variant", BEAMS)
def test_beams_equal_transformers_with_a_brute_force_mask(pairs, name, variant):
    pair = pairs(name)
    chooser = random.Random(variant)
    settings = {"num_beams": 4, "max_new_tokens": 10, **BEAMS[variant]}
    if settings.get("forced_eos_token_id") == "end":
        settings["forced_eos_token_id"] = pair.ends[0]
    engine = pair.engine()
    engine.set_vocabulary(Vocabulary(name, LETTERS))
    prompts = random_ids(97, [1, 5, 11], seed=8)
    texts = ["".join(chooser.choices("abc", k=chooser.randint(4, 9))) for _ in range(12 * len(prompts))]
    wanted = [sorted(set(texts[i :: len(prompts)])) for i in range(len(prompts))]
    requests = [
        generate(pair, i, prompt, sections=[AnswerSection(grammar=choice_grammar(choices))], **settings)
        for i, (prompt, choices) in enumerate(zip(prompts, wanted, strict=True))
    ]
    results = run(engine, requests)
    assert not results.failed
    for i, (prompt, choices) in enumerate(zip(prompts, wanted, strict=True)):
        theirs = dict(settings)
        tried = TriedTokens(LETTERS, choices, len(pair.starts) or len(prompt), pair.ends, theirs)
        texts, scores = reference(pair, prompt, logits_processor=[tried], **theirs)
        ours = results.finished[i].hypotheses
        assert [hypothesis.token_ids for hypothesis in ours] == texts[: len(ours)]
        if scores is not None:
            assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores[: len(ours)], rel=1e-4)
        for hypothesis in ours:
            text = decode_text([token for token in hypothesis.token_ids if token not in pair.ends], LETTERS)
            assert text in choices if hypothesis.finish_reason == "stop" else any(c.startswith(text) for c in choices)


def test_min_new_tokens_does_not_extend_a_complete_text():
    for beams in (1, 3):
        request = random_request(0, choice_grammar(["yes", "no"]), min_new_tokens=40, num_beams=beams, do_sample=False)
        assert ended(run(random_engine(), [request]), 0)[0] in ("yes", "no")
    longer = random_request(0, regex_grammar("a+"), min_new_tokens=9)
    (answer,) = run(random_engine(), [longer]).finished[0].hypotheses
    assert len(answer.token_ids) > 9, "min_new_tokens was ignored"


def test_a_complete_text_ends_without_an_end_token():
    """A complete text ends even if the checkpoint has no end token, or the client bans it."""
    for settings in ({"end_token_ids": []}, {"suppress_token_ids": [END]}):
        (answer,) = (
            run(random_engine(), [random_request(0, choice_grammar(["yes"]), **settings)]).finished[0].hypotheses
        )
        assert (decode_text(answer.token_ids), answer.finish_reason, answer.stop_token_id) == ("yes", "stop", None)


def test_no_end_token_is_forced_on_an_incomplete_text():
    request = random_request(0, choice_grammar(["0123456789" * 3]), max_new_tokens=5, forced_eos_token_id=END)
    (answer,) = run(random_engine(), [request]).finished[0].hypotheses
    assert answer.finish_reason == "length" and END not in answer.token_ids


def test_a_forced_first_token_is_not_part_of_the_text():
    request = random_request(0, choice_grammar(["yes", "no"]), forced_bos_token_id=2)
    (answer,) = run(random_engine(), [request]).finished[0].hypotheses
    assert answer.token_ids[0] == 2 and decode_text(answer.token_ids[1:-1]) in ("yes", "no")


def test_a_stop_token_is_allowed_only_where_the_grammar_accepts():
    digit = TOKENS.index(b"7")
    request = random_request(0, regex_grammar("[67]{3,9}"), stop_token_ids=[digit], max_new_tokens=50)
    (answer,) = run(random_engine(), [request]).finished[0].hypotheses
    assert answer.stop_token_id in (digit, END) and set(decode_text(answer.token_ids)) <= set("67")


def test_logprobs_with_a_grammar_ignore_the_mask():
    request = random_request(0, choice_grammar(["yes", "no"]), logprobs=True, top_logprobs=3)
    (answer,) = run(engine := random_engine(), [request]).finished[0].hypotheses
    runner = engine.models["random"].generation.runner
    tokens = list(request.prompts[0])
    for entry in answer.logprobs:
        raw = runner.logits_after(tokens).log_softmax(-1)
        assert entry.logprob == pytest.approx(float(raw[entry.token_id]), abs=1e-5)
        assert [token for token, _ in entry.top] == raw.topk(3).indices.tolist()
        tokens.append(entry.token_id)


def test_a_grammar_that_is_too_complex_fails_alone_and_is_not_cached(monkeypatch):
    monkeypatch.setattr(grammar_masks, "LIMITS", LLParserLimits(max_lexer_states=200, verbose_errors=False))
    others = [random_request(i, choice_grammar(["yes", "no"])) for i in range(1, 5)] + [
        random_request(5, "", max_new_tokens=9)
    ]
    alone = run(random_engine(), others)
    engine = random_engine()
    bad = random_request(0, regex_grammar("(a|b)*a(a|b){20}"), max_new_tokens=300, suppress_token_ids=[END])
    for _ in range(2):
        results = run(engine, [bad, *others])
        assert results.failed[0].code == "invalid_format" and "too complex" in results.failed[0].message
        assert len(results.tokens[0]) > 20, "the request failed early"
        assert {i: results.texts(i) for i in range(1, 6)} == {i: alone.texts(i) for i in range(1, 6)}


def test_a_grammar_that_the_vocabulary_cannot_spell_fails_alone():
    engine = random_engine()
    engine.set_vocabulary(Vocabulary("random", [b"", b"", b"", b"a", b"b"]))
    requests = [
        random_request(0, choice_grammar(["abc"])),
        random_request(1, choice_grammar(["ab"])),
        random_request(2, choice_grammar(["c"])),
    ]
    requests += [random_request(3, choice_grammar(["abc", "ab"]), num_beams=2, do_sample=False)]
    results = run(engine, requests)
    assert {i: failed.code for i, failed in results.failed.items()} == {0: "invalid_format", 2: "invalid_format"}
    assert results.texts(1) == [[3, 4, END]] and results.texts(3) == [[3, 4, END]]


def test_a_grammar_without_a_vocabulary_is_an_engine_error():
    engine = random_engine()
    engine.models["random"].generation.grammar_waits = None
    assert run(engine, [random_request(0, choice_grammar(["a"]))]).failed[0].code == "engine_error"


def test_more_grammars_than_the_cache_holds():
    requests = [random_request(i, choice_grammar([f"n{i}"])) for i in range(3 * CACHED_GRAMMARS)]
    results = run(random_engine(), requests)
    assert [ended(results, i) for i in range(len(requests))] == [[f"n{i}"] for i in range(len(requests))]
