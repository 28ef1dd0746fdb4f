"""The logits of a row have the same bits alone and in a batch with other adapters, in float32, bfloat16 and int8."""

from __future__ import annotations

import pytest
import torch

from models.backends.cpu import operations as cpu_ops
from models.checkpoint.loader import load_model
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ
from tests.invariance.test_bits import CASES, CPU, TEXTS
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import save
from tests.parity.paged import Rows

SETTINGS = {"warm": {}, "cold": {"target_modules": r".*(q|v|query_key_value|c_attn|q_proj|wi|fc1)", "r": 3}}
ADAPTER_OF_ROW = ("warm", "", "cold", "warm", "")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "phi3", "gemma", "t5", "bart"])
@torch.inference_mode()
def test_decoding_alone_and_together(tmp_path, name, case):
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    oracle = save(tmp_path / "base", config, architecture)
    for seed, adapter in enumerate(SETTINGS):
        chosen = SETTINGS[adapter] if name != "phi3" or adapter == "warm" else {"target_modules": ["gate_up_proj"]}
        save_adapter(oracle, tmp_path / adapter, seed, **chosen)
    paths = {adapter: tmp_path / adapter for adapter in SETTINGS}
    model = load_model(tmp_path / "base", dtype, CPU, quantization=quantization, adapters=paths).transformer
    sources = [text[::-1] for text in TEXTS] if name in SEQ2SEQ else None

    def decode(row_ids):
        texts = [TEXTS[row] for row in row_ids]
        mine = None if sources is None else [sources[row] for row in row_ids]
        rows = Rows(model, mine, adapters=tuple(ADAPTER_OF_ROW[row] for row in row_ids))
        for position in range(4):
            rows.feed({row: [text[position % len(text)]] for row, text in enumerate(texts)})
        fed = rows.feed({row: [50 + which] for row, which in enumerate(row_ids)})
        return [model.logits(hidden) for hidden in fed]

    together = decode(range(5))
    for row in range(5):
        (alone,) = decode([row])
        assert torch.equal(alone, together[row])
    assert torch.equal(decode([0, 3])[1], together[3])
