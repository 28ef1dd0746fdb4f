"""The memory of a step is that of its tokens in the layers, and of its output rows over the vocabulary."""

from __future__ import annotations

import pytest

from server.engine.process.measuring import LOGIT_COPIES, STEP_TENSORS, needed_memory
from server.ipc.wire.descriptions import EngineOptions
from tests.engine.tiny_checkpoints import ENCODERS, GENERATING

OPTIONS = EngineOptions(max_batch_rows=3)


@pytest.mark.parametrize("name", ["marian", "bart", "gpt2", "bert"])
def test_only_output_rows_are_as_wide_as_the_vocabulary(pairs, name):
    """The bias of Marian's logits is as long as the vocabulary: 58,101 in published models with layers of 2,048."""
    loaded, config = pairs(name).loaded, (GENERATING | ENCODERS)[name][1]
    sizes = loaded.step_tokens(OPTIONS)
    tokens = max(sizes.batch if loaded.generates else 0, sizes.encode if loaded.encodes or loaded.source_tokens else 0)
    assert config.vocab_size > config.hidden_size, "the case shows nothing"
    rows = OPTIONS.max_batch_rows if loaded.generates else 0
    layers = needed_memory(0, loaded, None, 0, OPTIONS).step_bytes // 4 - rows * LOGIT_COPIES * config.vocab_size
    widest = layers // (tokens * STEP_TENSORS)
    assert config.hidden_size <= widest < config.vocab_size
