"""Engines of models with a draft head, and the reference implementations of their heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.engine.drafting import head_drafter
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.drafting.head_texts import HeadText
from server.engine.loading.load import load
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.speculation import find_drafts, make_drafter
from server.engine.stepping.engine import Engine
from server.ipc.wire.descriptions import EngineOptions, ModelSpec, Speculation
from server.ipc.wire.generate_messages import Vocabulary
from tests.engine.harness import PRINTABLE
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


def watch_drafts(drafter: HeadDrafter) -> list[tuple[list[int], list[int]]]:
    """The text and the draft of each group that gets one. The list grows while the engine runs."""
    seen: list[tuple[list[int], list[int]]] = []
    complete = drafter.complete

    def watched(schedule):
        complete(schedule)
        for group in schedule.decoding:
            if group.sequences[0].draft:
                seen.append((list(group.sequences[0].tokens), list(group.sequences[0].draft)))

    drafter.complete = watched
    return seen


def spec_of(name: str, directory: Path, way: Speculation, **more) -> ModelSpec:
    return ModelSpec(name, str(directory), "float32", speculation=way, **more)


@pytest.fixture(scope="session")
def head_models(tmp_path_factory, device):
    """A function that returns the model with a kind of head, such as `head_models("eagle3")`. Each is made once."""
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
    """Fixture: always draft as many tokens as are allowed, so that measured times have no influence.

    It applies to all tests of a module that imports it.
    """
    monkeypatch.setattr(HeadText, "probabilities", lambda self, count: [1.0] * count)
    monkeypatch.setattr(
        head_drafter, "head_draft_lengths", lambda probabilities, rows, costs: [len(row) for row in probabilities]
    )


def texts(results, count: int) -> list:
    return [results.texts(i) for i in range(count)]
