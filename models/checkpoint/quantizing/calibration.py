"""Round the matrices of a model by the inputs that they get when the model reads some texts, one layer after the other.

A layer is read and computes all texts, which gives the inputs of its matrices. Then it is rounded and computes the
texts again, so that the inputs of later layers contain its errors. Memory: the hidden states of all texts, one layer in
float32, and an [in, in] matrix for each matrix of the layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from models.backends.linear_weights import DenseWeight, LinearWeight
from models.checkpoint.expected_tensors import ExpectedTensors
from models.checkpoint.quantizing.error_feedback import round_with_feedback
from models.checkpoint.quantizing.schemes import Precision, rounded
from models.config import Activation, ConfigError
from models.layers.embeddings import Embedding
from models.layers.linear import Linear, set_parameter
from models.stack import Stack
from models.steps.batch import EncoderBatch
from models.transformer import Transformer
from weights.finite import is_finite
from weights.load import TensorSource
from weights.quantized.write_compressed_tensors import Scheme
from weights.quantized_matrix import QuantizedMatrix
from weights.stored import StoredTensor

_TOKENS_TOGETHER = 2048


class _ObservedWeight:
    """A dense weight that also sums the products of its inputs. Implements `LinearWeight`.

    moment: [in, in], float32: `X^T X`, with one row of X per token.
    tokens: number of tokens so far.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias, self._dense = bias, DenseWeight(weight, bias)
        self.moment, self.tokens = torch.zeros(weight.shape[1], weight.shape[1]), 0

    @property
    def nbytes(self) -> int:
        return self._dense.nbytes

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        self.moment.addmm_(x.T, x)
        self.tokens += len(x)
        return self._dense.multiply(x, activation, multiplier, out)

    def rows(self, index: Tensor) -> Tensor:
        return self._dense.rows(index)

    def slice(self, first: int, end: int) -> LinearWeight | None:
        return self._dense.slice(first, end)


