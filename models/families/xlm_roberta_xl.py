"""XLM-RoBERTa XL and XXL (Goyal et al. 2021, arXiv:2105.00572): XLM-RoBERTa with a norm before each sublayer.

No norm follows the embeddings.
"""

from __future__ import annotations

from models.families.shared.pre_norm_roberta import pre_norm_roberta_family

FAMILY = pre_norm_roberta_family(
    "xlm-roberta-xl",
    "XLMRobertaXL",
    prefix=r"(?:roberta\.)?",
    norms={"attention_norm": r"attention\.self_attn_layer_norm", "feed_forward_norm": "LayerNorm"},
    final_norm=r"encoder\.LayerNorm",
    embedding_norm=False,
    defaults={
        "vocab_size": 250880,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 10240,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
)
