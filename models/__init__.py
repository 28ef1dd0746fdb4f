"""The transformer models of Triptych, in torch: one transformer built from parts serves all model families.

Imports nothing of `server`. Shape words used in every docstring of this package:

| word       | meaning                                                                          |
|------------|----------------------------------------------------------------------------------|
| `tokens`   | all tokens of a step, one sequence after the other, without padding (ragged)     |
| `batch`    | sequences of a step                                                              |
| `rows`     | sequences of a decoder step; every beam has a row. Also rows of any matrix       |
| `seq`      | tokens of one sequence                                                           |
| `frames`   | spectrogram frames of audio, 100 per second, one recording after the other       |
| `key_len`  | number of keys that one sequence may attend to                                   |
| `heads`    | query heads                                                                      |
| `kv_heads` | key/value heads; their number divides the number of `heads`                      |
| `head_dim` | width of one head                                                                |
| `hidden`   | width of the residual stream                                                     |
| `vocab`    | number of vocabulary entries                                                     |
| `blocks`   | blocks of a KV pool; a block holds `block_size` token slots                      |

This file imports nothing, so that `models.config` and `models.families` can be imported without torch.
"""
