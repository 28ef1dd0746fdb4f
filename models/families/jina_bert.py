"""Jina Embeddings 2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi and gated feed-forwards.

The checkpoints have the `model_type` of BERT, and their `auto_map` names Jina's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import (
    Activation,
    AlibiConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    MaskedLanguageModelHead,
    ModelConfig,
    StackConfig,
)
from models.families.shared.alibi import bloom_slopes
from models.families.shared.bert_config import (
    architectures,
    bert_attention,
    bert_norm,
    encoder_head,
    post_norm_layer,
)
from models.families.shared.bert_rules import bert_head_rules, bert_layer_names, embedding_rules, linear, norm
from models.families.shared.family import Family
from models.families.shared.fields import Fields
from models.families.shared.gguf import GgufFamily, Settings, encoder_settings
from models.families.shared.published_code import PublishedCode
from weights.gguf.metadata import Metadata
from weights.rules import Rule, Split

_PREFIX = r"(?:bert\.)?"
_PUBLISHED = PublishedCode("jinaai", "bert", "JinaBert")
_GATES: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
"""Activation of the feed-forward's gate, by the value of `feed_forward_type`."""
_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "feed_forward_type": "original",
}


def _config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields(hf, _PUBLISHED, defaults=_DEFAULTS)
    fields.refuse_unless("is_decoder", False)
    fields.refuse_unless("add_cross_attention", False)
    # The code has variants with learned positions, which is its default, and without gates.
    fields.refuse_unless("position_embedding_type", "alibi")
    fields.refuse_unless("feed_forward_type", *_GATES)
    layer_norm, heads = bert_norm(fields), fields.integer("num_attention_heads")
    feed_forward = FeedForwardConfig(
        fields.integer("intermediate_size"),
        _GATES[fields.text("feed_forward_type", "")],
        gated=True,
        bias=True,
        inner_bias=False,
    )
    layer = post_norm_layer(bert_attention(fields), feed_forward, layer_norm)
    types = fields.integer("type_vocab_size")
    embedding = EmbeddingConfig(fields.integer("vocab_size"), num_token_types=types, norm=layer_norm)
    masked = MaskedLanguageModelHead(fields.activation("hidden_act"), layer_norm)
    return ModelConfig(
        fields.integer("hidden_size"),
        embedding.vocab_size,
        encoder_head(fields, architecture, masked, dense="tanh"),
        encoder=StackConfig(
            embedding,
            (layer,) * fields.integer("num_hidden_layers"),
            score_bias=AlibiConfig(bloom_slopes(heads)),
        ),
        max_positions=fields.integer("max_position_embeddings"),
    )


def _rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    names, ours = bert_layer_names(_PREFIX), r"encoder.layers.\1."
    mlp = rf"{_PREFIX}encoder\.layer\.(\d+)\.mlp\."
    return (
        *embedding_rules(rf"{_PREFIX}embeddings"),
        *(linear(names[part], f"{ours}attention.{part}") for part in ("query", "key", "value", "output")),
        *norm(names["attention_norm"], f"{ours}attention_norms.residual"),
        Split(rf"{mlp}gated_layers\.weight", (f"{ours}feed_forward.gate.weight", f"{ours}feed_forward.up.weight")),
        linear(rf"{mlp}wo", f"{ours}feed_forward.down"),
        *norm(rf"{mlp}layernorm", f"{ours}feed_forward_norms.residual"),
        *bert_head_rules(model.head, _PREFIX),
    )


def gguf_settings(of: Metadata) -> Settings:
    """Settings for `config.json` of a text embedding model from the metadata of a GGUF file.

    Files of the embedding model for source code, which has norms of queries and keys, are not supported.
    """
    settings = encoder_settings(of, "jina_bert", "JinaBertModel")
    return {**settings, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}


FAMILY = Family(
    name="jina_bert",
    model_types=("jina_bert",),
    architectures=architectures("JinaBert"),
    config=_config,
    rules=_rules,
    # Files of embedding models name the class of the masked language model and have no head.
    body="JinaBertModel",
    published_as={"bert": _PUBLISHED},
    gguf=GgufFamily({"jina-bert-v2": gguf_settings}, fused_gate=True),
)
