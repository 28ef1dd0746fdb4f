"""Recurrent mixers: both forms (stepwise and in chunks) equal a plain recurrence in float64.

No bit depends on how a prompt is divided or on other rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from models.backends import choice
from models.config import (
    CHUNK_TOKENS,
    ConfigError,
    GatedDeltaConfig,
    LayerConfig,
    NormSlots,
    ShortConvolutionConfig,
    StateSpaceConfig,
    StateSpaceMultipliers,
)
from models.layers.layer import make_mixer
from models.layers.mixer import Mixer

HIDDEN = 24
LENGTH = 2 * CHUNK_TOKENS + 13
CONFIGS = {
    "short convolution": ShortConvolutionConfig(20, 4, bias=True),
    "gated delta": GatedDeltaConfig(2, 8, 6, 5, 4, 1e-6),
    "state space": StateSpaceConfig(6, 5, 8, 2, 4, 1e-5, norm_groups=2),
    "state space with factors": StateSpaceConfig(
        4, 6, 8, 1, 3, None, gate="after", multipliers=StateSpaceMultipliers(0.9, 1.1, 0.7, 1.2, 0.8, 1.3, 0.6)
    ),
}


@pytest.fixture(params=CONFIGS, ids=str)
def mixer(request) -> Mixer:
    """A mixer with random weights and a slow decay, so that its state depends on the whole text."""
    torch.manual_seed(0)
    mixer = make_mixer(CONFIGS[request.param], HIDDEN).eval()
    for name, tensor in mixer.named_parameters():
        tensor.copy_(0.4 * torch.randn_like(tensor) + (-4 if name == "log_decay" else 0))
    return mixer


def zeros(mixer: Mixer, slots: int = 1) -> list[torch.Tensor]:
    return [torch.zeros(slots, *shape) for shape in mixer.config.state_shapes]


def rows_of(tensors, rows) -> tuple[torch.Tensor, ...]:
    return tuple(tensor[rows] for tensor in tensors)


def projections(mixer: Mixer, seed: int = 1, length: int = LENGTH) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return mixer.project(torch.randn(length, HIDDEN, generator=generator))


def stepwise(mixer: Mixer, inputs, states, slot: int = 0) -> torch.Tensor:
    slots = torch.tensor([slot])
    return torch.cat([mixer.step(rows_of(inputs, [index]), states, slots) for index in range(len(inputs[0]))])


def convolved(mixer: Mixer, inputs: torch.Tensor) -> torch.Tensor:
    """The mixer's convolution over a whole text, in float64."""
    weight, bias = mixer.convolution.weight.double(), mixer.convolution.bias
    padded = F.pad(inputs.double().T[None], (weight.shape[2] - 1, 0))
    return F.conv1d(padded, weight, None if bias is None else bias.double(), groups=len(weight))[0].T


def delta_reference(mixer: Mixer, inputs) -> torch.Tensor:
    config, state = mixer.config, torch.zeros(6, 8, 5, dtype=torch.float64)
    query, key, value = F.silu(convolved(mixer, torch.cat(inputs[:3], -1))).split([16, 16, 30], -1)
    query, key = (F.normalize(tensor.unflatten(-1, (2, 8)), dim=-1).repeat_interleave(3, 1) for tensor in (query, key))
    beta, step = inputs[4].double().sigmoid(), F.softplus(inputs[5].double() + mixer.decay_bias.double())
    decay, results = (-mixer.log_decay.double().exp() * step).exp(), []
    for q, k, v, b, d in zip(query, key, value.unflatten(-1, (6, 5)), beta, decay, strict=True):
        state = state * d[:, None, None]
        correction = (v - torch.einsum("hkv,hk->hv", state, k)) * b[:, None]
        state = state + torch.einsum("hk,hv->hkv", k, correction)
        results.append(torch.einsum("hkv,hk->hv", state, q) / config.key_head_dim**0.5)
    return torch.stack(results).flatten(1)


