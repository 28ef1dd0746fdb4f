"""What a model is made of: frozen, nested dataclasses that validate themselves.

A family file turns a checkpoint's `config.json` into a `ModelConfig`; `models.transformer` builds the modules from it.
No torch here, so that listing families and checking a configuration stays instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_quick", "silu", "tanh"]


class ConfigError(ValueError):
    """A configuration that no model can be built from, or that asks for something Triptych does not support."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True)
class NormConfig:
    """Layer norm (Ba et al. 2016, arXiv:1607.06450) or RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467).

    `rms_from_one`: an RMS norm whose checkpoints hold weights as distances from one (Gemma).
    """

    kind: Literal["layer", "rms", "rms_from_one"]
    eps: float
    bias: bool = True

    def __post_init__(self) -> None:
        _require(self.eps > 0, f"norm eps must be positive, got {self.eps}")


@dataclass(frozen=True)
class NormSlots:
    """The three places of a sublayer: `y = residual_norm(x + output_norm(f(input_norm(x))))`, each optional."""

    input: NormConfig | None = None
    output: NormConfig | None = None
    residual: NormConfig | None = None


@dataclass(frozen=True)
class QueryKeyNorm:
    """A norm of queries and one of keys, after their projection and before they rotate (Henry et al. 2020,
    arXiv:2010.04245): over each head with weights that all heads share or that are its own, or over all heads together.
    """

    norm: NormConfig
    over: Literal["head", "own_head", "all"] = "head"


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): all positions divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, smooth in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): waves that turn less than `beta_slow` times over the original length
    divided by `factor`, those above `beta_fast` turns kept, a ramp over dimensions in between (whole ones when
    `truncate`); cosines and sines times `magnitude`."""

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    magnitude: float

    def __post_init__(self) -> None:
        _require(self.factor > 0, f"rope factor must be greater than zero, got {self.factor}")
        _require(self.beta_fast > 0 and self.beta_slow > 0, "rope beta_fast and beta_slow must be greater than zero")


@dataclass(frozen=True)
class DynamicScaling:
    """NTK-aware scaling that grows with the text (Peng et al. 2023, arXiv:2309.00071, appendix A.2): nothing changes up
    to `original_max_positions`; beyond them the base grows with the length, as if scaled by `factor` all along."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): each wavelength times a factor of its own, of `short_factors` in
    texts up to `original_max_positions`, of `long_factors` in longer ones; cosines and sines times `magnitude`.

    restarts: a text that grows longer is computed anew from its start (Phi-3); else its first keys stay as they are.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    magnitude: float
    restarts: bool = False


Scaling = LinearScaling | Llama3Scaling | YarnScaling | DynamicScaling | LongScaling


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    `dim` is how many leading dimensions of each head rotate; `pairing` says whether dimension i turns with i + dim/2
    (`half`, as Hugging Face stores it) or with i + 1 (`interleaved`, as the paper has it).
    """

    theta: float
    dim: int
    pairing: Literal["half", "interleaved"] = "half"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        _require(self.dim > 0 and self.dim % 2 == 0, f"rope needs an even number of dimensions, got {self.dim}")
        if isinstance(self.scaling, LongScaling):
            lengths = {len(self.scaling.short_factors), len(self.scaling.long_factors)}
            _require(lengths == {self.dim // 2}, f"rope needs {self.dim // 2} factors")
        if isinstance(self.scaling, DynamicScaling):
            _require(self.dim > 2, "rope needs more than two dimensions to grow with the text")
        if isinstance(self.scaling, YarnScaling):
            _require(self.theta > 1, f"rope theta must exceed 1 to be scaled, got {self.theta}")
        _require(self.theta > 0, f"rope theta must be positive, got {self.theta}")

    @property
    def depends_on_length(self) -> bool:
        """Whether a token is rotated by more than its position: by the length that its text had when it was read."""
        return isinstance(self.scaling, DynamicScaling | LongScaling)


@dataclass(frozen=True)
class BucketBiasConfig:
    """T5's relative position buckets, added to attention scores (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    One table for all layers of a stack, or with `per_layer` one for each (Chung et al. 2023, arXiv:2304.09151).
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    per_layer: bool = False

    def __post_init__(self) -> None:
        exact = self.num_buckets // (4 if self.bidirectional else 2)
        _require(exact > 0, f"{self.num_buckets} position buckets are too few")
        _require(
            self.max_distance > exact,
            f"max_distance {self.max_distance} must exceed the {exact} distances with a bucket of their own",
        )


