"""Text to token ids and back: tokenizers, exact streaming of text, languages, sentences.

| file              | what it is                                                                       |
|-------------------|----------------------------------------------------------------------------------|
| `tokenizer`       | the protocol, and `load_tokenizer`, which picks one of the next three             |
| `fast`            | anything the `tokenizers` library runs, from `tokenizer.json` or from below       |
| `vocabularies`    | WordPiece, byte-level BPE and T5's Unigram from the files that came before it     |
| `marian`          | two SentencePiece models and a vocabulary beside them                             |
| `tokenizer_files` | what the JSON files around a tokenizer say                                        |
| `protobuf`        | as much of protocol buffers as SentencePiece files need                          |
| `streams`         | decoders as streams: tokens in, text that cannot change any more out              |
| `detokenizer`     | one answer's tokens to text, with stop strings                                    |
| `languages`       | which translations a checkpoint offers, and how to ask it for one                 |
| `speech`          | how a speech model is asked, and the times in its answer                         |
| `sentences`       | a text cut into sentences that can be joined again                                |

Knows no HTTP and no models. No torch, no transformers.
"""