def space_reference(mixer: Mixer, inputs) -> torch.Tensor:
    config = mixer.config
    heads, dim, size, groups = config.num_heads, config.head_dim, config.state_size, config.num_groups
    factors = config.multipliers or StateSpaceMultipliers()
    scaled = zip(inputs[1:4], (factors.values, factors.keys, factors.queries), strict=True)
    joined = torch.cat([part.double() * factor for part, factor in scaled], -1)
    parts = F.silu(convolved(mixer, joined)).split([heads * dim, groups * size, groups * size], -1)
    values = parts[0].unflatten(-1, (heads, dim))
    keys, queries = (part.unflatten(-1, (groups, size)).repeat_interleave(heads // groups, 1) for part in parts[1:])
    steps = F.softplus(inputs[4].double() * factors.time_step + mixer.time_step_bias.double())
    state, results = torch.zeros(heads, dim, size, dtype=torch.float64), []
    for x, b, c, dt in zip(values, keys, queries, steps, strict=True):
        state = state * (-mixer.log_decay.double().exp() * dt).exp()[:, None, None]
        state = state + torch.einsum("hp,hn->hpn", x * dt[:, None], b)
        results.append(torch.einsum("hpn,hn->hp", state, c) + mixer.skip.double()[:, None] * x)
    return torch.stack(results).flatten(1)


@torch.inference_mode()
def test_both_forms_equal_the_recurrence(mixer):
    inputs = projections(mixer)
    match mixer.config:
        case ShortConvolutionConfig():
            expected = inputs[1].double() * convolved(mixer, inputs[0] * inputs[2])
        case GatedDeltaConfig():
            expected = delta_reference(mixer, inputs)
        case StateSpaceConfig():
            expected = space_reference(mixer, inputs)
    chunked_state, stepped_state = zeros(mixer), zeros(mixer)
    chunked = mixer.chunked(inputs, [tensor[0] for tensor in chunked_state])
    torch.testing.assert_close(chunked.double(), expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(stepwise(mixer, inputs, stepped_state).double(), expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(chunked_state, stepped_state, atol=2e-5, rtol=2e-5)
    assert expected[-20:].std() > 0.05


@torch.inference_mode()
def test_cuts_on_the_grid_change_no_bit(mixer):
    inputs, whole_state, cut_state = projections(mixer), zeros(mixer), zeros(mixer)
    whole = mixer.chunked(inputs, [tensor[0] for tensor in whole_state])
    spans = [(0, CHUNK_TOKENS), (CHUNK_TOKENS, 2 * CHUNK_TOKENS), (2 * CHUNK_TOKENS, LENGTH)]
    parts = [mixer.chunked(rows_of(inputs, slice(*span)), [tensor[0] for tensor in cut_state]) for span in spans]
    assert torch.equal(torch.cat(parts), whole)
    assert all(map(torch.equal, cut_state, whole_state))


@pytest.mark.parametrize("rows", [2, 3, 7, 33])
@torch.inference_mode()
def test_other_rows_change_no_bit(mixer, rows):
    """Each row of a step has the same bits as alone, in any slot of the state memory."""
    inputs = projections(mixer, length=rows)
    memory = [torch.randn(rows + 4, *shape) for shape in mixer.config.state_shapes]
    slots = torch.randperm(rows + 4)[:rows]
    together = [tensor.clone() for tensor in memory]
    results = mixer.step(inputs, together, slots)
    for row, slot in enumerate(slots.tolist()):
        alone = [tensor[slot : slot + 1].clone() for tensor in memory]
        assert torch.equal(mixer.step(rows_of(inputs, [row]), alone, torch.tensor([0])), results[row : row + 1])
        assert all(torch.equal(one[0], tensor[slot]) for one, tensor in zip(alone, together, strict=True))
    unused = sorted(set(range(rows + 4)) - set(slots.tolist()))
    assert all(torch.equal(one[unused], tensor[unused]) for one, tensor in zip(memory, together, strict=True))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)], ids=str)
@torch.inference_mode()
def test_kernels_equal_the_reference(mixer, dtype, bound):
    """The kernels equal the torch backend for one token per row: results, states and gated norms."""
    if not choice.kernels_are_built:
        pytest.skip("no compiled kernels")
    rows, slots = 5, torch.tensor([6, 0, 3, 7, 1])
    inputs, mixer = tuple(each.to(dtype) for each in projections(mixer, length=rows)), mixer.to(dtype)
    memory = [torch.randn(8, *shape) for shape in mixer.config.state_shapes]
    found = {}
    for backend in ("torch", "cpu"):
        with choice.using(backend):
            states = [tensor.clone() for tensor in memory]
            mixed = mixer.step(inputs, states, slots)
            found[backend] = mixed, *states, mixer.finish(mixed, inputs)
    for one, other in zip(found["torch"], found["cpu"], strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), atol=bound, rtol=bound)


@torch.inference_mode()
def test_time_steps_are_limited_in_chunks_only():
    """Time steps are limited in the chunked form but not in the stepwise form, as in transformers."""
    usual, limited = (StateSpaceConfig(4, 6, 8, 1, 3, 1e-5, chunk_time_steps=(low, 9.0)) for low in (0.0, 5.0))
    torch.manual_seed(0)
    mixers = [make_mixer(config, HIDDEN) for config in (usual, limited)]
    for tensor, other in zip(mixers[0].parameters(), mixers[1].parameters(), strict=True):
        other.copy_(tensor.normal_(0, 0.3))
    inputs = projections(mixers[0], length=5)
    steps = [stepwise(mixer, inputs, zeros(mixer)) for mixer in mixers]
    chunks = [mixer.chunked(inputs, [tensor[0] for tensor in zeros(mixer)]) for mixer in mixers]
    assert torch.equal(steps[0], steps[1])
    assert not torch.allclose(chunks[0], chunks[1], atol=1e-2)


@pytest.mark.parametrize(
    "kind, values, message",
    [
        (ShortConvolutionConfig, (0, 3), "width"),
        (ShortConvolutionConfig, (8, 1), "kernel size"),
        (GatedDeltaConfig, (2, 8, 3, 8, 4, 1e-6), "num_value_heads 3"),
        (GatedDeltaConfig, (2, 8, 4, 0, 4, 1e-6), "dimension"),
        (GatedDeltaConfig, (2, 8, 4, 8, 1, 1e-6), "kernel size"),
        (StateSpaceConfig, (4, 8, 8, 3, 4, 1e-5), "num_heads 4"),
        (StateSpaceConfig, (4, 8, 8, 1, 4, 1e-5, 3), "width 32"),
        (StateSpaceConfig, (4, 8, 8, 1, 4, 0.0), "eps"),
        (LayerConfig, (None, NormSlots(), None, NormSlots()), "attention, a mixer or a feed-forward"),
    ],
)
def test_impossible_configurations_are_refused(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(*values)
