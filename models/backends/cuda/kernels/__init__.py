"""Triton kernels for NVIDIA devices of compute capability 8.0 or later, and the functions that launch them.

Each module imports triton. This file does not, so that it can be imported without triton. The functions compute on the
device of their arguments. In Triton's interpreter (`TRITON_INTERPRET=1`) this device may be the CPU. The tests compare
all functions with the torch reference in the interpreter.

No function reads a device tensor on the host, so all of them can be captured in a CUDA graph. With `out` arguments and
scratch memory, a captured step allocates nothing.

| module               | functions                                                                        |
|----------------------|----------------------------------------------------------------------------------|
| `decode_attention`   | attention of one query per row over a paged cache                                |
| `tile_attention`     | attention of ragged rows of queries, over ragged keys or a paged cache           |
| `rounded_cache`      | rounding of keys and values to int8 or fp8, and the write to the cache           |
| `norms`              | RMS norm, layer norm and scaling to unit length; norms also after a residual sum |
| `rotary`             | rotation of queries and keys, and the write to the cache                         |
| `activation`         | gated activation                                                                 |
| `logits_top_k`       | top k and log-sum-exp of logits                                                  |
| `sampling`           | random draw of tokens                                                            |
| `beams`              | the next beams of beam searches, and the cache slots of their texts              |
| `expert_tiles`       | order of the (token, expert) pairs of a mixture of experts                       |
| `experts`            | products of a mixture of experts                                                 |
| `quantized_experts`  | the same with weights of 8 or 4 bits                                             |
| `fixed_order_linear` | products with float weights whose sums have one order for all numbers of rows    |
| `quantized_linear`   | products with weights of 8 or 4 bits                                             |
| `rounded_rows`       | rounding of rows to 8 or 15 bits, for products with weights of 8 or 4 bits       |
| `row_products`       | products of a single row, with weights of floats, 8 or 4 bits                    |
"""
