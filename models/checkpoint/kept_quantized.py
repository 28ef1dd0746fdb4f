"""Which matrices of a model are quantised, by the checkpoint or by `--quantize`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from models.backends.linear_weights import has_kernel
from models.layers.embeddings import EmbeddingTable
from models.layers.heads import LanguageModel
from models.layers.linear import Linear
from models.layers.moe import MixtureOfExperts
from models.transformer import Transformer
from weights.quantized_matrix import QuantizedMatrix

_SEPARATE = frozenset(("router", "shared_gate", "experts", "key_heads", "value_heads"))
"""Modules whose matrices are not packed one by one. The matrices of experts are packed together, as `kept_quantized`
checks. Quantised routers, gates of shared experts and heads of latent attention are dequantised."""

_NOT_ROUNDED = frozenset(("router", "shared_gate", "key_heads", "value_heads", "beta", "decay"))
"""Modules whose matrices keep their dtype with `--quantize`. They belong to `MixtureOfExperts`, `LatentAttention` and
`GatedDelta`."""


def rounded_linears(transformer: Transformer) -> set[str]:
    """Names of the parameters that `--quantize` rounds, apart from the output head and the token table.

    transformer: not packed yet; may be on the meta device.
    """
    return {
        f"{path}.weight"
        for path, module in transformer.named_modules()
        if isinstance(module, Linear) and _NOT_ROUNDED.isdisjoint(path.split("."))
    }


def kept_quantized(
    transformer: Transformer, dtype: torch.dtype, device: torch.device, matrices: Mapping[str, QuantizedMatrix]
) -> Collection[str]:
    """Names of the parameters that stay quantised, because a kernel multiplies by their quantised matrices.

    dtype: dtype of hidden states. matrices: the quantised matrices of the checkpoint, by the name of the parameter.
    """
    with_kernel = {name for name, matrix in matrices.items() if has_kernel(matrix, dtype, device)}
    kept = {name for name in with_kernel if _takes_matrix(transformer, name)}
    for path, module in transformer.named_modules():
        for linears in module.products if isinstance(module, MixtureOfExperts) else ():
            names = [f"{path}.{linear}.weight" for linear in linears]
            first = matrices.get(names[0])
            if first is not None and with_kernel.issuperset(names):
                kept.update(names if all(first.has_layout_of(matrices[name]) for name in names) else ())
    return kept


def _takes_matrix(transformer: Transformer, name: str) -> bool:
    """Whether the module of a parameter can compute with a quantised matrix. name: name of the parameter."""
    path, _, attribute = name.rpartition(".")
    owner = transformer.get_submodule(path)
    takes = isinstance(owner, Linear | LanguageModel) or type(owner) is EmbeddingTable
    return takes and attribute == "weight" and _SEPARATE.isdisjoint(path.split("."))
