"""The hidden states of output rows have the same bits, whether or not all other rows are computed too.

This is tested for every family in float32, bfloat16, int8 and int4, with and without programs. A rare family runs with
only one precision.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from models.backends import choice
from models.backends.cpu import operations as cpu_ops
from models.checkpoint.loader import load_model
from models.layers.convolution_layer import ConvolutionLayer
from tests.engine.tiny_checkpoints import DECODERS, SEQ2SEQ
from tests.invariance.test_bits import CASES, CPU
from tests.invariance.test_encoder_bits import LENGTHS, OWN_PARTS, TEXTS
from tests.parity.adapters import save_adapter
from tests.parity.checkpoints import save
from tests.parity.paged import Rows, encoder_batch
from tests.parity.test_encoders import BODIES
from tests.parity.test_sparse_encoders import CASES as SPARSE
from tests.rare_families import in_turn

STEPS = [
    ({0: 9, 1: 3, 2: 1}, {0: 0, 1: 1, 2: 1}),
    ({0: 4, 1: 5, 3: 12}, {0: 0, 1: 0, 3: 0}),
    ({2: 1, 0: 3, 1: 6, 3: 1}, {2: 1, 0: 3, 1: 2, 3: 0}),
    ({0: 1, 1: 2, 3: 1}, {0: 1, 1: 0, 3: 1}),
    ({0: 1, 1: 1, 2: 4}, {0: 1, 1: 1, 2: 4}),
]
"""For each step: the number of tokens of each sequence, and the number of its output rows.

A sequence has no output row in a chunk before the end of its prompt, one at the end of the prompt or in a decode step,
and several with drafts. In the last step, all rows are output rows."""


def found(model, sources, steps, adapters=()):
    rows, parts = Rows(model, sources, adapters=adapters), []
    rows.expect([[0] * 16, [0] * 8, [0], [0] * 14])
    for counts, wanted in steps:
        past = {row: rows.lengths.get(row, 0) for row in counts}
        tokens = {row: [5 + (7 * row + 11 * (past[row] + i)) % 41 for i in range(n)] for row, n in counts.items()}
        parts += rows.feed(tokens, wanted)
    return parts


def compare(model, sources=None, adapters=()):
    """Compare a run that computes only the output rows with a run that computes all rows, with and without programs."""
    everything = found(model, sources, [(counts, None) for counts, _ in STEPS], adapters)
    wanted = [count for _, counts in STEPS for count in counts.values()]
    for way in ({"name": "cpu"}, {"name": "cpu", "programs": False}):
        with choice.using(**way):
            for part, whole, count in zip(found(model, sources, STEPS, adapters), everything, wanted, strict=True):
                assert len(part) == count
                assert torch.equal(part, whole[len(whole) - count :])


@pytest.mark.parametrize("name, case", in_turn([*DECODERS, *SEQ2SEQ], CASES))
@torch.inference_mode()
def test_every_family(saved, name, case):
    assert cpu_ops.available(), "build the kernels: pip install -e ."
    dtype, quantization = CASES[case]
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    model = load_model(saved(config, architecture), dtype, CPU, quantization=quantization).transformer
    compare(model, [[9, 8, 7], [6], [5, 4, 3, 2], [8, 9]] if name in SEQ2SEQ else None)


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "bart"])
@torch.inference_mode()
def test_adapters(tmp_path, name):
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    oracle = save(tmp_path / "base", config, architecture)
    save_adapter(oracle, tmp_path / "warm", 0)
    model = load_model(tmp_path / "base", torch.float32, CPU, adapters={"warm": tmp_path / "warm"}).transformer
    sources = [[9, 8, 7], [6], [5, 4, 3, 2], [8, 9]] if name in SEQ2SEQ else None
    compare(model, sources, ("warm", "", "warm", ""))


@pytest.mark.parametrize("name", ["llama", "mistral", "bloom", "t5"])
@torch.inference_mode()
def test_the_torch_backend(saved, name):
    """Output rows are nearly equal with the torch backend.

    The last bits of torch's matrix products depend on the number of rows.
    """
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    directory = saved(config, architecture)
    sources = [[9, 8, 7], [6], [5, 4, 3, 2], [8, 9]] if name in SEQ2SEQ else None
    with choice.using("torch"):
        model = load_model(directory, torch.float32, CPU).transformer
        everything = found(model, sources, [(counts, None) for counts, _ in STEPS])
        for part, whole in zip(found(model, sources, STEPS), everything, strict=True):
            torch.testing.assert_close(part, whole[len(whole) - len(part) :], rtol=1e-5, atol=1e-5)


def compare_texts(model, adapters=()):
    batch = replace(encoder_batch(TEXTS, CPU), adapters=adapters)
    everything = model.encode(batch)
    for positions in ([0] * 7, [length - 1 for length in LENGTHS], [length // 2 for length in LENGTHS]):
        one = replace(batch, output_positions=tuple(positions))
        expected = everything[one.output_rows]
        for way in ({"name": "cpu"}, {"name": "cpu", "programs": False}):
            with choice.using(**way):
                assert torch.equal(model.encode(one), expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("body", [*BODIES, *SPARSE, *OWN_PARTS])
@torch.inference_mode()
def test_encoders(saved, body, case):
    dtype, quantization = CASES[case]
    family, options = (BODIES | SPARSE | OWN_PARTS)[body]
    directory = saved(getattr(transformers, f"{family}Config")(**options), f"{family}Model")
    compare_texts(load_model(directory, dtype, CPU, quantization=quantization).transformer)


@torch.inference_mode()
def test_a_convolution_in_the_last_layer(saved):
    family, options = BODIES["deberta-v2-wide"]
    config = getattr(transformers, f"{family}Config")(**{**options, "num_hidden_layers": 1})
    model = load_model(saved(config, f"{family}Model"), torch.float32, CPU).transformer
    assert isinstance(model.encoder.layers[-1], ConvolutionLayer)
    compare_texts(model)


@pytest.mark.parametrize("body", ["bert-small", "deberta-v2-wide"])
@torch.inference_mode()
def test_adapters_of_texts(tmp_path, body):
    family, options = BODIES[body]
    config = getattr(transformers, f"{family}Config")(**options)
    save_adapter(save(tmp_path / "base", config, f"{family}Model"), tmp_path / "warm", 0, target_modules=["dense"])
    model = load_model(tmp_path / "base", torch.float32, CPU, adapters={"warm": tmp_path / "warm"}).transformer
    compare_texts(model, ("warm", "", "warm", "", "", "warm", ""))


@pytest.mark.parametrize(
    "name", ["gpt2", "mistral", "bloom", "falcon", "gemma3", "llama-dynamic", "t5", "pegasus_x", "switch_transformers"]
)
@torch.inference_mode()
def test_texts_in_generating_families(saved, name):
    architecture, config = (DECODERS | SEQ2SEQ)[name]
    compare_texts(load_model(saved(config, architecture), torch.float32, CPU).transformer)


@pytest.mark.parametrize("body", ["bert-small", "modernbert-small", "mpnet-wide", "deberta-small"])
@torch.inference_mode()
def test_the_torch_backend_with_texts(saved, body):
    family, options = BODIES[body]
    directory = saved(getattr(transformers, f"{family}Config")(**options), f"{family}Model")
    batch = encoder_batch(TEXTS, CPU)
    with choice.using("torch"):
        model = load_model(directory, torch.float32, CPU).transformer
        one = replace(batch, output_positions=tuple(length // 2 for length in LENGTHS))
        torch.testing.assert_close(model.encode(one), model.encode(batch)[one.output_rows], rtol=1e-5, atol=1e-5)
