"""The worker: runs models step by step and answers the messages of the HTTP process.

`worker` is the process and `service` its loop. `engine` chooses the model of the next step; `generation_engine`,
`encoder_engine` and `audio_encoder` run one model. `scheduler`, `block_tables`, `block_manager` and `encode_queue`
decide what a step computes. `decoder_batches` builds its batch, and `runner` computes it. `selection`, `sampler`,
`logits_processors`, `grammar_masks`, `timestamps` and `beam_search` choose the next tokens.
"""
