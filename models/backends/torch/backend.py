"""The reference backend, in plain torch, for any device and any float dtype. The other backends inherit from it.

An operation that a backend has no kernel for is inherited. Each operation is documented here, in the classes that
`Backend` consists of. docs/adding-an-operation.md shows how to add one.
"""

from __future__ import annotations

from models.backends.torch.attention import TorchAttention
from models.backends.torch.beams import TorchBeams
from models.backends.torch.mixer_chunks import TorchMixerChunks
from models.backends.torch.mixers import TorchMixers
from models.backends.torch.operations import TorchOperations
from models.backends.torch.sampling import TorchSampling


class Backend(TorchOperations, TorchAttention, TorchMixers, TorchMixerChunks, TorchSampling, TorchBeams):
    """All operations that models compute with."""


TORCH = Backend()
