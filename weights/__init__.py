"""Checkpoint files: finding, reading and checking them, and the demo checkpoints.

| file               | purpose                                                                          |
|--------------------|----------------------------------------------------------------------------------|
| `resolve`          | find the checkpoint directory for a path or a hub id                             |
| `read`             | list the tensors of a directory and read each of them by name, when it is needed |
| `manifest`         | compare the files with their published SHA-256 digests                           |
| `rules`            | convert the names and layouts of a checkpoint to those of a model; no torch      |
| `load`             | check that a checkpoint has exactly the tensors of a model, and load them        |
| `quantized_matrix` | a matrix of small codes with scales, as rules and kernels see it                 |
| `quantized`        | formats of quantised checkpoints, one file each                                  |
| `json_files`       | the JSON files of a checkpoint, or the metadata of a GGUF file in their place    |
| `gguf`             | the header of GGUF files, and the JSON files that their metadata replace         |
| `demo`             | small checkpoints that ship with Triptych, and the recipe that trains them       |

Imports nothing of `models` or `server`.
This file imports nothing, so that `weights.rules` can be imported without torch.
"""
