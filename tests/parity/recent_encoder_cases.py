"""Tiny configurations of the encoders that `test_recent_encoders` compares with transformers, two per family.

Each case is the prefix of the class names in transformers, and the settings.
"""

from __future__ import annotations

from tests.parity.encoder_cases import SMALL, WIDE

IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id"), 0)
GROUPS = dict.fromkeys(("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"), 2)
GROUPS_WIDE = {**GROUPS, "q_groups": 3, "post_attention_groups": 2, "intermediate_groups": 4, "output_groups": 1}
BOTTLENECK = {"embedding_size": 12, "intra_bottleneck_size": 16, "num_feedforward_networks": 3}
BOTH_WAYS = {**SMALL, **IDS, "is_causal": False, "num_key_value_heads": 2}
WINDOWED = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
GEMMA = {**SMALL, **IDS, "head_dim": 8, "num_key_value_heads": 2, "num_hidden_layers": 3}
GEMMA_2 = {
    **GEMMA,
    "hidden_size_per_layer_input": 6,
    "embedding_dim": 20,
    "sliding_window": 2,
    "global_head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
GEMMA_2_WIDE = {
    **GEMMA_2,
    "hidden_size": 48,
    "num_global_key_value_heads": 2,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9000.0},
    },
}

PRIVACY = {**{k: v for k, v in SMALL.items() if k != "hidden_act"}, **IDS, "sliding_window": 3}

BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "data2vec-text-small": ("Data2VecText", SMALL),
    "data2vec-text-wide": ("Data2VecText", {**WIDE, "hidden_act": "relu", "pad_token_id": 0}),
    "xlm-roberta-xl-small": ("XLMRobertaXL", SMALL),
    "xlm-roberta-xl-wide": ("XLMRobertaXL", {**WIDE, "type_vocab_size": 2, "pad_token_id": 0}),
    "roberta-prelayernorm-small": ("RobertaPreLayerNorm", SMALL),
    "roberta-prelayernorm-wide": ("RobertaPreLayerNorm", {**WIDE, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "megatron-bert-small": ("MegatronBert", SMALL),
    "megatron-bert-wide": ("MegatronBert", {**WIDE, "type_vocab_size": 3, "hidden_act": "gelu_new"}),
    "ernie-small": ("Ernie", {**SMALL, "use_task_id": True}),
    "ernie-wide": ("Ernie", {**WIDE, "type_vocab_size": 4}),
    "rembert-small": ("RemBert", {**SMALL, "input_embedding_size": 12, "output_embedding_size": 40}),
    "rembert-wide": ("RemBert", {**WIDE, "input_embedding_size": 48, "output_embedding_size": 20}),
    "roformer-small": ("RoFormer", {**SMALL, "embedding_size": 12}),
    "roformer-wide": ("RoFormer", {**WIDE, "hidden_act": "gelu_new"}),
    "squeezebert-small": ("SqueezeBert", {**SMALL, **GROUPS, "embedding_size": 32}),
    "squeezebert-wide": ("SqueezeBert", {**WIDE, **GROUPS_WIDE, "embedding_size": 48, "hidden_act": "relu"}),
    "mobilebert-small": ("MobileBert", {**SMALL, **BOTTLENECK}),
    "mobilebert-wide": (
        "MobileBert",
        {
            **WIDE,
            **BOTTLENECK,
            "num_hidden_layers": 2,
            "embedding_size": 20,
            "intra_bottleneck_size": 24,
            "num_feedforward_networks": 1,
            "use_bottleneck_attention": True,
            "classifier_activation": False,
            "type_vocab_size": 3,
            "hidden_act": "gelu",
        },
    ),
    "convbert-small": ("ConvBert", {**SMALL, "embedding_size": 12, "conv_kernel_size": 5, "num_groups": 2}),
    "convbert-wide": ("ConvBert", {**WIDE, "embedding_size": 48, "head_ratio": 3, "hidden_act": "relu"}),
    "convbert-one-head": ("ConvBert", {**SMALL, "embedding_size": 32, "head_ratio": 8, "conv_kernel_size": 1}),
    "eurobert-small": ("EuroBert", {**SMALL, **IDS}),
    "eurobert-wide": (
        "EuroBert",
        {
            **WIDE,
            **IDS,
            "num_key_value_heads": 2,
            "mlp_bias": True,
            "classifier_pooling": "mean",
            "attention_bias": True,
        },
    ),
    "eurobert-first": ("EuroBert", {**SMALL, **IDS, "classifier_pooling": "bos", "tie_word_embeddings": True}),
    "gte-small": ("Gte", SMALL),
    "gte-wide": ("Gte", {**WIDE, "type_vocab_size": 0, "hidden_act": "silu", "layer_norm_eps": 1e-6}),
    "jina_embeddings_v3-small": ("JinaEmbeddingsV3", SMALL),
    "jina_embeddings_v3-wide": ("JinaEmbeddingsV3", {**WIDE, "type_vocab_size": 2, "hidden_act": "relu"}),
    "embedding-gemma-small": ("Gemma3Text", {**GEMMA, "use_bidirectional_attention": True, "sliding_window": 4}),
    "embedding-gemma-wide": (
        "Gemma3Text",
        {
            **GEMMA,
            "hidden_size": 48,
            "query_pre_attn_scalar": 12,
            "use_bidirectional_attention": True,
            "sliding_window": 7,
            "sliding_window_pattern": 2,
        },
    ),
    "embedding-gemma2-small": ("EmbeddingGemma2Text", GEMMA_2),
    "embedding-gemma2-wide": ("EmbeddingGemma2Text", GEMMA_2_WIDE),
    "openai_privacy_filter": (
        "OpenAIPrivacyFilter",
        {**PRIVACY, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "openai_privacy_filter-plain-positions-no-biases": (
        "OpenAIPrivacyFilter",
        {
            **PRIVACY,
            "hidden_size": 48,
            "head_dim": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "ultrabert-small": (
        "Ultrabert",
        {**SMALL, **IDS, "num_hidden_layers": 3, "sliding_window": 3, "prediction_head_size": 20},
    ),
    "ultrabert-wide": (
        "Ultrabert",
        {
            **WIDE,
            **IDS,
            "num_key_value_heads": 2,
            "mlp_bias": True,
            "attention_bias": True,
            "sliding_window": 2,
            "layer_types": ["full_attention", *["sliding_attention"] * (int(WIDE["num_hidden_layers"]) - 1)],
            "prediction_head_size": 56,
            "classifier_pooling": "mean",
            "tie_word_embeddings": True,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9000.0},
            },
        },
    ),
    "bidirectional-ministral3": ("Ministral3", {**BOTH_WAYS, "head_dim": 8}),
    "bidirectional-llama": ("Llama", BOTH_WAYS),
    "bidirectional-mistral": ("Mistral", {**BOTH_WAYS, "sliding_window": 3}),
    "bidirectional-qwen2": ("Qwen2", {**BOTH_WAYS, **WINDOWED}),
    "bidirectional-qwen3": ("Qwen3", {**BOTH_WAYS, "hidden_size": 48, "head_dim": 8}),
}
