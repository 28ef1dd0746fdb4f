"""From the bytes of a recording to sound at 16 kHz, and from there to the windows a speech model hears.

| file       | what it is                                                         |
|------------|--------------------------------------------------------------------|
| `wav`      | the bytes of a WAV file to samples; what else it might be, by name |
| `resample` | samples at one rate to samples at another                          |
| `frames`   | a recording cut for its log-mel frames, and these cut into windows |

Knows no HTTP, no models and no torch.
"""