@dataclass(frozen=True)
class AlibiConfig:
    """A straight line for each head, added to its scores: `slope * (key position - query position)` (Press et al. 2022,
    arXiv:2108.12409)."""

    slopes: tuple[float, ...]


@dataclass(frozen=True)
class KeyAlibiConfig:
    """The same line by the key's position alone, `scale * slope * key position`, which softmax cannot tell from it; but
    slopes and products are bfloat16, so that far keys share a bias (Falcon, by its published code)."""

    slopes: tuple[float, ...]
    scale: float


@dataclass(frozen=True)
class AttentionConfig:
    """Multi-head or grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245), self or cross."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    output_bias: bool = True
    rope: RopeConfig | None = None
    query_key_norm: QueryKeyNorm | None = None
    window: int | None = None
    """Sliding window: a query sees its own position and the `window - 1` before it; if not causal, as many after it."""
    clip: float | None = None
    """Queries, keys and values stay between it and its negative."""
    score_cap: float | None = None
    """Scores stay below it: `cap * tanh(score / cap)`, before masks (Bello et al. 2016, arXiv:1611.09940)."""

    def __post_init__(self) -> None:
        _require(self.num_heads > 0 and self.num_kv_heads > 0, "attention needs at least one head")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}",
        )
        _require(self.head_dim > 0, f"head_dim must be positive, got {self.head_dim}")
        _require(self.window is None or self.window > 0, f"sliding window must be positive, got {self.window}")
        _require(self.clip is None or self.clip > 0, f"clip must be positive, got {self.clip}")
        _require(self.score_cap is None or self.score_cap > 0, f"score cap must be positive, got {self.score_cap}")
        if self.rope is not None:
            _require(self.rope.dim <= self.head_dim, f"rope dim {self.rope.dim} exceeds head_dim {self.head_dim}")


@dataclass(frozen=True)
class DisentangledConfig(AttentionConfig):
    """Self-attention whose scores also compare contents with distances (He et al. 2021, arXiv:2006.03654, section 3.1).

    A distance is a vector of the stack's `DistanceConfig`. content_to_position: a query looks at the distance to each
    key; position_to_content: a key at the distance from each query. own_projections: distances have projections of
    their own; else those of queries and keys.
    """

    content_to_position: bool = True
    position_to_content: bool = True
    own_projections: bool = True
    position_key_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.content_to_position or self.position_to_content, "disentangled attention must look at distances")
        plain = self.rope is None and self.query_key_norm is None and self.window is None and self.score_cap is None
        _require(plain and not self.causal and self.num_heads == self.num_kv_heads, "no such disentangled attention")


@dataclass(frozen=True)
class DistanceConfig:
    """A vector for each signed distance below `max_distance`, for all layers of a stack; then a norm, if any.

    num_buckets: with it, half as many distances on each side have a vector of their own and farther ones share, in
    steps that grow logarithmically (He et al. 2021, arXiv:2111.09543, by its published code).
    """

    max_distance: int
    num_buckets: int | None = None
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        _require(self.max_distance > 0, f"max_distance must be positive, got {self.max_distance}")
        if self.num_buckets is not None:
            exact = self.num_buckets // 2
            _require(exact > 0, f"{self.num_buckets} position buckets are too few")
            _require(
                self.max_distance - 1 > exact,
                f"max_distance {self.max_distance} is too short for {self.num_buckets} buckets",
            )

    @property
    def span(self) -> int:
        """Vectors on each side of distance zero."""
        return self.num_buckets or self.max_distance


@dataclass(frozen=True)
class FeedForwardConfig:
    """`down(act(up(x)))`, or `down(act(gate(x)) * up(x))` when gated (Shazeer 2020, arXiv:2002.05202)."""

    intermediate_size: int
    activation: Activation
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        _require(self.intermediate_size > 0, f"intermediate_size must be positive, got {self.intermediate_size}")


@dataclass(frozen=True)
class MixtureConfig:
    """A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2022, arXiv:2101.03961): each token
    goes through the `experts_per_token` of `num_experts` feed-forwards that a router finds likeliest for it.

    expert: each of them. normalized: the shares of a token's experts sum to one; else each keeps its probability among
    all. shared: one more, for every token, times the sigmoid of a gate of its own (Qwen Team 2024, arXiv:2407.10671).
    """

    expert: FeedForwardConfig
    num_experts: int
    experts_per_token: int
    normalized: bool
    shared: FeedForwardConfig | None = None

    def __post_init__(self) -> None:
        _require(
            0 < self.experts_per_token <= self.num_experts,
            f"{self.experts_per_token} experts per token cannot be chosen from {self.num_experts}",
        )


@dataclass(frozen=True)
class LayerConfig:
    """Self-attention, then cross-attention where there is one, then feed-forward, each with its norm slots.

    parallel: attention and feed-forward both start from the layer's input, and both results are added to it (Wang and
    Komatsuzaki 2021, GPT-J). A feed-forward without an input norm of its own then reads what attention reads.
    """

    attention: AttentionConfig
    attention_norms: NormSlots
    feed_forward: FeedForwardConfig | MixtureConfig
    feed_forward_norms: NormSlots
    cross_attention: AttentionConfig | None = None
    cross_attention_norms: NormSlots = NormSlots()
    parallel: bool = False

    def __post_init__(self) -> None:
        _require(not (self.parallel and self.cross_attention), "a parallel layer has no cross-attention")
        if self.cross_attention is not None:
            _require(not self.cross_attention.causal, "cross-attention is not causal")


@dataclass(frozen=True)
class ConvolvedLayerConfig(LayerConfig):
    """A layer with a convolution over its input beside it: `norm(layer(x) + act(conv(x)))` (DeBERTa-v2's first)."""

    kernel_size: int = 3
    groups: int = 1
    activation: Activation = "tanh"
    norm: NormConfig = NormConfig("layer", 1e-7)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.kernel_size % 2 == 1, f"a convolution needs an odd kernel, got {self.kernel_size}")
        _require(not self.attention.causal, "a convolution sees what comes after")


