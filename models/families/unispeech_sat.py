"""UniSpeech-SAT with a CTC head (Chen et al. 2021, arXiv:2110.05752): wav2vec 2.0, trained differently."""

from __future__ import annotations

from models.families.shared.waveform_encoder import ctc_family

FAMILY = ctc_family("unispeech-sat", "UniSpeechSat", "unispeech_sat")
