"""Steps of a device as CUDA graphs.

| file               | steps                                                                      |
|--------------------|----------------------------------------------------------------------------|
| `step_graphs`      | decode steps, by number of rows                                            |
| `mixed_graphs`     | steps with prefill or drafts, by number of tokens                          |
| `encoder_graphs`   | steps of an encoder of texts, by number of tokens                          |
| `recording_graphs` | steps of an encoder for recordings of equal length, by their number        |
| `head_graphs`      | passes of a draft head                                                     |

Each captures one graph for each of a few sizes (`captures`). A step runs in the smallest graph that has room for it.
"""
