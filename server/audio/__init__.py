"""Audio files to samples at 16 kHz, and log-mel frames to the input windows of a speech model.

| file       | content                                                             |
|------------|---------------------------------------------------------------------|
| `wav`      | reads WAV files; names the format of any other file                 |
| `resample` | changes the sample rate                                             |
| `frames`   | splits samples for the log-mel computation and joins its frames     |

Imports no torch, no models and no HTTP framework.
"""
