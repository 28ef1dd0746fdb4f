"""Architectures that are known and not served, by `model_type`, each with the reason. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

_STATE_SPACE = "it is a state-space model, without attention"
_HYBRID = "layers of a state-space model or of a recurrence stand between its layers of attention"
_RECURRENT = "it is a recurrent network, without attention"
_TWO_STREAMS = "its decoder predicts from a second stream of hidden states, which no other family has"

REFUSED: Mapping[str, str] = {
    "reformer": "its attention hashes tokens into buckets, so what a token sees depends on chance",
    "performer": "random features stand in for the softmax of its attention",
    "linformer": "its attention projects keys and values along the length of the text, which is fixed then",
    "nystromformer": "landmarks stand in for the softmax of its attention",
    "xlnet": "it predicts in permuted order, with two streams of attention and a memory of earlier segments",
    "transfo-xl": "its attention reads a memory of earlier segments",
    "nllb-moe": "its experts drop tokens beyond their capacity, so that an answer depends on its batch",
    **dict.fromkeys(("prophetnet", "xlm-prophetnet"), _TWO_STREAMS),
    "fnet": "it is a Fourier transform without attention",
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _STATE_SPACE),
    **dict.fromkeys(("rwkv", "xlstm"), _RECURRENT),
    **dict.fromkeys(
        (
            "jamba",
            "zamba",
            "zamba2",
            "bamba",
            "recurrent_gemma",
            "nemotron_h",
            "falcon_h1",
            "granitemoehybrid",
            "qwen3_next",
        ),
        _HYBRID,
    ),
}
