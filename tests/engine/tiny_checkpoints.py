"""Configurations of tiny random checkpoints for engine tests, and the transformers class of each."""

from __future__ import annotations

import transformers

from tests.engine.further_checkpoints import FURTHER_DECODERS
from tests.engine.recent_checkpoints import RECENT_DECODERS

VOCAB = 97
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 24,
}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NEO = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "num_heads": 4,
    "window_size": 6,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "bos_token_id": 1, "eos_token_id": 2}
_MPT = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "n_layers": 2,
    "max_seq_len": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HYBRID = {**_LLAMA, "num_hidden_layers": 3, "num_key_value_heads": 2}
_DELTA = {
    **_HYBRID,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
_FEW_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED_EXPERT = {**_FEW_EXPERTS, "shared_expert_intermediate_size": 24}
_CONV = {**_HYBRID, "layer_types": ["conv", "full_attention", "conv"]}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_chunk_size": 16}
_MAMBA2 = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 8,
    "chunk_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FALCON = {name: value for name, value in _LLAMA.items() if name != "intermediate_size"}
_OPT = {name: value for name, value in _LLAMA.items() if name != "intermediate_size"} | {"ffn_dim": 48}
_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "decoder_start_token_id": 0}
_BART = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
_LED = {name: value for name, value in _BART.items() if name != "max_position_embeddings"} | {
    "max_encoder_position_embeddings": 128,
    "max_decoder_position_embeddings": 128,
    "attention_window": 8,
}
_MARIAN = _BART | {"pad_token_id": VOCAB - 1, "decoder_start_token_id": VOCAB - 1, "eos_token_id": 0}
_FSMT = {name: value for name, value in _BART.items() if name != "vocab_size"}
_M2M = {name: value for name, value in _BART.items() if name != "forced_eos_token_id"}
_TWO_LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
_DEEP_ENCODER = {"encoder_layers": 3, "decoder_layers": 1, "scale_embedding": True}

