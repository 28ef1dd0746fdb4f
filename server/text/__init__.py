"""Text to token ids and back: tokenizers, exact streaming of text, languages, sentences.

| file              | what it is                                                                       |
|-------------------|----------------------------------------------------------------------------------|
| `tokenizer`       | the protocol, and `load_tokenizer`, which picks one of those below                |
| `fast`            | anything the `tokenizers` library runs, from `tokenizer.json` or from below       |
| `vocabularies`    | WordPiece, byte-level BPE, T5's and Pegasus' Unigram from the files before it     |
| `marian`          | two SentencePiece models and a vocabulary beside them                             |
| `m2m_100`         | one SentencePiece model, a vocabulary beside it, and a token for each language    |
| `fairseq`         | which tokens name languages in mBART, NLLB and M2M100, and where they stand       |
| `byt5`            | bytes                                                                             |
| `blenderbot_small`| merges of lower-case words                                                        |
| `whole_tokens`    | special and added tokens, found in a text                                         |
| `tokenizer_files` | what the JSON files around a tokenizer say                                        |
| `protobuf`        | as much of protocol buffers as SentencePiece files need                          |
| `streams`         | decoders as streams: tokens in, text that cannot change any more out              |
| `detokenizer`     | one answer's tokens to text, with stop strings                                    |
| `languages`       | which translations a checkpoint offers, and how to ask it for one                 |
| `speech`          | how a speech model is asked, and the times in its answer                         |
| `sentences`       | a text cut into sentences that can be joined again                                |

Knows no HTTP and no models. No torch, no transformers.
"""