class Calibration:
    """Rounds the matrices of one model by the inputs that they get from some texts.

    transformer: on the meta device; it is filled and emptied layer by layer.
    sources: where each parameter of the checkpoint is read from, by its name in the model.
    expected: which parameters the checkpoint has, and which are zero or tied.
    stored: tensors of the open checkpoint.
    schemes: scheme of each matrix to round, by its name in the checkpoint.
    precision: precision that the schemes belong to.
    texts: token ids of each text.

    calibrated: number of matrices that were rounded by their inputs so far. The other matrices belong to experts that
        no token chose.
    Raises ConfigError for a model that is not one stack of layers that read text.
    """

    def __init__(
        self,
        transformer: Transformer,
        sources: Mapping[str, TensorSource],
        expected: ExpectedTensors,
        stored: Mapping[str, StoredTensor],
        schemes: Mapping[str, Scheme],
        precision: Precision,
        texts: Sequence[Sequence[int]],
    ) -> None:
        self._transformer, self._sources, self._stored = transformer, sources, stored
        self._expected, self._schemes, self._precision = expected, schemes, precision
        self._name, self._stack = _only_stack(transformer)
        self._batches = list(_batches(texts))
        self.calibrated = 0

    @torch.no_grad()
    def run(self) -> Iterator[tuple[str, QuantizedMatrix]]:
        """Yield the name in the checkpoint and the rounded matrix, for each matrix of the layers that has a scheme.

        Raises ConfigError for weights with NaN or infinity.
        """
        transformer, prefix = self._transformer, f"{self._name}.layers."
        transformer.attention_dtype = torch.float32
        names = [*self._sources, *self._expected.zero, *self._expected.tied]
        self._fill(name for name in names if name.startswith(f"{self._name}.") and not name.startswith(prefix))
        states = [transformer.layer_inputs(batch) for batch in self._batches]
        for index, layer in enumerate(self._stack.layers):
            of_layer = [name for name in names if name.startswith(f"{prefix}{index}.")]
            self._fill(of_layer)
            observed = self._observe(layer, f"{prefix}{index}.")
            for hidden, step in states:
                layer(hidden, step)
            matrices = dict.fromkeys(self._sources[name].name for name in of_layer if name in self._sources)
            for stored_name in matrices:
                if stored_name in self._schemes:
                    yield stored_name, self._rounded(stored_name, observed)
            states = [(layer(hidden, step), step) for hidden, step in states]
            # The memory of the layer is free from here on.
            self._stack.layers[index] = nn.Identity()

    def _fill(self, names: Collection[str] | Iterator[str]) -> None:
        """Fill parameters of the model: with values from the checkpoint, with zeros, or with a tied parameter.

        names: names of the parameters. Raises ConfigError for NaN or infinity.
        """
        assign = partial(set_parameter, self._transformer)
        for name in names:
            if name in self._expected.tied:
                assign(name, self._transformer.get_parameter(self._expected.tied[name]))
                continue
            if name in self._expected.zero:
                assign(name, torch.zeros(self._expected.zero[name]))
                continue
            source = self._sources[name]
            value = source.read(self._stored)
            assert isinstance(value, Tensor), "the checkpoint is not quantised"
            if not is_finite(value):
                raise ConfigError(f"{source.name!r} contains NaN or infinity")
            assign(name, value.float().contiguous())

    def _observe(self, layer: nn.Module, prefix: str) -> Mapping[str, tuple[Linear, _ObservedWeight]]:
        """Replace the weights of a layer that will be rounded by observed weights.

        prefix: beginning of the layer's parameter names.
        Returns each linear and its observed weight, by the name of the parameter.
        """
        found = {}
        for path, module in layer.named_modules():
            name = f"{prefix}{path}.weight"
            if not isinstance(module, Linear) or name not in self._sources:
                continue
            if self._sources[name].name in self._schemes:
                assert isinstance(module.weight, Tensor)
                observed = _ObservedWeight(module.weight, module.bias)
                module.use_packed(observed)
                found[name] = module, observed
        return found

    def _rounded(self, stored_name: str, observed: Mapping[str, tuple[Linear, _ObservedWeight]]) -> QuantizedMatrix:
        """Round a matrix of the checkpoint, and replace the observed weights of the model by rounded weights."""
        parts = {name: part for name, part in observed.items() if self._sources[name].name == stored_name}
        scheme, weight = self._schemes[stored_name], self._stored[stored_name].read()
        # All parts of a matrix, such as queries, keys and values, have the same inputs.
        _, reached = max(parts.values(), key=lambda part: part[1].tokens)
        if reached.tokens:
            matrix = round_with_feedback(weight, reached.moment, scheme)
            self.calibrated += 1
        else:
            matrix = rounded(weight, self._precision, scheme)
        for name, (linear, part) in parts.items():
            value = self._sources[name].of(matrix)
            dense = value if isinstance(value, Tensor) else value.dequantized(torch.float32)
            linear.packed = DenseWeight(dense, part.bias)
        return matrix


def _only_stack(transformer: Transformer) -> tuple[str, Stack]:
    stacks = {"encoder": transformer.encoder, "decoder": transformer.decoder}
    found = [(name, stack) for name, stack in stacks.items() if stack is not None]
    reason = ""
    if len(found) != 1:
        reason = "it has an encoder and a decoder"
    elif not isinstance(found[0][1].embedding, Embedding):
        reason = "it reads sound"
    elif found[0][1].config.sharing or found[0][1].streams is not None:
        reason = "its layers share weights" if found[0][1].config.sharing else "its layers have several streams"
    if reason:
        raise ConfigError(f"--calibrate takes models of one stack of layers that read text: {reason}")
    return found[0]


def _batches(texts: Sequence[Sequence[int]]) -> Iterator[EncoderBatch]:
    together: list[Sequence[int]] = []
    for text in texts:
        if together and sum(map(len, together)) + len(text) > _TOKENS_TOGETHER:
            yield _batch(together)
            together = []
        together.append(text)
    yield _batch(together)


def _batch(texts: Sequence[Sequence[int]]) -> EncoderBatch:
    ids = torch.tensor([token for text in texts for token in text])
    return EncoderBatch(ids, tuple(map(len, texts)))
