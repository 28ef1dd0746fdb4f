"""Text to token ids and back: tokenizers, incremental detokenization, chat templates, languages, sentences.

The table names the main files. They are in the folders `chats`, `documents`, `languages`, `markup`, `speech`,
`tokenizers` and `tokens`.

| file                  | content                                                                               |
|-----------------------|---------------------------------------------------------------------------------------|
| `tokenizer`           | the protocol that all tokenizers implement                                            |
| `load`                | `load_tokenizer`: chooses the implementation for a checkpoint directory               |
| `python_tokenizer`    | base class of the tokenizers below that are written in Python                         |
| `templates`           | special tokens around a text, for the `tokenizers` library                            |
| `fast`                | tokenizers run by the `tokenizers` library                                            |
| `vocabulary_files`    | makes `fast` tokenizers from `vocab.txt`, or from `vocab.json` and `merges.txt`        |
| `sentencepiece_files` | makes `fast` tokenizers from SentencePiece models (T5, LLaMA, XLM-R, ALBERT...)       |
| `sentencepiece_model` | reads a SentencePiece model file                                                      |
| `protobuf`            | the part of protocol buffers that SentencePiece files use                             |
| `marian`              | two SentencePiece models with a separate vocabulary                                   |
| `m2m_100`             | one SentencePiece model with a separate vocabulary and language tokens                |
| `byt5`                | one token per byte                                                                    |
| `blenderbot_small`    | byte-pair merges of lower-case words                                                  |
| `clip`                | the tokenizer of CLIP                                                                 |
| `byte_pairs`          | byte-pair merges of one word, for the tokenizers that are written in Python           |
| `moses`               | splits texts into the words of Moses, and joins them                                  |
| `moses_pieces`        | base class of `fsmt` and `biogpt`: words of Moses, then byte-pair merges              |
| `fsmt`                | words of Moses, byte-pair merges, and a vocabulary for each of two languages          |
| `biogpt`              | English words of Moses, and byte-pair merges                                          |
| `added_tokens`        | adds special and added tokens to a tokenizer; finds them in a text                    |
| `tokenizer_files`     | the JSON files of a tokenizer: special tokens, added tokens, settings                 |
| `fairseq`             | language tokens of mBART, NLLB and M2M100                                             |
| `streams`             | decoders that work on one token at a time                                             |
| `detokenizer`         | token ids of one completion to text, with stop strings                                |
| `token_bytes`         | the bytes that each token adds to a text, for grammars                                |
| `chat`                | chat messages to prompt text                                                          |
| `chat_process`        | the separate process that renders chat templates                                      |
| `languages`           | translations that a checkpoint offers, and the prompt for each                        |
| `language_codes`      | ISO 639, BCP 47, FLORES-200 and mBART language codes                                  |
| `speech`              | special tokens and timestamps of speech recognition models                            |
| `sentences`           | splits a text into sentences                                                          |
| `checkpoint_text`     | everything that the HTTP process reads from a checkpoint                              |
| `truncation`          | shortens token ids to a limit                                                         |
| `windows`             | splits token ids into overlapping windows                                             |
| `subtitles`           | transcripts as SubRip and WebVTT                                                      |

Imports no torch, no transformers and no HTTP framework.
"""
