"""From named tensors to a filled model, and back: loading, packing, rounding, and additional heads."""
