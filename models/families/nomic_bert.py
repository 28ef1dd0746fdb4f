"""NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): BERT with rotary positions, gated feed-forward and few biases.

Its first checkpoints come with their own code and use the setting names of GPT-2. The names of transformers are read as
well. If a file has both names of a setting, their values must agree. Nomic Embed v2 (Nussbaum and Duderstadt 2025,
arXiv:2502.07972) has biases, and mixtures of experts in every other layer. Other options of the first checkpoints' code
(pre-norm, rotary positions on a part of each head) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    Activation,
    AttentionConfig,
    ClassificationHead,
    ConfigError,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    MaskedLanguageModelHead,
    MixtureOfExpertsConfig,
    ModelConfig,
    NormConfig,
    NormSlots,
    RouterConfig,
    StackConfig,
)
from models.families.shared.bert_config import architectures, encoder_head
from models.families.shared.bert_rules import embedding_rules, linear, masked_rules, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields, head_width, short
from models.families.shared.gguf import GgufFamily, Settings, encoder_settings, has_bias
from models.families.shared.published_code import PublishedCode
from models.families.shared.rope import rope_config, scaled_max_positions
from weights.gguf.metadata import Metadata
from weights.rules import Drop, Rename, Rule, Split, split, transpose

_PREFIX = r"(?:nomic_bert\.|bert\.)?"
_PUBLISHED_CODE = PublishedCode("nomic-ai", "hf_nomic_bert", "NomicBert")
_OLDER_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_SHARED_BIAS = "moe_shared_bias"
"""Setting that only `moe_gguf_settings` writes: whether the experts have their bias.

The converter of llama.cpp leaves this bias out."""
_ONLY: Mapping[str, Any] = {
    "num_shared_experts": 0,
    "rotary_emb_fraction": 1.0,
    "scale_attn_weights": True,
    **dict.fromkeys(("causal", "is_decoder", "norm_mlp", "parallel_block", "prenorm", "use_rms_norm"), False),
    **dict.fromkeys(("expert_choice_router", "rotary_emb_interleaved", "rotary_head_dim"), False),
    "scale_attn_by_inverse_layer_idx": False,
}


def _renamed_settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under their names in transformers. Raises ConfigError if two names of a setting differ in value."""
    fields = Fields(hf, _PUBLISHED_CODE)
    settings = {name: value for name, value in hf.items() if value is not None and name != "auto_map"}
    for name, only in _ONLY.items():
        fields.refuse_unless(name, only)
    fields.refuse_unless("activation_function", "swiglu", "gelu")
    if hf.get("activation_function") == "gelu":
        settings.setdefault("hidden_act", "gelu")
    fields.refuse_unless("rotary_emb_scale_base", None)
    for old, new in _OLDER_NAMES.items():
        if hf.get(old) is not None and settings.setdefault(new, hf[old]) != hf[old]:
            raise ConfigError(f"{old!r} {short(hf[old])} and {new!r} {short(settings[new])} differ")
    theta, rope = hf.get("rotary_emb_base"), hf.get("rope_parameters")
    if theta is not None and isinstance(rope, dict) and rope.get("rope_theta", theta) != theta:
        raise ConfigError("'rotary_emb_base' and 'rope_theta' differ")
    fields.refuse_unless("num_heads_kv", settings.get("num_attention_heads"))
    multiple = fields.integer("pad_vocab_size_multiple", 1)
    settings["vocab_size"] = -(-fields.integer("vocab_size", 30528) // multiple) * multiple
    return settings


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(_renamed_settings(hf))
    hidden, vocab = fields.integer("hidden_size", 768), fields.integer("vocab_size")
    heads = fields.integer("num_attention_heads", 12)
    head_dim = fields.optional_integer("head_dim") or head_width(hidden, heads)
    layer_norm = NormConfig("layer", fields.number("layer_norm_eps", 1e-12))
    activation, rope = fields.activation("hidden_act", "silu"), rope_config(fields, head_dim, default_theta=1000.0)
    after, bias = NormSlots(residual=layer_norm), fields.flag("qkv_proj_bias", False)
    attention = AttentionConfig(heads, heads, head_dim, head_dim**-0.5, False, bias, bias, bias, bias, rope=rope)
    count = fields.integer("num_hidden_layers", 12)
    layers = tuple(
        LayerConfig(attention, after, feed_forward, after) for feed_forward in _feed_forwards(fields, activation, count)
    )
    positions = fields.integer("n_positions", fields.integer("max_position_embeddings", 2048))
    if fields.optional_positive("rotary_scaling_factor") is not None:
        # Longer texts would need scaled rotary frequencies.
        positions = min(positions, fields.integer("max_trained_positions", 2048))
    embedding = EmbeddingConfig(vocab, num_token_types=fields.integer("type_vocab_size", 2, least=0), norm=layer_norm)
    return ModelConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        head=encoder_head(fields, architecture, MaskedLanguageModelHead(activation, layer_norm), dense="tanh"),
        encoder=StackConfig(embedding, layers),
        max_positions=scaled_max_positions(rope, positions),
    )


