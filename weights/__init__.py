"""Checkpoint bytes: where they come from, reading them, checking them, and the demo checkpoints.

| file       | question it answers                                                             |
|------------|---------------------------------------------------------------------------------|
| `resolve`  | which directory is meant by a path or a hub id                                  |
| `read`     | which tensors a directory holds, each read lazily by name                       |
| `manifest` | are the files those that were published                                         |
| `rules`    | how a checkpoint's names and layouts become ours (no torch: families import it) |
| `load`     | are they exactly the tensors a model expects, and where do they go              |
| `demo`     | small checkpoints that ship, with the recipe that trains them                   |

Knows names, shapes and bytes. Does not know what a model computes, nor anything of the server.
This file imports nothing, so that `weights.rules` stays free of torch.
"""
