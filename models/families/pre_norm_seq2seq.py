"""What mBART, M2M100, Pegasus and Blenderbot share: BART's layers with their norms before, and one after the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models.config import EmbeddingConfig, LayerConfig, NormConfig, NormSlots, StackConfig
from models.families.fields import Fields
from models.families.post_norm_seq2seq import layer_rules, seq2seq_stack
from weights.rules import Rename, Rule

_NORM = NormConfig("layer", 1e-5)
_BEFORE = NormSlots(input=_NORM)


def pre_norm_stack(fields: Fields, side: str, embedding: EmbeddingConfig) -> StackConfig:
    """One of the two stacks; side: `encoder` or `decoder`, the prefix of its settings."""
    stack = seq2seq_stack(fields, side, embedding)
    return replace(stack, layers=tuple(map(_norms_before, stack.layers)), final_norm=_NORM)


def _norms_before(layer: LayerConfig) -> LayerConfig:
    crosses = layer.cross_attention is not None
    return replace(
        layer,
        attention_norms=_BEFORE,
        feed_forward_norms=_BEFORE,
        cross_attention_norms=_BEFORE if crosses else NormSlots(),
    )


def refuse_other_norms(fields: Fields, *, embedding_norm: bool) -> None:
    """Raises ConfigError for switches of the first releases that say otherwise than their published checkpoints do."""
    fields.refuse_unless("normalize_before", True)
    fields.refuse_unless("add_final_layer_norm", True)
    fields.refuse_unless("add_bias_logits", False)
    fields.refuse_unless("normalize_embedding", embedding_norm)
    fields.refuse_unless("tie_word_embeddings", True)


def pre_norm_rules() -> Sequence[Rule]:
    """The rules of BART's layers for the other place of the norms, the final norms, and the one token table."""
    stack, tokens = r"(?:model\.)?(encoder|decoder)\.", "encoder.embedding.tokens.weight"
    return (
        Rename(r"(?:model\.)?shared\.weight", tokens),
        Rename(stack + r"embed_tokens\.weight", tokens),
        Rename(r"lm_head\.weight", tokens),
        Rename(stack + r"layer_norm\.(weight|bias)", r"\1.final_norm.\2"),
        *(
            replace(rule, names=tuple(name.replace("_norms.residual.", "_norms.input.") for name in rule.names))
            for rule in layer_rules()
        ),
    )
