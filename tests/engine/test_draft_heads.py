"""Drafts of prediction heads and EAGLE-3 heads in the engine: texts, caches, and errors."""

from __future__ import annotations

import pytest
import torch

from server.engine.cache.block_manager import BlockManager
from server.engine.loading.load import load
from server.ipc.wire.descriptions import Speculation
from tests.engine.drafted_models import PROMPTS, Drafted, drafter_of, longest_drafts, spec_of, texts, watch_drafts  # noqa: F401 (a fixture)
from tests.engine.harness import generate, run
from tests.engine.speculative import counts
from tests.models.draft_heads import predicting_checkpoint

KINDS = ("glm4_moe", "deepseek_v3", "qwen3_5", "eagle3")


@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_those_without_drafts(head_models, kind):
    model = head_models(kind)
    requests = [generate(model, i, prompt, max_new_tokens=40) for i, prompt in enumerate(PROMPTS)]
    one = model.engine()
    assert texts(run(one, requests, every=3), 5) == texts(run(model.plain(), requests), 5)
    assert counts(one)[0] > 60 and not drafter_of(one)._texts


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_reference(head_models, kind):
    """Drafts equal the reference, also after a chunked prompt, after wrong drafts, and after a cached prefix."""
    model = head_models(kind)
    one = model.engine(max_batch_tokens=24)
    seen = watch_drafts(drafter_of(one))
    prompt = PROMPTS[4]
    run(one, [generate(model, 0, prompt, max_new_tokens=14, end_token_ids=[])])
    again = [generate(model, 1, [*prompt[:66], *PROMPTS[1]], max_new_tokens=8, end_token_ids=[])]
    results = run(one, again)
    (cached,) = {event.cached_tokens for event in results.token_events[1]}
    assert cached >= (64 if kind != "qwen3_5" else 0)
    assert len(seen) > 10
    for tokens, draft in seen:
        assert draft == model.reference.draft(tokens, len(draft))


