"""XLM-RoBERTa (Conneau et al. 2020, arXiv:1911.02116): RoBERTa for a hundred languages."""

from __future__ import annotations

from models.families.shared.roberta_encoder import roberta_family

FAMILY = roberta_family("xlm-roberta", "XLMRoberta", vocab_size=30522)
