"""Commands of `triptych` that work without a running server: check, quantize, pull, list, show, rm, completion."""
