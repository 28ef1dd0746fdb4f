"""HuBERT with a CTC head (Hsu et al. 2021, arXiv:2106.07447): the encoder of wav2vec 2.0, pre-trained differently."""

from __future__ import annotations

from models.families.shared.waveform_encoder import ctc_family

FAMILY = ctc_family("hubert", "Hubert", "hubert")
