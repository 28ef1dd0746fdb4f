"""GGUF files: one file with the tensors of a model, its settings and its tokenizer.

| file        | purpose                                                                              |
|-------------|--------------------------------------------------------------------------------------|
| `container` | read the header of a file: metadata, and where each tensor is                         |
| `types`     | block sizes of the tensor types                                                       |
| `config`    | `config.json` of the model, from the metadata                                         |
| `documents` | the JSON files of the checkpoint that the file was converted from, from the metadata  |
| `choose`    | find the file of a path: a file, a file in pieces, or a directory with one of them    |

Imports no torch: the HTTP process reads the tokenizer and the settings. `weights.quantized.gguf` reads the tensors.
Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
