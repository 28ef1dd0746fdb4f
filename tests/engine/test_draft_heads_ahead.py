"""Steps of models with a draft head that are launched ahead: the head reads their hidden states later."""

from __future__ import annotations

import itertools

import pytest

from server.engine.stepping.engine import Engine
from tests.engine.drafted_models import PROMPTS, drafter_of, longest_drafts, texts, watch_drafts  # noqa: F401 (a fixture)
from tests.engine.eager_captures import EagerCaptures
from tests.engine.harness import generate, run
from tests.engine.speculative import counts


def captured(engine: Engine) -> EagerCaptures:
    """Let an engine launch steps ahead."""
    (model,) = engine.models.values()
    model.generation.runner.captured = found = EagerCaptures(model.generation.runner)
    return found


def in_turn(monkeypatch, rest: int) -> None:
    """Draft at every second choice only. rest: number of steps between a choice of no draft and the next choice."""
    from server.engine.drafting import head_drafter

    turns = itertools.count()
    monkeypatch.setattr(head_drafter, "REST_STEPS", rest)
    monkeypatch.setattr(
        head_drafter,
        "head_draft_lengths",
        lambda probabilities, rows, costs: [len(row) * (next(turns) % 2) for row in probabilities],
    )


@pytest.mark.parametrize("kind", ["glm4_moe", "eagle3"])
def test_steps_without_drafts_are_launched_ahead(head_models, kind, monkeypatch):
    """The head reads their hidden states later, and drafts as if it had read them at once."""
    in_turn(monkeypatch, 8)
    model = head_models(kind)
    one = model.engine()
    steps, seen = captured(one), watch_drafts(drafter_of(one))
    requests = [generate(model, i, PROMPTS[2 * i], max_new_tokens=60, end_token_ids=[]) for i in range(2)]
    requests.append(generate(model, 2, PROMPTS[1], max_new_tokens=50, do_sample=True, seed=3))
    assert texts(run(one, requests), 3) == texts(run(model.plain(), requests), 3)
    assert sum(is_ahead for _, is_ahead in steps.launches) > 10 and counts(one)[0] > 15
    greedy = [(tokens, draft) for tokens, draft in seen if tokens[: len(PROMPTS[1])] != PROMPTS[1]]
    assert len(greedy) > 4
    for tokens, draft in greedy:
        assert draft == model.reference.draft(tokens, len(draft))


def test_states_of_a_wrong_position_are_found(head_models, monkeypatch):
    from server.engine.stepping.drafting import Drafting

    honest = Drafting.launched
    monkeypatch.setattr(
        Drafting,
        "launched",
        lambda self, rows, starts, states: honest(self, rows, starts, states if states is None else states.roll(1, 1)),
    )
    with pytest.raises(AssertionError):
        test_steps_without_drafts_are_launched_ahead(head_models, "eagle3", monkeypatch)


def test_a_resting_head_catches_up_between_steps_ahead(head_models, monkeypatch):
    """It reads the hidden states of earlier steps now and then, and finds out whether its predictions are right."""
    from server.engine.drafting import head_drafter, head_texts

    for module in (head_drafter, head_texts):
        monkeypatch.setattr(module, "CATCH_UP_TOKENS", 8)
    monkeypatch.setattr(head_drafter, "PROBES", 4)
    monkeypatch.setattr(head_drafter, "REST_STEPS", 4)
    monkeypatch.setattr(head_drafter, "head_draft_lengths", lambda probabilities, rows, costs: [0] * len(probabilities))
    model = head_models("eagle3")
    one = model.engine()
    steps, drafter, compared = captured(one), drafter_of(one), []
    observe = head_texts.HeadText.observe
    monkeypatch.setattr(
        head_texts.HeadText, "observe", lambda self, *given: compared.append(given) or observe(self, *given)
    )
    requests = [generate(model, i, PROMPTS[i], max_new_tokens=120, end_token_ids=[]) for i in range(2)]
    assert texts(run(one, requests), 2) == texts(run(model.plain(), requests), 2)
    assert counts(one)[0] == 0 and len(compared) >= 4 * 3
    ahead = sum(is_ahead for _, is_ahead in steps.launches)
    assert ahead > 70, "a step in four chooses a length, and some of these read hidden states"
    assert not drafter._texts


def test_more_rows_than_drafts_allow_are_launched_ahead(head_models, monkeypatch):
    from server.engine.drafting import drafts

    monkeypatch.setattr(drafts, "MAX_DRAFTING_ROWS", 1)
    model = head_models("glm4_moe")
    one = model.engine()
    steps = captured(one)
    requests = [generate(model, i, PROMPTS[i], max_new_tokens=20, end_token_ids=[]) for i in range(3)]
    assert texts(run(one, requests), 3) == texts(run(model.plain(), requests), 3)
    assert [ahead for rows, ahead in steps.launches if rows == 3].count(True) > 14 and counts(one) == (0, 0)