def _feed_forwards(
    fields: Fields, activation: Activation, layers: int
) -> Sequence[FeedForwardConfig | MixtureOfExpertsConfig]:
    """Configurations of the feed-forwards, one per layer.

    With the setting `moe_every_n_layers`, the feed-forward of every n-th layer is a mixture of experts, which have no
    gates.
    """
    width = fields.integer("intermediate_size", 3072)
    bias = fields.flag("mlp_fc2_bias", False)
    plain = FeedForwardConfig(
        width,
        activation,
        gated=fields.raw("activation_function") != "gelu",
        bias=bias,
        inner_bias=fields.flag("mlp_fc1_bias", False),
    )
    interval = fields.integer("moe_every_n_layers", 0, least=0)
    if interval == 0:
        fields.refuse_unless("num_experts", 0)
        return [plain] * layers
    fields.refuse_unless("activation_function", "gelu")
    experts = MixtureOfExpertsConfig(
        FeedForwardConfig(width, activation, bias=False),
        num_experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("moe_top_k", 2),
        router=RouterConfig(normalized=fields.flag("moe_normalize_expert_weights", False)),
        # The experts share one bias of their sum: an expert for every token whose matrices are zero.
        shared=FeedForwardConfig(1, "relu", bias=True, inner_bias=False) if fields.flag(_SHARED_BIAS, True) else None,
    )
    return [experts if index % interval == 1 % interval else plain for index in range(layers)]


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    layer, ours = rf"{_PREFIX}(?:encoder\.)?layers\.(\d+)\.", r"encoder.layers.\1."
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    fused = [f"{ours}attention.{part}" for part in ("query", "key", "value")]
    body = (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *norm(rf"{_PREFIX}emb_ln", "encoder.embedding.norm"),
        *(
            Rename(rf"{layer}self_attn\.{part}\.weight", f"{ours}attention.{name}.weight")
            for part, name in parts.items()
        ),
        *(Split(rf"{layer}attn\.Wqkv\.{kind}", [f"{name}.{kind}" for name in fused]) for kind in ("weight", "bias")),
        linear(rf"{layer}attn\.out_proj", f"{ours}attention.output"),
        *_expert_rules(model, rf"{layer}mlp\.", f"{ours}feed_forward."),
        linear(rf"{layer}mlp\.fc1", f"{ours}feed_forward.up"),
        *norm(rf"{layer}(?:post_attention_layernorm|norm1)", f"{ours}attention_norms.residual"),
        linear(rf"{layer}mlp\.(?:gate_proj|fc12)", f"{ours}feed_forward.gate"),
        linear(rf"{layer}mlp\.(?:up_proj|fc11)", f"{ours}feed_forward.up"),
        linear(rf"{layer}mlp\.(?:down_proj|fc2)", f"{ours}feed_forward.down"),
        *norm(rf"{layer}(?:post_mlp_layernorm|norm2)", f"{ours}feed_forward_norms.residual"),
    )
    pooler, words = rf"{_PREFIX}pooler\.dense", r"cls\.predictions"
    match model.head:
        case MaskedLanguageModelHead():
            return (
                *body,
                *masked_rules(rf"{words}\.transform\.dense", rf"{words}\.transform\.layer_norm", words),
                Drop(rf"{pooler}\..*"),
            )
        case ClassificationHead():
            return (*body, linear(pooler, "head.dense"), linear("classifier", "head.output"))
        case _:
            return (*body, linear("classifier", "head.output"), Drop(rf"{pooler}\..*|cls\..*"))


def _expert_rules(model: ModelConfig, theirs: str, ours: str) -> Sequence[Rule]:
    """Rules for the experts of a layer, whose matrices are stacked in tensors of shape [experts * inner, hidden].

    theirs: regular expression for the prefix of the tensor names in the checkpoint. ours: prefix in the model.
    """
    assert model.encoder is not None
    mixtures = [
        layer.feed_forward for layer in model.encoder.layers if isinstance(layer.feed_forward, MixtureOfExpertsConfig)
    ]
    experts = range(mixtures[0].num_experts if mixtures else 0)
    up, down = (tuple(f"{ours}experts.{expert}.{part}.weight" for expert in experts) for part in ("up", "down"))
    return (
        Rename(theirs + r"router\.layer\.weight", ours + "router.weight"),
        Rule(theirs + r"experts\.mlp\.w1", up, (split(len(experts)),)),
        Rule(theirs + r"experts\.mlp\.w2", down, (split(len(experts)), transpose)),
        Rule(
            theirs + r"experts\.bias",
            (ours + "shared.down.bias", ours + "shared.down.weight", ours + "shared.up.weight"),
            (_with_zero_matrices,),
        ),
    )


def _with_zero_matrices(tensors: Sequence[Any]) -> Sequence[Any]:
    """From a bias [hidden], make the parameters of a feed-forward of width 1 that adds only this bias.

    Returns the bias and two matrices of zeros, so that the input has no effect.
    """
    (bias,) = tensors
    zeros = bias.new_zeros(bias.shape)
    return [bias, zeros.unsqueeze(1), zeros.unsqueeze(0)]


def gguf_settings(of: Metadata) -> Settings:
    return encoder_settings(of, "nomic_bert", "NomicBertModel")


def moe_gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` of Nomic Embed v2, named as in its published code, from GGUF metadata."""
    return {
        **gguf_settings(of),
        "activation_function": "gelu",
        "qkv_proj_bias": has_bias(of, "attn_qkv"),
        "mlp_fc1_bias": has_bias(of, "ffn_up"),
        "mlp_fc2_bias": has_bias(of, "ffn_down"),
        "moe_every_n_layers": of.integer("moe_every_n_layers"),
        "num_experts": of.integer("expert_count"),
        "moe_top_k": of.integer("expert_used_count"),
        _SHARED_BIAS: False,
    }


_TASKS = architectures("NomicBert")
FAMILY = Family(
    name="nomic_bert",
    model_types=("nomic_bert",),
    architectures={name: tasks for name, tasks in _TASKS.items() if "Question" not in name}
    | {"NomicBertForPreTraining": ("embed", "fill_mask")},
    config=_config,
    rules=_rules,
    # The masked language model heads of the first checkpoints have no biases.
    zero_if_absent=frozenset({"head.dense.bias", "head.bias"}),
    gguf=GgufFamily({"nomic-bert": gguf_settings, "nomic-bert-moe": moe_gguf_settings}),
)
