"""Inside the worker: requests in, tokens out, one step at a time. Knows models and messages; no text and no HTTP.

`worker` is the process and `service` its loop; `engine` chooses a model, `generation` and `encoding` run one, `hearing`
is how they hear. Below them `scheduler`, `block_manager` and `encode_queue` decide what to compute, `runner` computes
it, and `selection`, `sampler`, `logits_processors`, `timestamps` and `beam_search` choose what follows.
"""
