"""Minimal contents of `config.json` for several families, and a function that builds the configuration from them."""

from __future__ import annotations

from models.families import family_of

ORIGINAL = "original_max_position_embeddings"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
QWEN2 = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 4}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32}
BART = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 32}
MARIAN = {"model_type": "marian", "architectures": ["MarianMTModel"], "d_model": 32}
FSMT = {"model_type": "fsmt", "architectures": ["FSMTForConditionalGeneration"], "d_model": 32}
WHISPER = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 48}
QWEN3 = {**QWEN2, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
NEOX = {**LLAMA, "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
OPT = {**LLAMA, "model_type": "opt", "architectures": ["OPTForCausalLM"]}
GPTJ = {**GPT2, "model_type": "gptj", "architectures": ["GPTJForCausalLM"], "rotary_dim": 4}
PHI = {**LLAMA, "model_type": "phi", "architectures": ["PhiForCausalLM"]}
PHI3 = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
GEMMA = {**LLAMA, "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "num_key_value_heads": 2}
GEMMA2 = {**GEMMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
SMOLLM3 = {**LLAMA, "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]}
OLMO2 = {**LLAMA, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}
STABLELM = {**LLAMA, "model_type": "stablelm", "architectures": ["StableLmForCausalLM"], "num_key_value_heads": 2}
STARCODER2 = {**LLAMA, "model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"]}
NEO = {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "hidden_size": 32, "num_heads": 4}
OPENAI = {**GPT2, "model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"]}
BLOOM = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 32, "n_head": 4}
MPT = {"model_type": "mpt", "architectures": ["MptForCausalLM"], "d_model": 32, "n_heads": 4}
FALCON = {**LLAMA, "model_type": "falcon", "architectures": ["FalconForCausalLM"]}
MT5 = {**T5, "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
UMT5 = {**T5, "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"]}
MBART = {**BART, "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"]}
M2M_100 = {**BART, "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"]}
PEGASUS = {**BART, "model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"]}
BLENDERBOT = {**BART, "model_type": "blenderbot", "architectures": ["BlenderbotForConditionalGeneration"]}
BLENDERBOT_SMALL = {
    **BART,
    "model_type": "blenderbot-small",
    "architectures": ["BlenderbotSmallForConditionalGeneration"],
}
MVP = {**BART, "model_type": "mvp", "architectures": ["MvpForConditionalGeneration"]}
_HALF = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4}
PAIR = {
    "model_type": "encoder-decoder",
    "architectures": ["EncoderDecoderModel"],
    "encoder": _HALF,
    "decoder": {**_HALF, "is_decoder": True, "add_cross_attention": True},
}
T5GEMMA2 = {
    "model_type": "t5gemma2",
    "architectures": ["T5Gemma2ForConditionalGeneration"],
    "encoder": {"text_config": {"hidden_size": 32}},
    "decoder": {"hidden_size": 32},
}
PRIVACY_FILTER = {"model_type": "openai_privacy_filter"}
SEQ2SEQ = (T5, MT5, UMT5, BART, MARIAN, FSMT, MBART, M2M_100, PEGASUS, BLENDERBOT, BLENDERBOT_SMALL)
OLDER = (OPENAI, GPT2, NEO, GPTJ, NEOX, OPT, BLOOM, MPT, FALCON)
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_key_value_heads": 2}
QWEN2_MOE = {**QWEN2, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]}
QWEN3_MOE = {**QWEN2, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
NEWER = (GEMMA3, SMOLLM3, MIXTRAL, QWEN2_MOE, QWEN3_MOE)
DECODERS = (*OLDER, LLAMA, MISTRAL, QWEN2, QWEN3, PHI, PHI3, GEMMA, GEMMA2, OLMO2, STABLELM, STARCODER2, *NEWER)
RECENT = tuple(
    {**LLAMA, "model_type": kind, "architectures": [f"{stem}ForCausalLM"], "num_key_value_heads": 2}
    for kind, stem in {
        "granite": "Granite",
        "granitemoe": "GraniteMoe",
        "cohere": "Cohere",
        "cohere2": "Cohere2",
        "glm": "Glm",
        "glm4": "Glm4",
        "glm4_moe": "Glm4Moe",
        "exaone4": "Exaone4",
        "ernie4_5": "Ernie4_5",
        "ernie4_5_moe": "Ernie4_5_Moe",
        "olmo": "Olmo",
        "olmo3": "Olmo3",
        "olmoe": "Olmoe",
        "nemotron": "Nemotron",
        "helium": "Helium",
        "arcee": "Arcee",
        "hunyuan_v1_dense": "HunYuanDenseV1",
        "seed_oss": "SeedOss",
        "apertus": "Apertus",
        "phimoe": "Phimoe",
        "ministral3": "Ministral3",
    }.items()
)
HYBRID = tuple(
    {**LLAMA, "model_type": kind, "architectures": [f"{stem}ForCausalLM"], "num_key_value_heads": 2, **more}
    for kind, (stem, more) in {
        "qwen3_next": ("Qwen3Next", {}),
        "qwen3_5_text": ("Qwen3_5", {}),
        "qwen3_5_moe_text": ("Qwen3_5Moe", {}),
        "lfm2": ("Lfm2", {}),
        "lfm2_moe": ("Lfm2Moe", {"layer_types": ["conv"] * 4}),
        "lfm3": ("Lfm3", {}),
        "granitemoehybrid": ("GraniteMoeHybrid", {"mamba_n_heads": 8}),
        "falcon_h1": ("FalconH1", {"mamba_d_ssm": 64, "mamba_n_heads": 8}),
        "nemotron_h": ("NemotronH", {}),
        "bamba": ("Bamba", {"mamba_n_heads": 8}),
        "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 8}),
        "olmo_hybrid": ("OlmoHybrid", {}),
    }.items()
)
QWEN3_5_PICTURES = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {name: value for name, value in LLAMA.items() if name not in ("model_type", "architectures")},
}
LONGFORMER = {"model_type": "longformer", "architectures": ["LongformerModel"], "hidden_size": 48}
BIG_BIRD = {"model_type": "big_bird", "architectures": ["BigBirdModel"], "hidden_size": 48}
LED = {"model_type": "led", "architectures": ["LEDForConditionalGeneration"], "d_model": 32}
LONGT5 = {"model_type": "longt5", "architectures": ["LongT5ForConditionalGeneration"], "d_model": 32}
BIGBIRD_PEGASUS = {"model_type": "bigbird_pegasus", "architectures": ["BigBirdPegasusModel"], "d_model": 32}
MODERNBERT = {"model_type": "modernbert", "architectures": ["ModernBertModel"], "hidden_size": 48}
MOBILEBERT = {"model_type": "mobilebert", "architectures": ["MobileBertModel"]}
CONVBERT = {"model_type": "convbert", "architectures": ["ConvBertModel"]}
SWITCH = {"model_type": "switch_transformers", "architectures": ["SwitchTransformersForConditionalGeneration"]}
PEGASUS_X = {"model_type": "pegasus_x", "architectures": ["PegasusXForConditionalGeneration"]}
EUROBERT = {"model_type": "eurobert", "architectures": ["EuroBertModel"]}
SPARSE = (LONGFORMER, BIG_BIRD, LED, LONGT5, BIGBIRD_PEGASUS)
BIGCODE = {**GPT2, "model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"]}
XGLM = {"model_type": "xglm", "architectures": ["XGLMForCausalLM"], "d_model": 32, "attention_heads": 4}
_LATENT = {"num_key_value_heads": 4, "num_experts_per_tok": 2}
_MISTRAL4 = {**_LATENT, "rope_parameters": {"rope_type": "default", ORIGINAL: 64, "llama_4_scaling_beta": 0.1}}
FURTHER = tuple(
    {**LLAMA, "model_type": kind, "architectures": [f"{stem}ForCausalLM"], **more}
    for kind, stem, more in (
        ("biogpt", "BioGpt", {}),
        ("persimmon", "Persimmon", {}),
        ("modernbert-decoder", "ModernBertDecoder", {}),
        ("gemma3n_text", "Gemma3n", {"num_key_value_heads": 2, "num_kv_shared_layers": 0}),
        ("gemma4_text", "Gemma4", {"num_key_value_heads": 2}),
        ("gemma4_unified_text", "Gemma4Unified", {"num_key_value_heads": 2}),
        ("gpt_oss", "GptOss", {"num_key_value_heads": 2}),
        ("deepseek_v2", "DeepseekV2", _LATENT),
        ("deepseek_v3", "DeepseekV3", _LATENT),
        ("mistral4", "Mistral4", _MISTRAL4),
        ("llama4_text", "Llama4", {"num_key_value_heads": 2}),
    )
)
NEWEST = tuple(
    {**LLAMA, "model_type": kind, "architectures": [f"{stem}ForCausalLM"], **more}
    for kind, stem, more in (
        ("cwm", "Cwm", {"num_key_value_heads": 2}),
        ("internlm3", "InternLM3", {}),
        ("iquestcoder", "IQuestCoder", {"num_key_value_heads": 2}),
        ("vaultgemma", "VaultGemma", {"num_key_value_heads": 2}),
        ("granite_swa", "GraniteSWA", {"num_key_value_heads": 2}),
        ("jais2", "Jais2", {}),
        ("granitemoeshared", "GraniteMoeShared", {}),
        ("youtu", "Youtu", {}),
        ("minicpm3", "MiniCPM3", {}),
        ("glm4_moe_lite", "Glm4MoeLite", {}),
        ("granitemoe_swa", "GraniteMoeSWA", {}),
        ("exaone", "Exaone", {}),
        ("mellum", "Mellum", {}),
        ("cohere2_moe", "Cohere2Moe", {}),
        ("hunyuan_v1_moe", "HunYuanMoEV1", {}),
        ("hy_v3", "HYV3", {"num_key_value_heads": 2}),
        ("afmoe", "Afmoe", {}),
        ("hyperclovax", "HyperCLOVAX", {"num_key_value_heads": 2}),
    )
)
"""The families to which a new decoder is added: `model_type`, start of the class names, settings besides `LLAMA`."""
ALL_DECODERS = (*DECODERS, *RECENT, BIGCODE, XGLM, *FURTHER, *NEWEST)
BASES = {
    base["model_type"]: base
    for base in (MODERNBERT, EUROBERT, MOBILEBERT, CONVBERT, *SPARSE, *ALL_DECODERS, *HYBRID, *SEQ2SEQ, WHISPER)
}
BASES |= {base["model_type"]: base for base in (SWITCH, PEGASUS_X, MVP, PRIVACY_FILTER, T5GEMMA2, PAIR)}
BASES["qwen3_5"] = QWEN3_5_PICTURES


def build(hf):
    family, architecture = family_of(hf)
    return family.config(hf, architecture)
