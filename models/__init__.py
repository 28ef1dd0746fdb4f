"""The mathematics of Triptych: one transformer built of parts, in torch, for all three families.

Knows tensors. Does not know requests, HTTP, files or schedules.

Shape words used in every docstring of this package:

| word       | meaning                                                              |
|------------|----------------------------------------------------------------------|
| `tokens`   | all tokens of a step, packed one sequence after the other, no padding |
| `batch`    | sequences of a step                                                  |
| `rows`     | sequences of a decoder step (a beam is a row of its own)             |
| `seq`      | tokens of one sequence                                               |
| `frames`   | moments of sound, 100 a second, packed like tokens                   |
| `key_len`  | keys that one sequence may look at                                   |
| `heads`    | query heads                                                          |
| `kv_heads` | key/value heads (divides `heads`)                                    |
| `head_dim` | width of one head                                                    |
| `hidden`   | width of the residual stream                                         |
| `vocab`    | vocabulary entries                                                   |
| `blocks`   | blocks of a KV pool; a block holds `block_size` token slots          |

This file imports nothing, so that `models.config` and `models.families` stay free of torch.
"""
