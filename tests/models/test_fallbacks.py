"""A stack that cannot be traced runs eagerly, with the same results and a reason; an error is never a fallback."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from benchmarks import plan
from benchmarks.checkpoints import SHAPES
from models.backends import choice
from models.backends.cpu.programs import inputs
from models.backends.cpu.programs.symbol import NotTraceable
from models.backends.cpu.programs.trace import Trace
from models.backends.logits import LogitsRequest
from models.checkpoint.loader import load_model
from models.layers.heads import LanguageModel
from tests.engine.tiny_checkpoints import DECODERS, ENCODERS, SEQ2SEQ
from tests.parity.paged import Rows, encoder_batch
from weights.demo.train.training import HOME

DEVICE = torch.device("cpu")
TEXTS = [[5, 6, 7, 8], [11, 3]]
WEIGHT = torch.ones(8, 8)
"""A tensor with values, in contrast to the symbolic tensors of a trace."""

pytestmark = pytest.mark.usefixtures("kernels")


def in_place(x):
    x += x


def assign(x, value):
    x[:, :1] = value


UNSUPPORTED = {
    "len": len,
    "rows": lambda x: x[:1],
    "row": lambda x: x[0],
    "mask": lambda x: x[WEIGHT[0] > 0, :4],
    "new dimension": lambda x: x[:, None],
    "dots": lambda x: x[..., :4],
    "three indices": lambda x: x[:, :4, :4],
    "column": lambda x: x[:, 3],
    "gaps": lambda x: x[:, ::2],
    "empty slice": lambda x: x[:, 4:4],
    "assignment": lambda x: assign(x, 0),
    "less": lambda x: x < 0,
    "equal": lambda x: x == x,
    "difference": lambda x: x - x,
    "number first": lambda x: 2.0 * x,
    "quotient": lambda x: x / 2,
    "power": lambda x: x**2,
    "matrix product": lambda x: x @ WEIGHT,
    "matrix product of a tensor": lambda x: WEIGHT @ x,
    "negative": lambda x: -x,
    "absolute": abs,
    "in place": in_place,
    "sum with a number": lambda x: x + 1.0,
    "sum with a tensor": lambda x: x + WEIGHT[0],
    "product with a tensor": lambda x: x * WEIGHT[0],
    "product with another dtype": lambda x: x * torch.ones(1, dtype=torch.float64),
    "truth": bool,
    "number": float,
    "iteration": list,
    "membership": lambda x: 1.0 in x,
    "flatten": lambda x: x.flatten(),
    "flatten range": lambda x: x.flatten(0, 1),
    "view of one number": lambda x: x.view(-1),
    "view of other sizes": lambda x: x.view(x.shape[0], 7),
    "view without sizes": lambda x: x.view(),
    "view as a dtype": lambda x: x.view(torch.int32),
    "strides": lambda x: x.stride(),
    "new_empty of numbers": lambda x: x.new_empty(3, 4),
    "new_empty of other rows": lambda x: x.new_empty((3, 4)),
    "new_empty on a device": lambda x: x.new_empty((x.shape[0], 4), device="cpu"),
    "unknown method": lambda x: x.clamp(0),
    "unknown keyword": lambda x: x.contiguous(memory_format=torch.contiguous_format),
    "unknown attribute": lambda x: x.T,
    "hasattr": lambda x: hasattr(x, "device"),
    "new attribute": lambda x: setattr(x, "mark", 1),
    "format": lambda x: f"{x:.2f}",
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "numpy": np.asarray,
    "torch function": torch.relu,
    "torch.nn.functional": F.silu,
    "joined": lambda x: torch.cat([x, x]),
    "stacked with a tensor": lambda x: torch.stack([WEIGHT, x]),
    "index of a tensor": lambda x: WEIGHT[x],
    "index of columns": lambda x: WEIGHT[:, x],
    "assignment to a tensor": lambda x: assign(torch.ones(8, 8), x),
    "new tensor": lambda x: torch.tensor([x]),
    "math": math.sqrt,
    "rows compared": lambda x: x.shape[0] > 1,
    "rows equal": lambda x: x.shape[0] == 0,
    "rows as truth": lambda x: bool(x.shape[0]),
    "rows in a range": lambda x: range(x.shape[0]),
    "rows in a list": lambda x: [0] * x.shape[0],
    "rows added": lambda x: x.shape[0] + 1,
    "rows subtracted": lambda x: 1 - x.shape[0],
    "rows divided": lambda x: x.shape[0] // 2,
    "largest": lambda x: max(x.shape[0], 4),
    "rows of a torch function": lambda x: torch.arange(x.shape[0]),
    "rows in a slice": lambda x: WEIGHT[: x.shape[0]],
    "rows as a key": lambda x: {x.shape[0]: 1},
    "shape compared": lambda x: x.shape == (1, 8),
    "product of the shape": lambda x: math.prod(x.shape),
    "numbers of the shape": lambda x: x.shape.numel(),
    "integers added": lambda x: x.trace.input(inputs.TOKEN_IDS) + x.trace.input(inputs.TOKEN_POSITIONS),
}


def symbolic():
    return Trace().input(inputs.hidden(torch.float32, 8))


@pytest.mark.parametrize("use", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_every_unsupported_use_raises_one_exception(use):
    x = symbolic()
    with pytest.raises(NotTraceable):
        use(x)
    assert x.trace.refusal is not None


def test_a_constant_of_one_number_is_a_factor():
    x = symbolic()
    y = x * torch.tensor([0.5])
    assert y.row_shape == (8,) and x.trace.operations[-1].fields["factor"] == 0.5
    assert x.trace.refusal is None


def loaded(saved, name):
    architecture, config = (DECODERS | SEQ2SEQ | ENCODERS)[name]
    return load_model(saved(config, architecture), torch.float32, DEVICE).transformer


def swallow(x):
    try:
        return bool(x.sum())
    except Exception:
        return False


def rows_of_torch(x):
    """Code that passes the symbolic number of rows to torch, which raises TypeError instead of our exception."""
    return torch.empty(x.shape[0], 3)


@pytest.mark.parametrize(
    "use", [lambda x: len(x), lambda x: x.shape[0] > 1, swallow, rows_of_torch], ids=["len", "rows", "swallow", "torch"]
)
@torch.inference_mode()
def test_a_layer_that_cannot_be_traced_runs_eagerly_and_says_why(saved, monkeypatch, use):
    model = loaded(saved, "llama")
    layer = model.decoder.layers[1].feed_forward
    forward = type(layer).forward

    def planted(self, x):
        use(x)
        return forward(self, x)

    results = []
    for is_planted in (False, True):
        if is_planted:
            monkeypatch.setattr(type(layer), "forward", planted)
            model = loaded(saved, "llama")
        rows = Rows(model)
        rows.feed(dict(enumerate(TEXTS)))
        results.append(rows.decode({0: [9], 1: [10]}, None, LogitsRequest(2)).logits.clone())
        assert model.execution.startswith("eager: layers of the decoder (") == is_planted
    assert torch.equal(*results)
    assert model.eager_parts and "in Layer." in model.execution


@pytest.mark.parametrize("error", [TypeError("a bug"), ValueError("a bug"), RuntimeError("a bug")])
@torch.inference_mode()
def test_an_error_while_tracing_is_no_fallback(saved, monkeypatch, error):
    model = loaded(saved, "llama")
    is_eager = []

    def planted(self, x):
        is_eager.append(isinstance(x, torch.Tensor))
        raise error

    monkeypatch.setattr(type(model.decoder.layers[1].feed_forward), "forward", planted)
    for _ in range(2):
        with pytest.raises(type(error), match="a bug"):
            Rows(model).feed(dict(enumerate(TEXTS)))
    assert is_eager == [False, False], "the layers must not run eagerly after the error"
    assert model.eager_parts == ()


@torch.inference_mode()
def test_a_head_that_cannot_be_traced_runs_eagerly_after_the_program_of_the_layers(saved, monkeypatch):
    forward = LanguageModel.forward
    results = []
    for is_planted in (False, True):
        if is_planted:
            monkeypatch.setattr(LanguageModel, "forward", lambda *arguments: forward(*arguments).neg_().neg_())
        model = loaded(saved, "llama")
        rows = Rows(model)
        rows.feed(dict(enumerate(TEXTS)))
        results.append(rows.decode({0: [9], 1: [10]}, None, LogitsRequest(2)).logits.clone())
    assert torch.equal(*results)
    assert model.execution.startswith("eager: output head of the decoder (neg_") and len(model.eager_parts) == 1
    assert model._executors[model.decoder].has_programs


REASONS = {
    "llama4": "layers of the decoder (a product of tensors in MixtureOfExperts._mix_weighted_inputs)",
    "deepseek-v3": "layers of the decoder (",
    "longt5": "layers of the encoder (attention over full sequences in ",
    "switch_transformers": "layers of the encoder (the lengths of the sequences in CapacityLayer._run_feed_forward)",
    "pegasus_x": "layers of the encoder (the lengths of the sequences in GlobalVectorsLayer.forward)",
}


@pytest.mark.parametrize("name", REASONS)
@torch.inference_mode()
def test_reasons(saved, name):
    model = loaded(saved, name)
    rows = Rows(model, TEXTS if name in SEQ2SEQ else None)
    rows.decode(dict(enumerate(TEXTS)), None, LogitsRequest())
    assert model.execution.startswith(f"eager: {REASONS[name]}")
    assert len(model.eager_parts) == 1


@torch.inference_mode()
def test_reasons_without_programs(saved):
    model = loaded(saved, "bert")
    assert model.execution == "eager: no step could run as a program"
    model.encode(encoder_batch(TEXTS, DEVICE))
    assert model.execution == "program"
    with choice.using("torch"):
        model = loaded(saved, "bert")
        assert model.execution.startswith("eager: ") and model.eager_parts == ()
    model = load_model(saved(*reversed(ENCODERS["bert"])), torch.float16, DEVICE).transformer
    model.encode(encoder_batch(TEXTS, DEVICE))
    assert model.execution == "eager: the model computes in float16"


def run_all(model):
    """Run a step of each kind that a server needs."""
    if model.encoder is not None:
        model.encode(encoder_batch(TEXTS, DEVICE))
    if model.decoder is not None:
        rows = Rows(model, None if model.encoder is None else TEXTS)
        rows.feed(dict(enumerate(TEXTS)))
        rows.decode({0: [9], 1: [10]}, {0: 1, 1: 0}, LogitsRequest(2, True))


@pytest.mark.parametrize("name", ["sentence-encoder", "sentiment", "story", "translator-en-fr"])
@pytest.mark.parametrize("quantization", [None, "int8"])
@torch.inference_mode()
def test_demo_models_run_as_programs(name, quantization):
    model = load_model(HOME / name, torch.float32, DEVICE, quantization=quantization).transformer
    run_all(model)
    assert model.execution == "program"


@pytest.mark.parametrize("shape, precision", sorted({(contest.shape, contest.precision) for contest in plan.quick()}))
@torch.inference_mode()
def test_the_shapes_of_the_quick_benchmark_run_as_programs(saved, shape, precision):
    """The models of `make bench-quick` run as programs. They have their real widths, but one layer and few tokens."""
    made = SHAPES[shape]
    few = {name: 1 for name in made.settings if name.endswith("layers")} | {"vocab_size": 400}
    few |= {name: 399 for name, value in made.settings.items() if value == made.vocab_size - 1}
    made = replace(made, settings=made.settings | few)
    directory = saved(getattr(transformers, made.config)(**made.settings), made.architecture)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = load_model(directory, dtype, DEVICE, quantization="int8" if precision == "int8" else None).transformer
    run_all(model)
    assert model.execution == "program"
