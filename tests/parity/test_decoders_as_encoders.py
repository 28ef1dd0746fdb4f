"""A decoder with `is_causal: false` gives the hidden states of transformers with a mask in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.config import ConfigError
from models.families import FAMILIES
from tests.parity.checkpoints import load, random_ids, save
from tests.parity.paged import encoder_batch
from tests.parity.test_decoder_heads import BODIES, LENGTHS, VOCAB


def both_ways(config: Any) -> Any:
    return type(config)(**{**config.to_dict(), "is_causal": False})


def is_served(name: str) -> bool:
    """Whether the family of a case supports the setting. `tests/models/test_both_ways.py` lists the others."""
    architecture, config = BODIES[name]
    settings = both_ways(config).to_dict()
    try:
        FAMILIES[settings["model_type"]].config(settings, architecture)
    except ConfigError as error:
        assert "'is_causal'" in str(error)
        return False
    return True


@pytest.mark.parametrize("name", [name for name in BODIES if is_served(name)])
@torch.inference_mode()
def test_hidden_states(name: str, tmp_path: Path, device: torch.device):
    architecture, config = BODIES[name]
    oracle = save(tmp_path, both_ways(config), architecture).to(device)
    loaded, texts = load(tmp_path, device), random_ids(VOCAB, LENGTHS)
    assert loaded.config.decoder is None and loaded.tasks == ("embed",)
    hidden = loaded.transformer.encode(encoder_batch(texts, device))
    expected = [oracle(torch.tensor([text], device=device)).last_hidden_state[0] for text in texts]
    torch.testing.assert_close(hidden, torch.cat(expected), atol=1e-4, rtol=1e-4)
    # The first token reads the token after it, also in layers with a window.
    changed = encoder_batch([[text[0], *(3 for _ in text[1:2]), *text[2:]] for text in texts], device)
    firsts = [sum(LENGTHS[:index]) for index, length in enumerate(LENGTHS) if length > 1]
    assert (loaded.transformer.encode(changed)[firsts] - hidden[firsts]).abs().amax(1).min() > 1e-4
