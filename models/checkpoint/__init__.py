"""From named tensors to a filled model, and back: loading, packing, rounding, heads beside the main one."""
