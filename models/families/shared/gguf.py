"""How a family reads its GGUF files: their settings, and the tensors that are stored differently in this family.

`Metadata` has the settings of a file under the names of GGUF; a family returns them under the names of Hugging Face
transformers. Some settings are not in the metadata and are derived from the tensors: whether there are biases, whether
the output matrix is tied, and the row count of a table. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.config import ModelConfig
from weights.errors import GgufError
from weights.gguf.metadata import Metadata
from weights.gguf.rope import llama3_scaling, rope_scaling
from weights.rules import Drop, LayoutChange, Rule, Split

Settings = dict[str, Any]
INPUT_NORM_AFTER_ATTENTION: Mapping[str, str] = {"post_attention_norm": "feed_forward_norms.input"}
"""`GgufFamily.norms` of families whose attention has no output norm: the file's `post_attention_norm` is the norm
before the feed-forward."""
_MAX_PREDICTION_LAYERS = 8


@dataclass(frozen=True)
class GgufFamily:
    """How the GGUF files of one family are read.

    settings: functions that build the contents of `config.json` from the metadata, by the value of
        `general.architecture` in the file.
    applies: whether a file with one of these values belongs to this family. Several families share the value `llama`.
    rules: returns rules for the tensors whose names or layouts differ from those of `models.checkpoint.gguf_rules`.
    norms: names of norms in the model by their names in the file, for names that mean another norm in most families.
    fused_gate: whether one tensor has the gate and up matrices in files without a tensor for the gate.
    """

    settings: Mapping[str, Callable[[Metadata], Settings]]
    applies: Callable[[Metadata], bool] = lambda of: True
    rules: Callable[[ModelConfig], Sequence[Rule]] = lambda model: ()
    norms: Mapping[str, str] = field(default_factory=dict)
    fused_gate: bool = False


def decoder_settings(of: Metadata, **more: Any) -> Settings:
    """Settings for `config.json` that every decoder has, from GGUF metadata.

    more: further settings to add.
    Raises GgufError if values have another width than keys.
    """
    heads = of.integer("attention.head_count")
    if of.integer("attention.value_length", of.head_dim) != of.head_dim:
        raise of.error("attention.value_length", "differs from the length of keys, which is not supported")
    return {
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "num_hidden_layers": of.layers,
        **({} if "intermediate_size" in more else _dense_width(of)),
        "num_attention_heads": heads,
        "num_key_value_heads": of.largest("attention.head_count_kv", heads),
        "head_dim": of.head_dim,
        "max_position_embeddings": of.integer("context_length"),
        "tie_word_embeddings": not of.has("output.weight"),
        **more,
    }


def _dense_width(of: Metadata) -> Settings:
    """The setting `intermediate_size`; empty for a mixture of experts whose file does not state a dense width."""
    if num_experts(of) and of.optional("feed_forward_length") is None:
        return {}
    return {"intermediate_size": of.integer("feed_forward_length")}


def rotary_settings(of: Metadata, **more: Any) -> Settings:
    """Settings for `config.json` of a decoder whose rotary positions apply to whole heads, from GGUF metadata.

    more: further settings to add.
    Raises GgufError if the file states that they apply to a part of each head.
    """
    if of.integer("rope.dimension_count", of.head_dim) != of.head_dim:
        raise of.error("rope.dimension_count", "is not the width of a head, which is not supported")
    theta = of.number("rope.freq_base", 10000.0)
    scaling = rope_scaling(of) or llama3_scaling(of.gguf, theta, of.head_dim)
    return decoder_settings(of, rope_theta=theta, **({"rope_scaling": scaling} if scaling else {}), **more)


def partly_rotary_settings(of: Metadata, **more: Any) -> Settings:
    """Settings for `config.json` of a decoder whose rotary positions apply to a part of each head, from GGUF metadata.

    more: further settings to add.
    """
    width = of.integer("rope.dimension_count", of.head_dim)
    theta = of.number("rope.freq_base", 10000.0)
    settings = decoder_settings(of, rope_theta=theta, partial_rotary_factor=width / of.head_dim, **more)
    scaling = rope_scaling(of) or llama3_scaling(of.gguf, theta, width)
    return {**settings, **({"rope_scaling": scaling} if scaling else {})}


def rms_eps(of: Metadata) -> Settings:
    """The setting `rms_norm_eps` for `config.json`, from GGUF metadata."""
    return {"rms_norm_eps": of.number("attention.layer_norm_rms_epsilon")}


def layer_eps(of: Metadata) -> float:
    """The epsilon of layer norms, from GGUF metadata. Families call this setting differently in `config.json`."""
    return of.number("attention.layer_norm_epsilon")


def sliding_window(of: Metadata) -> int | None:
    """Width of the sliding window in tokens. None for full attention, which some files write as 0."""
    return of.integer("attention.sliding_window", 0) or None


def layer_types(of: Metadata, period: int = 4) -> list[str]:
    """Attention of each layer: `sliding_attention` or `full_attention`.

    period: in a file without `sliding_window_pattern`, every `period`-th layer has full attention.
    """
    pattern = of.by_layer("attention.sliding_window_pattern")
    if not all(isinstance(flag, bool) for flag in pattern):
        period = of.integer("attention.sliding_window_pattern", period)
        pattern = [(layer + 1) % period != 0 for layer in range(of.layers)]
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in pattern]


def with_ropes_by_type(of: Metadata, settings: Settings) -> Settings:
    """Give the layers with a sliding window a separate rotary base without scaling, from GGUF metadata.

    settings: settings that `rotary_settings` returned. In the result, `rope_parameters` has both bases by layer type.
    """
    others = {name: value for name, value in settings.items() if name not in ("rope_theta", "rope_scaling")}
    full = {"rope_theta": settings["rope_theta"], **settings.get("rope_scaling", {"rope_type": "default"})}
    sliding = {"rope_type": "default", "rope_theta": of.number("rope.freq_base_swa", full["rope_theta"])}
    return {**others, "rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def num_experts(of: Metadata) -> int:
    """Number of experts per layer, 0 for a dense model."""
    return of.integer("expert_count", 0)


def qwen_experts(of: Metadata) -> Settings:
    """Settings for `config.json` about Qwen's experts, from GGUF metadata. Layers without a router tensor are dense."""
    return {
        "num_experts": of.integer("expert_count"),
        "num_experts_per_tok": of.integer("expert_used_count"),
        "moe_intermediate_size": of.integer("expert_feed_forward_length", 0) or _expert_width(of),
        "mlp_only_layers": sorted({*range(of.layers)} - {*of.layers_with("ffn_gate_inp.weight")}),
    }


