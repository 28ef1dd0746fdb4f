"""data2vec for text (Baevski et al. 2022, arXiv:2202.03555): RoBERTa with other tensor names."""

from __future__ import annotations

from models.families.shared.roberta_encoder import roberta_family

FAMILY = roberta_family("data2vec-text", "Data2VecText", vocab_size=30522, prefix="data2vec_text")
