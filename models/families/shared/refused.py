"""Architectures that cannot be served, by `model_type`, with the reason. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

_FIRST_MAMBA = "its state spaces are those of the first Mamba, which are not supported"
_RECURRENT = "it is a recurrent network, without attention"
_TWO_STREAMS = "its decoder has a second stream of hidden states, which is not supported"

REFUSED: Mapping[str, str] = {
    "reformer": "its attention hashes tokens into random buckets, so results are not deterministic",
    "performer": "its attention approximates the softmax with random features",
    "linformer": "its attention projects keys and values along the length of the text, which must be fixed",
    "nystromformer": "its attention approximates the softmax with landmarks",
    "xlnet": "it predicts in permuted order, with two streams of attention and a memory of earlier segments",
    "transfo-xl": "its attention reads a memory of earlier segments",
    "nllb-moe": "its experts drop tokens beyond their capacity, so the results of a request would depend on its batch",
    **dict.fromkeys(("prophetnet", "xlm-prophetnet"), _TWO_STREAMS),
    "fnet": "it is a Fourier transform without attention",
    **dict.fromkeys(("mamba", "falcon_mamba", "jamba", "zamba"), _FIRST_MAMBA),
    "zamba2": "its attention layers share weights and read the embeddings of the tokens again",
    "recurrent_gemma": "it has linear recurrent units, which are not supported",
    **dict.fromkeys(("rwkv", "xlstm"), _RECURRENT),
}