def has_bias(of: Metadata, matrix: str) -> bool:
    """Whether a matrix has a bias in any layer: a separate tensor, or a part of the bias of `attn_qkv`.

    matrix: its name without the prefix of the layer, such as `attn_q`.
    """
    names = (matrix, "attn_qkv") if matrix == "attn_q" else (matrix,)
    return any(of.layers_with(f"{name}.bias") for name in names)


def prediction_layers(model: ModelConfig) -> Rule:
    """Rule that drops the layers for multi-token prediction, which follow the decoder layers and are not used."""
    assert model.decoder is not None
    first = len(model.decoder.layers)
    numbers = "|".join(str(first + index) for index in range(_MAX_PREDICTION_LAYERS))
    return Drop(rf"blk\.(?:{numbers})\..*")


def routed_experts(of: Metadata) -> Settings:
    """Settings for `config.json` about mixtures of experts with DeepSeek's router, from GGUF metadata."""
    return {
        "n_routed_experts": of.integer("expert_count"),
        "num_experts_per_tok": of.integer("expert_used_count"),
        "n_shared_experts": of.integer("expert_shared_count"),
        "moe_intermediate_size": of.integer("expert_feed_forward_length"),
        "first_k_dense_replace": min(of.layers_with("ffn_gate_inp.weight"), default=of.layers),
        "n_group": of.integer("expert_group_count", 1),
        "topk_group": of.integer("expert_group_used_count", 1),
        "routed_scaling_factor": of.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": bool(of.optional("expert_weights_norm")),
    }


def _expert_width(of: Metadata) -> int:
    """Intermediate size of an expert from the shape of its tensors, for older files whose metadata lacks it.

    Raises GgufError if there is no such tensor.
    """
    tensors = of.gguf.tensors.items()
    found = [tensor.shape for name, tensor in tensors if name.endswith(".ffn_gate_exps.weight")]
    if not found or len(found[0]) != 3:
        raise of.error("expert_feed_forward_length", "is missing")
    return found[0][1]


