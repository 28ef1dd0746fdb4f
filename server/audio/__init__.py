"""Audio files to samples at 16 kHz, log-mel frames to the input windows of a speech model, and times of its tokens.

| file             | content                                                                  |
|------------------|--------------------------------------------------------------------------|
| `read`           | reads a file of any supported format                                     |
| `containers`     | names the format of a file by its first bytes                            |
| `wav`            | reads WAV files with PCM or float                                        |
| `resample`       | changes the sample rate of WAV files                                     |
| `decoder`        | decodes all other files in a process of its own, `decode_process`        |
| `frames`         | splits samples for the log-mel computation and joins its frames          |
| `silence`        | cuts a recording into windows at its quietest places                     |
| `token_times`    | times of tokens from cross-attention, by dynamic time warping            |

Imports no torch, no models and no HTTP framework.
"""
