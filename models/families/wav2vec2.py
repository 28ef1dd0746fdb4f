"""wav2vec 2.0 with a CTC head (Baevski et al. 2020, arXiv:2006.11477): speech to text, one character at a time."""

from __future__ import annotations

from models.families.shared.waveform_encoder import ctc_family

FAMILY = ctc_family("wav2vec2", "Wav2Vec2", "wav2vec2")
