"""The operations of the server, without HTTP and JSON. Each turns a typed specification into deltas and a result.

| file                                  | content                                                                     |
|---------------------------------------|-----------------------------------------------------------------------------|
| `generate`, `translate`               | text from a decoder or an encoder-decoder, as a run that can be streamed     |
| `embed`, `classify`, `rerank`, ...    | one file per encoder operation                                              |
| `tokenize`, `transcribe`              | tokens of texts; text of recordings                                         |
| `cost`                                | upper bounds of the work of a specification, before any of it is done       |
| `stages`                              | times of the stages before the engine, for traces                           |
| `runtime`                             | loaded models, the engine client, tokenizer threads                         |
| `encode`                              | for all encoder operations: texts to engine items, and the numbers back     |
| `generation_options`                  | decoding options of a request, and the check for contradictions              |
| `generation_params`                   | options and checkpoint defaults to engine parameters                        |
| `prompts`                             | token ids of prompts and decoder starts, and the space left in the context  |
| `grammar`                             | text formats (JSON schema, regular expression, choice) to grammars          |
| `generated_text`, `generation_run`    | tokens to text; a submitted request, from its first delta to its result     |
| `segments`, `spans`, `entities`, `entailment` | each is a part of one operation                                     |

Imports no HTTP framework, no pydantic and no torch.
"""
