"""Engines with speculative decoding, with drafts from n-grams or from a draft model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from server.engine.drafting import drafts, ngrams
from server.engine.drafting.drafts import NgramDrafter
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.engine.loading.speculation import find_drafts, make_drafter
from server.engine.scheduling.step_costs import StepCosts
from server.engine.stepping.engine import Engine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import EngineOptions, Speculation
from server.ipc.wire.generate_messages import Vocabulary
from tests.engine.harness import PRINTABLE, Pair
from tests.parity.checkpoints import load


@pytest.fixture(autouse=True)
def every_prediction(monkeypatch):
    """Fixture: the engine drafts all predicted tokens, whatever their probability and the number of rows.

    It applies to all tests of a module that imports it.
    """
    monkeypatch.setattr(ngrams, "MIN_PROBABILITY", 0.0)
    monkeypatch.setattr(drafts, "MIN_GAIN", 0.0)
    monkeypatch.setattr(drafts, "MAX_DRAFTING_ROWS", 1000)
    monkeypatch.setattr(drafts, "MAX_STEP_TOKENS", 10000)


class FreeSteps(StepCosts):
    """Step costs according to which all steps take equally long, so that every predicted token is drafted."""

    def has_baseline(self, rows: int) -> bool:
        return True

    def seconds(self, tokens: int) -> float:
        return 1.0


def speculating(pair: Pair, draft: LoadedCheckpoint | None = None, **options) -> Engine:
    """Make an engine like `Pair.engine`, with speculative decoding. draft: the draft model, or None for n-grams.

    Measured step times have no influence: all tokens that n-grams predict are drafted.
    """
    settings = EngineOptions(**{"block_size": 4, "kv_cache_bytes": 1 << 22, "speculative_tokens": 4, **options})
    way = Speculation(draft_directory="somewhere") if draft is not None else Speculation()
    target = replace(pair.loaded, spec=msgspec.structs.replace(pair.loaded.spec, speculation=way))
    found = find_drafts([target], lambda spec: draft)
    share, drafter = make_drafter(target, found.get(pair.name), settings, settings.kv_cache_bytes)
    if isinstance(drafter, NgramDrafter):
        drafter.costs = FreeSteps()
    model: ModelEngine = build(target, settings, share, drafter)[0]
    made = Engine({pair.name: model}, target.device)
    made.set_vocabulary(Vocabulary(pair.name, PRINTABLE))
    return made


def perturbed(loaded: LoadedCheckpoint, strength: float = 0.05) -> LoadedCheckpoint:
    """Copy a checkpoint with slightly changed weights. Used as a draft model, its drafts are often accepted."""
    generator = torch.Generator().manual_seed(5)
    with TemporaryDirectory() as directory:
        shutil.copytree(loaded.spec.directory, directory, dirs_exist_ok=True)
        file = Path(directory) / "model.safetensors"
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.numel() > 1:
                tensors[name] = tensor + strength * tensor.std() * torch.randn(tensor.shape, generator=generator)
        save_file(tensors, file, metadata={"format": "pt"})
        return replace(loaded, model=load(Path(directory), loaded.device))


def counts(engine: Engine) -> tuple[int, int]:
    """Numbers of drafted and of accepted tokens of the engine's only model."""
    (model,) = engine.models.values()
    return model.generation.new_tokens.num_drafted_tokens, model.generation.new_tokens.num_accepted_tokens


def accepting_all_drafts(choose):
    """Wrap `selection.choose` with a planted bug: every draft token is accepted."""

    def accept_all(logits, places, seen):
        tokens, possible = choose(logits, places, seen)
        for index, (place, after) in enumerate(pairwise(places)):
            if after.group is place.group:
                tokens[index] = after.tokens[-1]
        return tokens, possible

    return accept_all