@dataclass(frozen=True)
class LearnedPositions:
    """A table of `num_positions` vectors added to the token embeddings; position 0 is its first row."""

    num_positions: int


@dataclass(frozen=True)
class SinusoidalPositions:
    """Vaswani et al. 2017, arXiv:1706.03762, section 3.5; sines in the first half of the width and cosines after, or
    the two by turns, as the paper has it."""

    num_positions: int
    pairing: Literal["half", "interleaved"] = "half"


@dataclass(frozen=True)
class FairseqSinusoidalPositions:
    """The same with waves up to a length of 2 pi * 10000 positions, where the paper's stop one step short of it, and
    numbered from `first` (Ott et al. 2019, arXiv:1904.01038, by its published code, after tensor2tensor)."""

    num_positions: int
    first: int


@dataclass(frozen=True)
class EmbeddingConfig:
    """Token embeddings times `scale`, plus positions and token types where there are some, then a norm.

    token_norm: of the scaled token embeddings alone, before anything is added.
    width: of all tables and the norm, whose result a linear layer then brings to the hidden size (Lan et al. 2020,
    arXiv:1909.11942, section 3.1); None for tables of the hidden size and no such layer.
    token_width: of the token table alone, whose rows a matrix brings to the hidden size before all else (OPT-350m).
    """

    vocab_size: int
    scale: float = 1.0
    positions: LearnedPositions | SinusoidalPositions | FairseqSinusoidalPositions | None = None
    num_token_types: int = 0
    norm: NormConfig | None = None
    width: int | None = None
    token_norm: NormConfig | None = None
    token_width: int | None = None

    def __post_init__(self) -> None:
        _require(self.width is None or self.width > 0, f"embedding width must be positive, got {self.width}")
        narrow = self.token_width
        _require(narrow is None or narrow > 0, f"token width must be positive, got {narrow}")
        _require(self.width is None or narrow is None, "tables are narrow all together, or that of tokens alone")


