"""Blenderbot (Roller et al. 2020, arXiv:2004.13637): conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, LanguageModelHead, LearnedPositions, ModelConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale
from models.families.pre_norm_seq2seq import pre_norm_rules, pre_norm_stack, refuse_other_norms
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule

_DEFAULTS = {
    "d_model": 2560,
    "encoder_layers": 2,
    "decoder_layers": 24,
    "encoder_attention_heads": 32,
    "decoder_attention_heads": 32,
    "encoder_ffn_dim": 10240,
    "decoder_ffn_dim": 10240,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**_DEFAULTS, **hf})
    refuse_other_norms(fields, embedding_norm=False)
    fields.refuse_unless("layernorm_variant", "prelayernorm")
    fields.refuse_unless("static_position_embeddings", False)
    vocab, positions = fields.integer("vocab_size", 8008), fields.integer("max_position_embeddings", 128)
    embedding = EmbeddingConfig(vocab, embedding_scale(fields), LearnedPositions(positions))
    return ModelConfig(
        hidden_size=fields.integer("d_model"),
        vocab_size=vocab,
        head=LanguageModelHead(tied=True, bias=True),
        encoder=pre_norm_stack(fields, "encoder", embedding),
        decoder=pre_norm_stack(fields, "decoder", embedding),
        shared_embeddings=True,
        max_positions=positions,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = r"(?:model\.)?(encoder|decoder)\."
    return (
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="blenderbot",
    model_types=("blenderbot",),
    architectures={"BlenderbotForConditionalGeneration": ("generate",), "BlenderbotModel": ("generate",)},
    config=config,
    rules=rules,
    generation=GenerationDefaults(
        bos_token_id=1,
        end_token_ids=(2,),
        pad_token_id=0,
        decoder_start_token_ids=(1,),
        forced_eos_token_id=2,
        encoder_no_repeat_ngram_size=3,
    ),
    zero_if_absent=frozenset({"head.bias"}),
)
