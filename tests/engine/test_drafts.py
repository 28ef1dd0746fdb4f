"""Drafts from n-grams, and checks that a draft model fits its target model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.engine.drafting.drafts import NgramDrafter
from server.engine.loading.load import LoadError
from server.engine.loading.speculation import check_draft, find_drafts, make_drafter
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from tests.engine.speculative import FreeSteps, every_prediction, speculating
from tests.ipc.one_row import one_row

__all__ = ["every_prediction"]


def row(prompt: list[int], max_new_tokens: int = 20, source: list[int] | None = None) -> SequenceGroup:
    message = one_row(0, "m", source or prompt, prompt if source else [], max_new_tokens=max_new_tokens)
    return SequenceGroup(message, message.rows[0], source is not None, 0.0)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 1], []),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 6, 7, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 5, 9, 1, 2, 6, 9, 1, 2], [6, 9, 1, 2]),
        ([7, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2], [5, 8, 1, 2]),
        ([4, 4, 4, 4], [4, 4, 4, 4]),
    ],
)
def test_the_draft_continues_the_last_occurrence_of_an_ngram(text, draft):
    """The draft is the continuation of the last occurrence of the text's last n-gram. Longer n-grams have priority.

    An index that is built token by token gives the same drafts.
    """
    request = row(text)
    NgramDrafter(4, FreeSteps()).propose([request], 1)
    assert request.sequences[0].draft == draft
    grown, drafter = row(text[:1]), NgramDrafter(4, FreeSteps())
    for token in [*text[1:], None]:
        drafter.propose([grown], 1)
        found = list(grown.sequences[0].draft)
        if token is not None:
            grown.sequences[0].tokens.append(token)
    assert found == draft


def test_ngrams_of_the_source_are_drafted():
    request = row([9, 5, 6], source=[4, 5, 6, 7, 8])
    NgramDrafter(3, FreeSteps()).propose([request], 1)
    assert request.sequences[0].draft == [7, 8, 9]


@pytest.mark.parametrize("left, drafted", [(1, 0), (2, 1), (4, 3), (5, 4), (6, 4)])
def test_a_draft_is_at_most_as_long_as_the_remaining_tokens(left, drafted):
    request = row([1, 2, 3, 4, 5, 6, 1, 2], left)
    NgramDrafter(4, FreeSteps()).propose([request], 1)
    assert len(request.sequences[0].draft) == drafted


def test_the_index_is_dropped_with_its_request():
    request, drafter = row([1, 2, 1, 2]), NgramDrafter(4, FreeSteps())
    drafter.propose([request], 1)
    drafter.forget(request), drafter.forget(request)
    assert not drafter._texts


def test_a_draft_model_must_fit_its_target(pairs):
    gpt2, t5 = pairs("gpt2").loaded, pairs("t5").loaded
    check_draft(gpt2, pairs("llama").loaded)
    for one, other in ((gpt2, t5), (t5, gpt2), (gpt2, pairs("bert").loaded)):
        with pytest.raises(LoadError, match="draft model must be decoders"):
            check_draft(one, other)
    generation = replace(gpt2.model.generation, end_token_ids=(5,))
    with pytest.raises(LoadError, match="differ in end_token_ids"):
        check_draft(gpt2, replace(gpt2, model=replace(gpt2.model, generation=generation)))
    embedding = replace(gpt2.model.config.decoder.embedding, vocab_size=98)
    decoder = replace(gpt2.model.config.decoder, embedding=embedding)
    config = replace(gpt2.model.config, decoder=decoder, vocab_size=98)
    with pytest.raises(LoadError, match="has 97 tokens, its draft model 'gpt2' has 98"):
        check_draft(gpt2, replace(gpt2, model=replace(gpt2.model, config=config)))


def test_keys_that_depend_on_the_length_exclude_drafts(pairs, monkeypatch):
    pair = pairs("gpt2")
    monkeypatch.setattr(type(pair.loaded), "keys_depend_on_length", True)
    with pytest.raises(LoadError, match="keys that depend on the text length"):
        speculating(pair)
    with pytest.raises(LoadError, match="keys of its draft model"):
        check_draft(pair.loaded, pairs("llama").loaded)


def test_draft_models_are_found_by_name_or_loaded(pairs):
    def named(name: str, way: Speculation | None):
        return replace(pairs(name).loaded, spec=ModelSpec(name, name, "float32", speculation=way))

    small = named("llama", None)
    read: list[ModelSpec] = []
    loaded = [named("gpt2", Speculation(draft_model="llama")), small]
    assert find_drafts(loaded, read.append) == {"gpt2": small} and not read
    by_path = [named("gpt2", Speculation(draft_directory="/there"))]
    assert find_drafts(by_path, lambda spec: read.append(spec) or small) == {"gpt2": small}
    assert [spec.directory for spec in read] == ["/there"]
    assert find_drafts([named("gpt2", Speculation()), named("t5", Speculation())], read.append) == {}
    with pytest.raises(LoadError, match="'bert': speculative decoding needs"):
        find_drafts([named("bert", Speculation())], read.append)
    optional = named("bert", Speculation(is_optional=True))
    assert find_drafts([optional], read.append) == {}
    assert make_drafter(optional, None, EngineOptions(), 5) == (5, None)


def test_default_lengths(pairs):
    target = replace(pairs("gpt2").loaded, spec=ModelSpec("gpt2", "gpt2", "float32", speculation=Speculation()))
    lengths = {None: (15, 4), 7: (7, 7)}
    for setting, expected in lengths.items():
        options = EngineOptions(speculative_tokens=setting, block_size=4)
        made = [make_drafter(target, draft, options, 1 << 20)[1] for draft in (None, pairs("llama").loaded)]
        assert tuple(drafter.num_tokens for drafter in made) == expected
