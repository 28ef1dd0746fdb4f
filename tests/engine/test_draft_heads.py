"""Drafts of prediction heads and EAGLE-3 heads in the engine: texts, caches, memory and errors."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from server.engine.cache.block_manager import BlockManager
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.loading.load import LoadError, load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.packed_cache import packed_key
from server.engine.loading.speculation import find_drafts, make_drafter
from server.engine.process.measuring import MeasuringMemory
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from server.ipc.wire.generate_messages import Vocabulary
from tests.engine.eager_captures import EagerCaptures
from tests.engine.harness import PRINTABLE, generate, run
from tests.engine.speculative import counts
from tests.models.draft_heads import (
    LLAMA,
    HeadReference,
    eagle_config,
    eagle_reference,
    eagle_tensors,
    predicting_checkpoint,
    write_head,
)
from tests.parity.checkpoints import random_ids, save

PROMPTS = random_ids(97, [3, 5, 11, 30, 70], seed=3)
KINDS = ("glm4_moe", "deepseek_v3", "qwen3_5", "eagle3")


class Drafted:
    """A model with a draft head, and the reference implementation of the head."""

    def __init__(self, name: str, loaded: LoadedCheckpoint, reference: HeadReference) -> None:
        self.name, self.loaded, self.reference = name, loaded, reference
        self.oracle, self.starts = reference.model, list[int]()

    @property
    def ends(self) -> list[int]:
        return [self.oracle.config.eos_token_id]

    def engine(self, **options) -> Engine:
        """A new engine with drafts."""
        settings = EngineOptions(**{"block_size": 4, "kv_cache_bytes": 1 << 22, "speculative_tokens": 4, **options})
        find_drafts([self.loaded], lambda spec: pytest.fail("no draft model"))
        share, drafter = make_drafter(self.loaded, None, settings, settings.kv_cache_bytes)
        assert isinstance(drafter, HeadDrafter)
        made = Engine({self.name: build(self.loaded, settings, share, drafter)[0]}, self.loaded.device)
        made.set_vocabulary(Vocabulary(self.name, PRINTABLE))
        return made

    def plain(self, **options) -> Engine:
        """A new engine without drafts."""
        settings = EngineOptions(**{"block_size": 4, "kv_cache_bytes": 1 << 22, **options})
        made = Engine({self.name: build(self.loaded, settings, settings.kv_cache_bytes)[0]}, self.loaded.device)
        made.set_vocabulary(Vocabulary(self.name, PRINTABLE))
        return made


def drafter_of(engine: Engine) -> HeadDrafter:
    (model,) = engine.models.values()
    assert isinstance(model.generation.drafter, HeadDrafter)
    return model.generation.drafter


def spec_of(name: str, directory: Path, way: Speculation, **more) -> ModelSpec:
    return ModelSpec(name, str(directory), "float32", speculation=way, **more)


@pytest.fixture(scope="module")
def models(tmp_path_factory, device):
    """A function that returns the model with a kind of head. Each model is made once."""
    made: dict[str, Drafted] = {}

    def get(kind: str) -> Drafted:
        if kind not in made:
            directory = tmp_path_factory.mktemp(kind)
            if kind == "eagle3":
                oracle, settings = save(directory / "model", LLAMA[1], LLAMA[0]), eagle_config()
                tensors = eagle_tensors(settings)
                write_head(directory / "head", settings, tensors)
                reference = eagle_reference(oracle, settings, tensors, (2, 4, 5))
                spec = spec_of(kind, directory / "model", Speculation(eagle_directory=str(directory / "head")))
            else:
                reference = predicting_checkpoint(kind, directory)
                spec = spec_of(kind, directory, Speculation(prediction_head=True))
            made[kind] = Drafted(kind, load(spec, device, lambda done, total: None), reference)
        return made[kind]

    return get


@pytest.fixture(autouse=True)
def longest_drafts(monkeypatch):
    """Fixture: always draft as many tokens as are allowed, so that measured times have no influence."""
    from server.engine.drafting import head_drafter
    from server.engine.drafting.head_texts import HeadText

    monkeypatch.setattr(HeadText, "probabilities", lambda self, count: [1.0] * count)
    monkeypatch.setattr(
        head_drafter, "head_draft_lengths", lambda probabilities, rows, costs: [len(row) for row in probabilities]
    )


def texts(results, count: int) -> list:
    return [results.texts(i) for i in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_those_without_drafts(models, kind):
    model = models(kind)
    requests = [generate(model, i, prompt, max_new_tokens=40) for i, prompt in enumerate(PROMPTS)]
    one = model.engine()
    assert texts(run(one, requests, every=3), 5) == texts(run(model.plain(), requests), 5)
    assert counts(one)[0] > 60 and not drafter_of(one)._texts


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_reference(models, kind, monkeypatch):
    """Drafts equal the reference, also after a chunked prompt, after wrong drafts, and after a cached prefix."""
    model, seen = models(kind), []
    one = model.engine(max_batch_tokens=24)
    drafter = drafter_of(one)
    complete = drafter.complete

    def watched(schedule):
        complete(schedule)
        for group in schedule.decoding:
            if group.sequences[0].draft:
                seen.append((list(group.sequences[0].tokens), list(group.sequences[0].draft)))

    drafter.complete = watched
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
def test_settings_apply_to_every_draft_token(models, kind):
    model = models(kind)
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
def test_preempted_groups_draft_on(models, kind):
    """Drafting continues for groups that were preempted. The head computes their texts again."""
    model = models(kind)
    requests = [generate(model, i, PROMPTS[3], max_new_tokens=40, end_token_ids=[]) for i in range(4)]
    plain = run(model.plain(), requests)
    one = model.engine()
    scheduler = one.models[kind].generation.scheduler
    scheduler.blocks.self_pool = BlockManager(44, 4)
    results = run(one, requests)
    assert texts(results, 4) == texts(plain, 4) and counts(one)[0] > 30
    assert scheduler.num_preemptions > 0


def test_more_rows_than_drafts_allow(models, monkeypatch):
    """A step with too many rows has no drafts. When there are fewer rows, the same sequences get drafts again."""
    from server.engine.drafting import drafts

    monkeypatch.setattr(drafts, "MAX_DRAFTING_ROWS", 2)
    model = models("glm4_moe")
    requests = [generate(model, i, PROMPTS[i], max_new_tokens=8 + 16 * i, end_token_ids=[]) for i in range(4)]
    one = model.engine()
    assert texts(run(one, requests), 4) == texts(run(model.plain(), requests), 4)
    assert counts(one)[0] > 10


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
def test_steps_without_drafts_are_launched_ahead(models, kind, monkeypatch):
    """The head reads their hidden states later, and drafts as if it had read them at once."""
    in_turn(monkeypatch, 8)
    model, seen = models(kind), []
    one = model.engine()
    steps, drafter = captured(one), drafter_of(one)
    complete = drafter.complete

    def watched(schedule):
        complete(schedule)
        for group in schedule.decoding:
            if group.sequences[0].draft:
                seen.append((list(group.sequences[0].tokens), list(group.sequences[0].draft)))

    drafter.complete = watched
    requests = [generate(model, i, PROMPTS[2 * i], max_new_tokens=60, end_token_ids=[]) for i in range(2)]
    requests.append(generate(model, 2, PROMPTS[1], max_new_tokens=50, do_sample=True, seed=3))
    assert texts(run(one, requests), 3) == texts(run(model.plain(), requests), 3)
    assert sum(is_ahead for _, is_ahead in steps.launches) > 10 and counts(one)[0] > 15
    greedy = [(tokens, draft) for tokens, draft in seen if tokens[: len(PROMPTS[1])] != PROMPTS[1]]
    assert len(greedy) > 4
    for tokens, draft in greedy:
        assert draft == model.reference.draft(tokens, len(draft))


def test_states_of_a_wrong_position_are_found(models, monkeypatch):
    from server.engine.stepping.drafting import Drafting

    honest = Drafting.launched
    monkeypatch.setattr(
        Drafting,
        "launched",
        lambda self, rows, starts, states: honest(self, rows, starts, states if states is None else states.roll(1, 1)),
    )
    with pytest.raises(AssertionError):
        test_steps_without_drafts_are_launched_ahead(models, "eagle3", monkeypatch)


def test_a_resting_head_catches_up_between_steps_ahead(models, monkeypatch):
    """It reads the hidden states of earlier steps now and then, and finds out whether its predictions are right."""
    from server.engine.drafting import head_drafter, head_texts

    for module in (head_drafter, head_texts):
        monkeypatch.setattr(module, "CATCH_UP_TOKENS", 8)
    monkeypatch.setattr(head_drafter, "PROBES", 4)
    monkeypatch.setattr(head_drafter, "REST_STEPS", 4)
    monkeypatch.setattr(head_drafter, "head_draft_lengths", lambda probabilities, rows, costs: [0] * len(probabilities))
    model = models("eagle3")
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


def test_more_rows_than_drafts_allow_are_launched_ahead(models, monkeypatch):
    from server.engine.drafting import drafts

    monkeypatch.setattr(drafts, "MAX_DRAFTING_ROWS", 1)
    model = models("glm4_moe")
    one = model.engine()
    steps = captured(one)
    requests = [generate(model, i, PROMPTS[i], max_new_tokens=20, end_token_ids=[]) for i in range(3)]
    assert texts(run(one, requests), 3) == texts(run(model.plain(), requests), 3)
    assert [ahead for rows, ahead in steps.launches if rows == 3].count(True) > 14 and counts(one) == (0, 0)


@pytest.mark.parametrize("kind", ["glm4_moe", "eagle3"])
def test_memory_of_the_head_is_counted(models, kind):
    """The KV cache of the head has as many blocks as that of the model. Its bytes count as memory of the model."""
    model, options = models(kind), EngineOptions(block_size=4, kv_cache_bytes=1 << 20)
    one = model.engine(kv_cache_bytes=1 << 20)
    generation, cache = one.models[kind].generation, drafter_of(one).cache
    own = generation.runner.self_cache
    assert cache.num_blocks == own.num_blocks == generation.scheduler.blocks.self_pool.num_blocks
    used = sum(tensor.nbytes for tensor in (*cache.tensors, *own.tensors))
    need = model.loaded.pool_needs(options)["self"]
    assert used == need.block_bytes * own.num_blocks <= 1 << 20
    assert used + need.block_bytes > 1 << 20 or own.num_blocks == need.max_blocks


def test_memory_is_measured_without_reading(models, device):
    loaded, memory = models("eagle3").loaded, MeasuringMemory()
    measured = load(loaded.spec, device, lambda done, total: None, memory)
    assert measured.model.draft_head.num_logits == 40
    assert memory.kept_bytes == measured.model.weight_bytes == loaded.model.weight_bytes
    assert packed_key(loaded.spec, torch.float32, device) != packed_key(
        ModelSpec(loaded.spec.name, loaded.spec.directory, "float32"), torch.float32, device
    )


def test_int8_caches_hold_the_pairs_of_the_head(models):
    model = models("eagle3")
    requests = [generate(model, i, prompt, max_new_tokens=30) for i, prompt in enumerate(PROMPTS)]
    settings = {"kv_cache_dtype": "int8"}
    one = model.engine(**settings)
    assert drafter_of(one).cache.is_rounded
    assert texts(run(one, requests), 5) == texts(run(model.plain(**settings), requests), 5)
    assert counts(one)[0] > 30


@pytest.mark.parametrize("method", ["complete", "observe", "finish", "propose"])
def test_a_failing_head_stops_drafting(models, method, caplog):
    model = models("glm4_moe")
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


def test_beams_and_grammars_get_no_drafts(models):
    model = models("glm4_moe")
    one = model.engine()
    run(one, [generate(model, 0, PROMPTS[2], num_beams=2, max_new_tokens=20)])
    assert counts(one) == (0, 0) and not drafter_of(one)._texts


def test_the_head_ends_with_its_groups(models):
    """Finished and aborted groups leave no state in the head, and the memory of the caches can be given back."""
    model = models("glm4_moe")
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


def test_a_model_without_a_head_cannot_be_asked_for_it(tmp_path, device):
    save(tmp_path, LLAMA[1], LLAMA[0])
    demanded = load(spec_of("llama", tmp_path, Speculation(prediction_head=True)), device, lambda done, total: None)
    with pytest.raises(LoadError, match="its checkpoint has no prediction head"):
        find_drafts([demanded], lambda spec: demanded)
    way = Speculation(prediction_head=True, is_optional=True)
    optional = load(spec_of("llama", tmp_path, way), device, lambda done, total: None)
    assert find_drafts([optional], lambda spec: optional) == {}
    options = EngineOptions(kv_cache_bytes=1 << 20)
    share, drafter = make_drafter(optional, None, options, 1 << 20)
    assert (share, drafter) == (1 << 20, None)
    assert build(optional, options, share, drafter)[1].drafts == ""


def test_the_description_names_the_head(models, tmp_path, device):
    for kind, text in (("glm4_moe", "prediction head of the checkpoint"), ("eagle3", "EAGLE-3 head head")):
        model, options = models(kind), EngineOptions(kv_cache_bytes=1 << 20)
        share, drafter = make_drafter(model.loaded, None, options, 1 << 20)
        info = build(model.loaded, options, share, drafter)[1]
        assert info.drafts == text and not info.notes
    predicting_checkpoint("glm4_moe", tmp_path)
    unused = load(ModelSpec("glm", str(tmp_path), "float32"), device, lambda done, total: None)
    info = build(unused, options, 1 << 20)[1]
    assert info.drafts == "" and "--speculative mtp" in info.notes[0]


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
def test_the_reference_finds_wrong_states(models, bug, monkeypatch):
    bug(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        test_drafts_are_those_of_the_reference(models, "glm4_moe", monkeypatch)


def test_unfilled_blocks_are_not_read(models, monkeypatch):
    """The head does not read cached blocks that it has not filled, because their request had no drafts.

    A later request with this prefix starts after these blocks, and still gets drafts.
    """
    model, starts = models("glm4_moe"), []
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