@pytest.mark.parametrize("kind", ["glm4_moe", "eagle3"])
def test_settings_apply_to_every_draft_token(head_models, kind):
    model = head_models(kind)
    settings = [
        {"do_sample": True, "seed": 4, "temperature": 0.7, "top_p": 0.8},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4},
        {"min_new_tokens": 10, "end_token_ids": list(range(2, 50))},
        {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True},
        {"bad_words_ids": [[i, j] for i in range(30) for j in range(30)]},
    ]
    requests = [generate(model, i, PROMPTS[i % 5], **{"max_new_tokens": 24, **more}) for i, more in enumerate(settings)]
    plain, one = run(model.plain(), requests), model.engine()
    results = run(one, requests)
    for i in range(len(requests)):
        ours, theirs = results.finished[i].hypotheses[0], plain.finished[i].hypotheses[0]
        assert ours.token_ids == theirs.token_ids
        values = [[entry.logprob for entry in side.logprobs or ()] for side in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert counts(one)[0] > 30


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_groups_draft_on(head_models, kind):
    """Drafting continues for groups that were preempted. The head computes their texts again."""
    model = head_models(kind)
    requests = [generate(model, i, PROMPTS[3], max_new_tokens=40, end_token_ids=[]) for i in range(4)]
    plain = run(model.plain(), requests)
    one = model.engine()
    scheduler = one.models[kind].generation.scheduler
    scheduler.blocks.self_pool = BlockManager(44, 4)
    results = run(one, requests)
    assert texts(results, 4) == texts(plain, 4) and counts(one)[0] > 30
    assert scheduler.num_preemptions > 0


def test_more_rows_than_drafts_allow(head_models, monkeypatch):
    """A step with too many rows has no drafts. When there are fewer rows, the same sequences get drafts again."""
    from server.engine.drafting import drafts

    monkeypatch.setattr(drafts, "MAX_DRAFTING_ROWS", 2)
    model = head_models("glm4_moe")
    requests = [generate(model, i, PROMPTS[i], max_new_tokens=8 + 16 * i, end_token_ids=[]) for i in range(4)]
    one = model.engine()
    assert texts(run(one, requests), 4) == texts(run(model.plain(), requests), 4)
    assert counts(one)[0] > 10


def test_int8_caches_hold_the_pairs_of_the_head(head_models):
    model = head_models("eagle3")
    requests = [generate(model, i, prompt, max_new_tokens=30) for i, prompt in enumerate(PROMPTS)]
    settings = {"kv_cache_dtype": "int8"}
    one = model.engine(**settings)
    assert drafter_of(one).cache.is_rounded
    assert texts(run(one, requests), 5) == texts(run(model.plain(**settings), requests), 5)
    assert counts(one)[0] > 30


@pytest.mark.parametrize("method", ["complete", "observe", "finish", "propose"])
def test_a_failing_head_stops_drafting(head_models, method, caplog):
    model = head_models("glm4_moe")
    one, calls = model.engine(), []
    drafter = drafter_of(one)
    honest = getattr(drafter, method)

    def broken(*given):
        calls.append(given)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("no room")
        return honest(*given)

    setattr(drafter, method, broken)
    requests = [generate(model, i, prompt, max_new_tokens=20) for i, prompt in enumerate(PROMPTS)]
    results = run(one, requests)
    assert not results.failed and texts(results, 5) == texts(run(model.plain(), requests), 5)
    assert "continue without drafts" in caplog.text


def test_a_head_with_non_finite_logits_stops_drafting(tmp_path, device):
    reference = predicting_checkpoint("glm4_moe", tmp_path)
    spec = spec_of("glm4_moe", tmp_path, Speculation(prediction_head=True))
    model = Drafted("glm4_moe", load(spec, device, lambda done, total: None), reference)
    model.loaded.model.draft_head.decoder.layers[0].attention_norms.input.weight.data.fill_(torch.nan)
    one = model.engine()
    requests = [generate(model, i, prompt, max_new_tokens=20, end_token_ids=[]) for i, prompt in enumerate(PROMPTS)]
    assert texts(run(one, requests), 5) == texts(run(model.plain(), requests), 5)
    assert counts(one)[1] < 10
    assert all(torch.isfinite(tensor).all() for tensor in drafter_of(one).cache.tensors)


def test_beams_and_grammars_get_no_drafts(head_models):
    model = head_models("glm4_moe")
    one = model.engine()
    run(one, [generate(model, 0, PROMPTS[2], num_beams=2, max_new_tokens=20)])
    assert counts(one) == (0, 0) and not drafter_of(one)._texts


def test_the_head_ends_with_its_groups(head_models):
    """Finished and aborted groups leave no state in the head, and the memory of the caches can be given back."""
    model = head_models("glm4_moe")
    one = model.engine()
    one.add(generate(model, 0, PROMPTS[3], max_new_tokens=40, end_token_ids=[]))
    for _ in range(5):
        one.step()
    one.abort(0)
    one.step()
    assert not drafter_of(one)._texts
    run(one, [generate(model, 1, PROMPTS[3], max_new_tokens=12)])
    one.give_back_caches(model.name)
    assert not drafter_of(one)._filled._keys
    requests = [generate(model, 2, PROMPTS[3], max_new_tokens=12)]
    assert run(one, requests).texts(2) == run(model.plain(), requests).texts(2)


def plant_pairs_are_written_one_position_late(monkeypatch):
    from server.engine.drafting.head_texts import HeadText

    honest = HeadText.add
    monkeypatch.setattr(HeadText, "add", lambda self, first, states: honest(self, first, states.roll(1, 0)))


def plant_wrong_drafts_stay_in_the_text(monkeypatch):
    from server.engine.drafting.head_texts import HeadText

    honest = HeadText.add

    def add(self, first, states):
        honest(self, max(first, self.end), states)

    monkeypatch.setattr(HeadText, "add", add)


def plant_every_block_counts_as_filled(monkeypatch):
    from server.engine.drafting.head_texts import FilledBlocks

    monkeypatch.setattr(FilledBlocks, "start", lambda self, sequence, position: 0)


@pytest.mark.parametrize("bug", [plant_pairs_are_written_one_position_late, plant_wrong_drafts_stay_in_the_text])
def test_the_reference_finds_wrong_states(head_models, bug, monkeypatch):
    bug(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        test_drafts_are_those_of_the_reference(head_models, "glm4_moe")


def test_unfilled_blocks_are_not_read(head_models, monkeypatch):
    """The head does not read cached blocks that it has not filled, because their request had no drafts.

    A later request with this prefix starts after these blocks, and still gets drafts.
    """
    model, starts = head_models("glm4_moe"), []
    one = model.engine()
    drafter = drafter_of(one)
    prompt = PROMPTS[4]
    # This group gets no drafts, so the head does not fill its blocks.
    one.add(generate(model, 0, prompt, max_new_tokens=4))
    one.models[model.name].generation.scheduler.waiting.next().accepts_drafts = False
    while one.has_work:
        one.step()
    assert not drafter._filled._keys
    one.add(generate(model, 1, [*prompt[:66], 5, 6], max_new_tokens=8, end_token_ids=[]))
    while one.has_work:
        one.step()
        starts += [text.start for text in drafter._texts.values()]
    assert set(starts) == {64} and counts(one)[0] > 0
    plant_every_block_counts_as_filled(monkeypatch)
    one.add(generate(model, 2, [*prompt[:66], 7, 8], max_new_tokens=8, end_token_ids=[]))
    one.step(), one.step()
    assert {text.start for text in drafter._texts.values()} == {0}
