"""Reads audio as samples at 16 kHz, prepares the input windows of a speech model, and finds the times of its tokens.

| file             | content                                                                  |
|------------------|--------------------------------------------------------------------------|
| `read`           | reads a file of any supported format                                     |
| `containers`     | names the format of a file by its first bytes                            |
| `wav`            | reads WAV files with PCM or float                                        |
| `resample`       | changes the sample rate of WAV files                                     |
| `decoder`        | decodes all other files in a separate process, `decode_process`          |
| `pcm_stream`     | decodes live audio that arrives in pieces                                |
| `g711`           | decodes telephone audio                                                  |
| `frames`         | splits samples for the log-mel computation and joins its frames          |
| `silence`        | cuts a recording into windows at its quietest places                     |
| `voice`          | finds the parts of a recording that may be speech                        |
| `speech_turns`   | finds where speech begins and ends in live audio                         |
| `token_times`    | times of tokens from cross-attention, by dynamic time warping            |

Imports no torch, no models and no HTTP framework.
"""
