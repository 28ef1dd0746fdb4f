"""Quality of reduced precisions on real weights: `python -m benchmarks.quality`, or `make quality`.

| file          | content                                                             |
|---------------|---------------------------------------------------------------------|
| `texts`       | the tokens that every model is compared on                          |
| `gguf_files`  | copies of GGUF files with other tensor types, and dithered weights  |
| `sources`     | models with real weights, from the Python package index             |
| `contestants` | our settings and the formats of llama.cpp                           |
| `copies`      | checkpoints that `triptych quantize` writes                         |
| `formats`     | types of the matrices in llama.cpp's formats                        |
| `llama_cpp`   | the library of llama.cpp, through ctypes                            |
| `divergence`  | Kullback-Leibler divergence and perplexity, in slices of the logits |
| `decoders`    | decoders of this server                                             |
| `kept`        | measurements of each text on disk, so that a stopped run can go on  |
| `encoders`    | compares the embeddings of one encoder                              |
| `demo`        | compares the demo models                                            |
| `results`     | the rows of all measurements, in a JSON file                        |
| `page`        | writes `docs/quality.md` and its figure from the results            |
"""