@dataclass(frozen=True, kw_only=True)
class QuestionTypesEmbeddingConfig(EmbeddingConfig):
    """Token types that no tokenizer gives: 0 for a question with its separator and 1 for what follows, 0 for all where
    separator_id is None."""

    separator_id: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 1 if self.separator_id is None else 2
        _require(self.num_token_types >= least, f"{self.num_token_types} token types, at least {least} are needed")


@dataclass(frozen=True)
class ConvolutionalEmbeddingConfig:
    """Two convolutions over frames of sound, a GELU after each, the second one with stride 2; then learned positions
    (Radford et al. 2022, arXiv:2212.04356, section 2.2). num_mels: numbers of a frame."""

    num_mels: int
    num_positions: int
    vocab_size: ClassVar[int] = 0
    width: ClassVar[int | None] = None
    token_width: ClassVar[int | None] = None


@dataclass(frozen=True)
class StackConfig:
    """Embeddings, layers and an optional final norm: an encoder or a decoder.

    sharing: for each layer, the number of the layer whose weights it uses: its own, or that of an earlier one (Lan et
    al. 2020, arXiv:1909.11942, section 3.1); empty where every layer has its own.
    output_width: of what a matrix makes of the hidden states at last, for every head (OPT-350m); None for none.
    """

    embedding: EmbeddingConfig | ConvolutionalEmbeddingConfig
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    score_bias: BucketBiasConfig | AlibiConfig | KeyAlibiConfig | None = None
    sharing: tuple[int, ...] = ()
    distances: DistanceConfig | None = None
    output_width: int | None = None

    def __post_init__(self) -> None:
        _require(self.output_width is None or self.output_width > 0, "the output width must be positive")
        _require(len(self.layers) > 0, "a stack needs at least one layer")
        _require(not self.sharing or len(self.sharing) == len(self.layers), "sharing must name one layer for each")
        for index, owner in enumerate(self.sharing):
            _require(0 <= owner <= index and self.sharing[owner] == owner, f"layer {owner} has no weights to share")
            _require(self.layers[owner] == self.layers[index], f"layers {owner} and {index} differ and share weights")
        if isinstance(self.score_bias, AlibiConfig | KeyAlibiConfig):
            slopes, heads = len(self.score_bias.slopes), self.layers[0].attention.num_heads
            _require(slopes == heads, f"{slopes} ALiBi slopes for {heads} heads")
        disentangled = any(isinstance(layer.attention, DisentangledConfig) for layer in self.layers)
        _require(disentangled == (self.distances is not None), "disentangled attention and distances need each other")


@dataclass(frozen=True)
class LanguageModelHead:
    """Logits over the vocabulary, of hidden states times `scale`. `tied` reuses the decoder's token embeddings.

    cap: logits stay below it, `cap * tanh(logit / cap)`.
    """

    tied: bool
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None

    def __post_init__(self) -> None:
        _require(self.cap is None or self.cap > 0, f"logit cap must be positive, got {self.cap}")


@dataclass(frozen=True)
class MaskedLanguageModelHead:
    """Dense, activation, norm, then tied logits with a bias (BERT's `cls.predictions`).

    The dense layer leads to the width of the encoder's token table.
    """

    activation: Activation
    norm: NormConfig
    dense_bias: bool = True
    bias: bool = True


@dataclass(frozen=True)
class PoolingHead:
    """No weights of its own: one vector per sequence from the hidden states."""


