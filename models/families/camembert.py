"""CamemBERT (Martin et al. 2020, arXiv:1911.03894): RoBERTa for French."""

from __future__ import annotations

from models.families.shared.roberta_encoder import roberta_family

FAMILY = roberta_family("camembert", "Camembert", vocab_size=30522)