DECODERS = {
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2)),
    "gpt2-untied": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2, tie_word_embeddings=False)),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, num_key_value_heads=2)),
    "llama-tied": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, tie_word_embeddings=True)),
    "mistral": (
        "MistralForCausalLM",
        transformers.MistralConfig(**_LLAMA, num_key_value_heads=2, sliding_window=6),
    ),
    "mistral-full": (
        "MistralForCausalLM",
        transformers.MistralConfig(**_LLAMA, num_key_value_heads=4, sliding_window=None),
    ),
    "qwen2": ("Qwen2ForCausalLM", transformers.Qwen2Config(**_LLAMA, num_key_value_heads=2)),
    "qwen2-tied": (
        "Qwen2ForCausalLM",
        transformers.Qwen2Config(**_LLAMA, num_key_value_heads=1, tie_word_embeddings=True),
    ),
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**_LLAMA, num_key_value_heads=2, head_dim=12)),
    "gpt-neox": ("GPTNeoXForCausalLM", transformers.GPTNeoXConfig(**_LLAMA)),
    "gptj": ("GPTJForCausalLM", transformers.GPTJConfig(**_GPT2, rotary_dim=4)),
    "phi": ("PhiForCausalLM", transformers.PhiConfig(**_LLAMA)),
    "phi3": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2, sliding_window=6),
    ),
    "gemma": ("GemmaForCausalLM", transformers.GemmaConfig(**_LLAMA, num_key_value_heads=1, head_dim=12)),
    "gemma2": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(
            **_LLAMA, num_key_value_heads=2, head_dim=12, sliding_window=6, attn_logit_softcapping=2.0
        ),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(
            **_LLAMA,
            num_key_value_heads=2,
            head_dim=12,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", transformers.Qwen3_5TextConfig(**_DELTA)),
    "qwen3_5_moe": (
        "Qwen3_5MoeForCausalLM",
        transformers.Qwen3_5MoeTextConfig(
            **{name: value for name, value in _DELTA.items() if name != "intermediate_size"}, **_SHARED_EXPERT
        ),
    ),
    "qwen3_next": ("Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**_DELTA, **_SHARED_EXPERT)),
    "lfm2": ("Lfm2ForCausalLM", transformers.Lfm2Config(**_CONV)),
    "lfm2_moe": ("Lfm2MoeForCausalLM", transformers.Lfm2MoeConfig(**_CONV, **_FEW_EXPERTS, num_dense_layers=1)),
    "lfm3": (
        "Lfm3ForCausalLM",
        transformers.Lfm3Config(
            **_HYBRID,
            pad_token_id=0,
            head_dim=8,
            sliding_window=6,
            layer_types=["conv", "sliding_attention", "full_attention"],
        ),
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        transformers.GraniteMoeHybridConfig(
            **_HYBRID,
            **_MAMBA,
            num_local_experts=0,
            shared_intermediate_size=40,
            attention_multiplier=0.3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
    ),
    "falcon_h1": (
        "FalconH1ForCausalLM",
        transformers.FalconH1Config(**_HYBRID, **_MAMBA, mamba_d_ssm=32, mlp_multipliers=[0.9, 0.6]),
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        transformers.NemotronHConfig(
            **{name: value for name, value in _HYBRID.items() if name != "num_hidden_layers"},
            layers_block_type=["linear_attention", "mlp", "full_attention"],
            mamba_num_heads=4,
            mamba_head_dim=8,
            n_groups=2,
            ssm_state_size=8,
            chunk_size=16,
            head_dim=8,
        ),
    ),
    "mamba2": ("Mamba2ForCausalLM", transformers.Mamba2Config(**_MAMBA2)),
    "smollm3": (
        "SmolLM3ForCausalLM",
        transformers.SmolLM3Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2, no_rope_layer_interval=2),
    ),
    "mixtral": (
        "MixtralForCausalLM",
        transformers.MixtralConfig(**_LLAMA, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        transformers.Qwen2MoeConfig(
            **_LLAMA,
            num_key_value_heads=2,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=20,
            mlp_only_layers=[0],
        ),
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(
            **_LLAMA,
            num_key_value_heads=2,
            head_dim=12,
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
        ),
    ),
    "llama-dynamic": (
        "LlamaForCausalLM",
        transformers.LlamaConfig(
            **{**_LLAMA, "max_position_embeddings": 24},
            num_key_value_heads=2,
            rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0},
        ),
    ),
    "llama-long": ("LlamaForCausalLM", transformers.LlamaConfig(**_LLAMA, rope_parameters=_LONG)),
    "phi3-long": (
        "Phi3ForCausalLM",
        transformers.Phi3Config(
            **_LLAMA,
            pad_token_id=0,
            num_key_value_heads=2,
            original_max_position_embeddings=24,
            rope_parameters={**_LONG, "partial_rotary_factor": 1.0},
        ),
    ),
    "olmo2": ("Olmo2ForCausalLM", transformers.Olmo2Config(**_LLAMA, pad_token_id=0, num_key_value_heads=2)),
    "stablelm": (
        "StableLmForCausalLM",
        transformers.StableLmConfig(**_LLAMA, num_key_value_heads=2, use_parallel_residual=True),
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        transformers.Starcoder2Config(**_LLAMA, num_key_value_heads=2, sliding_window=6),
    ),
    "gpt-neo": ("GPTNeoForCausalLM", transformers.GPTNeoConfig(**_NEO)),
    "openai-gpt": ("OpenAIGPTLMHeadModel", transformers.OpenAIGPTConfig(**_GPT2)),
    "bloom": ("BloomForCausalLM", transformers.BloomConfig(**_BLOOM, n_head=4)),
    "mpt": ("MptForCausalLM", transformers.MptConfig(**_MPT, n_heads=4)),
    "falcon": (
        "FalconForCausalLM",
        transformers.FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "opt": ("OPTForCausalLM", transformers.OPTConfig(**_OPT)),
    "opt-narrow": (
        "OPTForCausalLM",
        transformers.OPTConfig(**_OPT, word_embed_proj_dim=20, do_layer_norm_before=False),
    ),
    "native-decoder": ("GPT2LMHeadModel", transformers.GPT2Config(**_GPT2)),
    **RECENT_DECODERS,
    **FURTHER_DECODERS,
}
HYBRIDS = (
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "granitemoehybrid",
    "falcon_h1",
    "nemotron_h",
    "mamba2",
)
"""Names of decoders with recurrent mixers."""
SEQ2SEQ = {
    "t5": ("T5ForConditionalGeneration", transformers.T5Config(**_T5, num_layers=2)),
    "t5-gated-untied": (
        "T5ForConditionalGeneration",
        transformers.T5Config(
            **_T5, num_layers=3, num_decoder_layers=1, feed_forward_proj="gated-gelu", tie_word_embeddings=False
        ),
    ),
    "bart": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_TWO_LAYERS)),
    "bart-deep-encoder": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_DEEP_ENCODER)),
    "native": ("BartForConditionalGeneration", transformers.BartConfig(**_BART, **_DEEP_ENCODER)),
    "bigbird-pegasus": (
        "BigBirdPegasusForConditionalGeneration",
        transformers.BigBirdPegasusConfig(**_BART, **_TWO_LAYERS, block_size=2, num_random_blocks=1, use_bias=True),
    ),
    "longt5": (
        "LongT5ForConditionalGeneration",
        transformers.LongT5Config(
            **_T5, num_layers=2, local_radius=3, encoder_attention_type="transient-global", global_block_size=4
        ),
    ),
    "longt5-local": (
        "LongT5ForConditionalGeneration",
        transformers.LongT5Config(**_T5, num_layers=2, num_decoder_layers=1, local_radius=5),
    ),
    "led": ("LEDForConditionalGeneration", transformers.LEDConfig(**_LED, **_TWO_LAYERS)),
    "marian": ("MarianMTModel", transformers.MarianConfig(**_MARIAN, **_TWO_LAYERS)),
    "marian-deep-encoder": ("MarianMTModel", transformers.MarianConfig(**_MARIAN, **_DEEP_ENCODER)),
    "fsmt": (
        "FSMTForConditionalGeneration",
        transformers.FSMTConfig(**_FSMT, **_TWO_LAYERS, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB),
    ),
    "fsmt-tied-deep-encoder": (
        "FSMTForConditionalGeneration",
        transformers.FSMTConfig(
            **_FSMT, **_DEEP_ENCODER, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, tie_word_embeddings=True
        ),
    ),
    "ul2": (
        "T5ForConditionalGeneration",
        transformers.T5Config(**_T5, num_layers=2, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    ),
    "mt5": ("MT5ForConditionalGeneration", transformers.MT5Config(**_T5, num_layers=2)),
    "umt5": ("UMT5ForConditionalGeneration", transformers.UMT5Config(**_T5, num_layers=2)),
    "mbart": (
        "MBartForConditionalGeneration",
        transformers.MBartConfig(**_BART, **_TWO_LAYERS, decoder_start_token_id=7),
    ),
    "mbart-50": (
        "MBartForConditionalGeneration",
        transformers.MBartConfig(**_BART, **_DEEP_ENCODER, decoder_start_token_id=2),
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", transformers.M2M100Config(**_M2M, **_TWO_LAYERS)),
    "pegasus": ("PegasusForConditionalGeneration", transformers.PegasusConfig(**_BART, **_DEEP_ENCODER)),
    "pegasus_x": (
        "PegasusXForConditionalGeneration",
        transformers.PegasusXConfig(**_BART, **_TWO_LAYERS, block_size=4, num_global_tokens=3),
    ),
    "switch_transformers": (
        "SwitchTransformersForConditionalGeneration",
        transformers.SwitchTransformersConfig(
            **_T5,
            num_layers=2,
            num_decoder_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_experts=4,
            expert_capacity=2,
        ),
    ),
    "blenderbot": ("BlenderbotForConditionalGeneration", transformers.BlenderbotConfig(**_BART, **_TWO_LAYERS)),
    "blenderbot-small": (
        "BlenderbotSmallForConditionalGeneration",
        transformers.BlenderbotSmallConfig(**_BART, **_TWO_LAYERS),
    ),
}
_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
ENCODERS = {
    "bert": ("BertModel", transformers.BertConfig(**_BERT)),
    "classifier": ("BertForSequenceClassification", transformers.BertConfig(**_BERT, num_labels=5)),
    "tagger": ("BertForTokenClassification", transformers.BertConfig(**_BERT, num_labels=5)),
    "masked": ("BertForMaskedLM", transformers.BertConfig(**_BERT)),
}
GENERATING = DECODERS | SEQ2SEQ
