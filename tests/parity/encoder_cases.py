"""Tiny configurations of encoders other than BERT, RoBERTa and DistilBERT.

Each case is the prefix of the class names in transformers, and the settings. `test_encoders` tests every head of each.
"""

from __future__ import annotations

SMALL = {
    "vocab_size": 101,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
WIDE = {**SMALL, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 80}
GROUPS = {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2}
IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
MODERN = {**SMALL, **IDS, "initializer_range": 0.2}
MODERN_WIDE = {
    **IDS,
    "hidden_activation": "silu",
    "norm_bias": True,
    "attention_bias": True,
    "mlp_bias": True,
    "classifier_bias": True,
    "classifier_pooling": "mean",
    "classifier_activation": "tanh",
    "decoder_bias": False,
    "local_attention": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
DISENTANGLED = {"relative_attention": True, "pos_att_type": "c2p|p2c"}
DEBERTA_WIDE = {
    "max_relative_positions": 5,
    "position_biased_input": False,
    "type_vocab_size": 2,
    "legacy": False,
    "pooler_hidden_act": "tanh",
}
DEBERTA_3 = {
    "position_biased_input": False,
    "position_buckets": 6,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "legacy": False,
}
DEBERTA_2 = {
    "position_buckets": 8,
    "max_relative_positions": 12,
    "type_vocab_size": 2,
    "conv_kernel_size": 5,
    "conv_groups": 2,
    "conv_act": "gelu",
}

MORE_BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "xlm-roberta-small": ("XLMRoberta", {**SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta-wide": ("XLMRoberta", {**WIDE, "hidden_act": "relu", "pad_token_id": 3}),
    "camembert-small": ("Camembert", {**SMALL, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "camembert-wide": ("Camembert", {**WIDE, "hidden_act": "gelu_new", "pad_token_id": 0}),
    "electra-small": ("Electra", {**SMALL, "embedding_size": 12}),
    "electra-wide": ("Electra", {**WIDE, "embedding_size": 48, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6}),
    "albert-small": ("Albert", {**SMALL, "num_hidden_layers": 4, "embedding_size": 12}),
    "albert-wide": ("Albert", {**WIDE, **GROUPS, "embedding_size": 48, "hidden_act": "relu"}),
    "mpnet-small": ("MPNet", SMALL),
    "mpnet-wide": ("MPNet", {**WIDE, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "modernbert-small": ("ModernBert", {**MODERN, "num_hidden_layers": 4, "local_attention": 6}),
    "modernbert-wide": ("ModernBert", {**WIDE, **MODERN_WIDE}),
    "nomic_bert-small": ("NomicBert", SMALL),
    "nomic_bert-wide": ("NomicBert", {**WIDE, "hidden_act": "gelu", "type_vocab_size": 3, "rope_theta": 500.0}),
    "deberta-small": ("Deberta", {**SMALL, **DISENTANGLED}),
    "deberta-wide": ("Deberta", {**WIDE, **DISENTANGLED, **DEBERTA_WIDE}),
    "deberta-plain": ("Deberta", {**SMALL, "pos_att_type": "c2p", "hidden_act": "gelu_new", "legacy": False}),
    "deberta-v2-small": ("DebertaV2", {**SMALL, **DISENTANGLED, **DEBERTA_3}),
    "deberta-v2-wide": ("DebertaV2", {**WIDE, **DISENTANGLED, **DEBERTA_2}),
    "deberta-v2-one-way": (
        "DebertaV2",
        {**SMALL, **DISENTANGLED, "pos_att_type": ["p2c"], "max_relative_positions": 6},
    ),
}
