"""One function for each hot operation. Layers call these; how they are done is decided here.

`torch_ops` is the reference that any other implementation is tested against.
"""

from models.ops.torch_ops import (
    block_attention,
    layer_norm,
    linear,
    packed_attention,
    paged_attention,
    rms_norm,
    rotate,
)

__all__ = ["block_attention", "layer_norm", "linear", "packed_attention", "paged_attention", "rms_norm", "rotate"]