@dataclass(frozen=True)
class ClassificationHead:
    """One vector per sequence, then labels: `out(norm(act(dense(pooled))))`, the dense step and its norm optional.

    `pool` takes the first token of an encoder, the last of a sequence (BART's end-of-sentence token), the last that is
    `end_token_id`, the last that is not `pad_token_id`, or the mean. start_token_id: with an encoder and a decoder,
    what the decoder reads before the text; None for the text's own last token.
    """

    num_labels: int
    dense: Activation | None
    pool: Literal["first", "last", "end", "unpadded", "mean"] = "first"
    bias: bool = True
    start_token_id: int | None = 0
    dense_bias: bool = True
    norm: NormConfig | None = None
    end_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        _require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")
        _require((self.pool == "end") == (self.end_token_id is not None), "an end token goes with pool `end`")


@dataclass(frozen=True)
class TokenClassificationHead:
    """Class logits of each token: `out(norm(act(dense(hidden))))`, the dense step and its norm optional."""

    num_labels: int
    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None

    def __post_init__(self) -> None:
        _require(self.num_labels > 0, f"num_labels must be positive, got {self.num_labels}")


@dataclass(frozen=True)
class SpanHead:
    """Two logits of each token: to begin an answer, and to end one (Devlin et al. 2019, arXiv:1810.04805, 4.2).

    They come from the hidden state like the classes of a token: `out(norm(act(dense(hidden))))`.
    start_token_id: with an encoder and a decoder, as in `ClassificationHead`.
    """

    dense: Activation | None = None
    dense_bias: bool = True
    norm: NormConfig | None = None
    start_token_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class FeedForwardSpanHead(SpanHead):
    """The same after a feed-forward sublayer of its own, whose sum is normed (BigBird)."""

    feed_forward: FeedForwardConfig
    sum_norm: NormConfig


HeadConfig = (
    LanguageModelHead | MaskedLanguageModelHead | PoolingHead | ClassificationHead | TokenClassificationHead | SpanHead
)


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. Encoder only, decoder only, or both; `shared_embeddings` makes both stacks use one token table.

    vocab_size: of the logits and of the decoder; with a decoder that shares nothing, an encoder may have its own.
    """

    hidden_size: int
    vocab_size: int
    head: HeadConfig
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    shared_embeddings: bool = False
    max_positions: int | None = None
    """Longest sequence the positions allow; None where nothing limits it (T5's buckets)."""
    max_source_positions: int | None = None
    """The same for the encoder of an encoder-decoder, where it differs."""

    def __post_init__(self) -> None:
        _require(self.encoder is not None or self.decoder is not None, "a model needs an encoder or a decoder")
        own_source = self.is_encoder_decoder and not self.shared_embeddings
        for label, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if stack is not None and not (label == "encoder" and own_source):
                _require(
                    stack.embedding.vocab_size == self.vocab_size,
                    f"{label} vocabulary {stack.embedding.vocab_size} differs from the model's {self.vocab_size}",
                )
        crosses = self.decoder is not None and any(layer.cross_attention for layer in self.decoder.layers)
        _require(crosses == (self.encoder is not None and self.decoder is not None), "cross-attention needs an encoder")

    @property
    def output_size(self) -> int:
        """Width of the hidden states that heads read and that embeddings are made of."""
        last = self.decoder or self.encoder
        assert last is not None
        return last.output_width or self.hidden_size

    @property
    def is_encoder_decoder(self) -> bool:
        return self.encoder is not None and self.decoder is not None

    @property
    def keys_depend_on_length(self) -> bool:
        """Whether the keys of a prefix differ with the length of the whole prompt, so that no other one can use them.

        See `models.batch.DecoderBatch.rope_lengths`.
        """
        return any(rope.depends_on_length for rope in self._ropes())

    @property
    def restart_tokens(self) -> int | None:
        """The length that a text may not outgrow without being computed anew from its start; None: no such length."""
        scalings = [rope.scaling for rope in self._ropes() if isinstance(rope.scaling, LongScaling)]
        return min((scaling.original_max_positions for scaling in scalings if scaling.restarts), default=None)

    def _ropes(self) -> set[RopeConfig]:
        layers = () if self.decoder is None else self.decoder.layers
        return {layer.attention.rope for layer in layers if layer.attention.rope is not None}