def fused_gate_rules(model: ModelConfig) -> Sequence[Rule]:
    """Rules for files in which the tensor `ffn_up` holds two matrices: gate, then up."""
    layer = r"decoder.layers.\1." if model.encoder is None else r"encoder.layers.\1."
    return tuple(
        Split(rf"blk\.(\d+)\.ffn_up\.{kind}", [f"{layer}feed_forward.{part}.{kind}" for part in ("gate", "up")])
        for kind in ("weight", "bias")
    )


def unstack(count: int) -> LayoutChange:
    """Layout change for stacked matrices: splits each tensor [count, out, in] into `count` tensors [out, in]."""

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        results: list[Any] = []
        for tensor in tensors:
            if len(tensor.shape) != 3 or tensor.shape[0] != count:
                raise ValueError("the first dimension is not the number of matrices")
            results += tensor.flatten(0, 1).split([tensor.shape[1]] * count, 0)
        return results

    return step


def query_scalar(of: Metadata, largest: int) -> int:
    """Gemma's setting `query_pre_attn_scalar`: attention scores are divided by its square root.

    It is missing in GGUF metadata. It is the head width, except in the largest model of a generation, where it is the
    hidden size divided by the number of heads. Source: `llama-model.cpp` of https://github.com/ggml-org/llama.cpp.

    largest: number of layers of the largest model.
    """
    if of.integer("block_count") == largest:
        return of.integer("embedding_length") // of.integer("attention.head_count")
    return of.head_dim


def encoder_settings(of: Metadata, model_type: str, architecture: str) -> Settings:
    """Settings for `config.json` of an encoder like BERT, from GGUF metadata.

    Files without a table of learned positions have rotary positions (NomicBERT). Files of RoBERTa and XLM-RoBERTa leave
    out the unused rows of the position table, so they are read like files of BERT.

    model_type, architecture: values for `config.json`.
    Raises GgufError for a file with a classification head.
    """
    if any(of.has(name) for name in ("cls.weight", "cls.output.weight")):
        raise GgufError(f"{of.gguf.name!r} has a classification head, which is not supported in GGUF files")
    learned = of.has("position_embd.weight")
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": of.rows("token_embd.weight"),
        "hidden_size": of.integer("embedding_length"),
        "num_hidden_layers": of.integer("block_count"),
        "num_attention_heads": of.integer("attention.head_count"),
        "intermediate_size": of.integer("feed_forward_length"),
        "max_position_embeddings": of.rows("position_embd.weight") if learned else of.integer("context_length"),
        "type_vocab_size": of.rows("token_types.weight") if of.is_matrix("token_types.weight") else 1,
        "layer_norm_eps": layer_eps(of),
        **({} if learned else {"rope_theta": of.number("rope.freq_base", 10000.0)}),
    }


def paired_neighbours(model: ModelConfig) -> Sequence[Rule]:
    """Rules that reorder the projections of queries and keys for the pairing of rotary positions in the model.

    In files of llama.cpp rotary positions rotate pairs of neighbouring dimensions. In the model, as in the original
    checkpoints, dimension `i` of a head forms a pair with dimension `i + head_dim / 2`.
    """
    stack, side = (model.encoder, "encoder") if model.decoder is None else (model.decoder, "decoder")
    assert stack is not None
    attention = stack.first_attention
    layer, ours = r"blk\.(\d+)\.", rf"{side}.layers.\1.attention."
    return tuple(
        Rule(layer + rf"attn_{theirs}\.(weight|bias)", (ours + rf"{name}.\2",), (_halves(heads),))
        for theirs, name, heads in (("q", "query", attention.num_heads), ("k", "key", attention.num_kv_heads))
    )


def _halves(heads: int) -> LayoutChange:
    """Layout change that moves the pairs of neighbouring rows of each head to the rows `i` and `i + head_dim / 2`."""

    def step(tensors: Sequence[Any]) -> Sequence[Any]:
        (tensor,) = tensors
        pairs = tensor.shape[0] // (2 * heads)
        return [tensor.unflatten(0, (heads, pairs, 2)).transpose(1, 2).flatten(0, 2)]

    return step
