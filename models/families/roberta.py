"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): BERT trained longer, with a byte-level vocabulary.

Position indices start after the padding token's id.
"""

from __future__ import annotations

from models.families.shared.roberta_encoder import roberta_family

FAMILY = roberta_family("roberta", "Roberta", vocab_size=50265)
