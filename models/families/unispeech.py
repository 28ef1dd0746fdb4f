"""UniSpeech with a CTC head (Wang et al. 2021, arXiv:2101.07597): wav2vec 2.0, trained differently."""

from __future__ import annotations

from models.families.shared.waveform_encoder import ctc_family

FAMILY = ctc_family("unispeech", "UniSpeech", "unispeech")
