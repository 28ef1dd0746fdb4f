"""Read GGUF files: one file, or several pieces, with the tensors of a model, its settings and its tokenizer.

| file        | purpose                                                                              |
|-------------|--------------------------------------------------------------------------------------|
| `container` | read the header of a file: its metadata, and where each tensor is                     |
| `types`     | block sizes of the tensor types                                                       |
| `metadata`  | the metadata of one architecture, strictly read                                       |
| `rope`      | scaling of rotary positions                                                           |
| `documents` | JSON files of the original checkpoint, all but `config.json`, from the metadata       |
| `choose`    | find the file of a path: a file, a file in pieces, or a directory with one of them    |

Imports no torch: the HTTP process reads the tokenizer and the settings. `weights.quantized.gguf` reads the tensors.
Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
