"""Blenderbot of 90 million parameters (Roller et al. 2020, arXiv:2004.13637): BART's layers, and a decoder that norms
its token vectors before it adds their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import EmbeddingConfig, LanguageModelHead, LearnedPositions, ModelConfig, NormConfig
from models.families.family import Family
from models.families.fields import Fields
from models.families.post_norm_seq2seq import embedding_scale, layer_rules, refuse_later_variants, seq2seq_stack
from models.generation_defaults import GenerationDefaults
from weights.rules import Rename, Rule

_TOKENS = "encoder.embedding.tokens.weight"
_NORM = NormConfig("layer", 1e-5)
_DEFAULTS = {
    "d_model": 512,
    "encoder_layers": 8,
    "decoder_layers": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = Fields({**_DEFAULTS, **hf})
    refuse_later_variants(fields)
    fields.refuse_unless("tie_word_embeddings", True)
    fields.refuse_unless("normalize_embedding", True)
    fields.refuse_unless("layernorm_variant", "xlm")
    fields.refuse_unless("do_blenderbot_90_layernorm", True)
    fields.refuse_unless("static_position_embeddings", False)
    vocab, longest = fields.integer("vocab_size", 50265), fields.integer("max_position_embeddings", 512)
    positions = LearnedPositions(longest)
    return ModelConfig(
        hidden_size=fields.integer("d_model"),
        vocab_size=vocab,
        head=LanguageModelHead(tied=True, bias=True),
        encoder=seq2seq_stack(
            fields, "encoder", EmbeddingConfig(vocab, embedding_scale(fields), positions, norm=_NORM)
        ),
        # The decoder norms what is not scaled.
        decoder=seq2seq_stack(fields, "decoder", EmbeddingConfig(vocab, positions=positions, token_norm=_NORM)),
        shared_embeddings=True,
        max_positions=longest,
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = r"(?:model\.)?(encoder|decoder)\."
    return (
        Rename(r"(?:model\.)?shared\.weight", _TOKENS),
        Rename(stack + r"embed_tokens\.weight", _TOKENS),
        Rename(r"lm_head\.weight", _TOKENS),
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(r"(?:model\.)?encoder\.layernorm_embedding\.(weight|bias)", r"encoder.embedding.norm.\1"),
        Rename(r"(?:model\.)?decoder\.layernorm_embedding\.(weight|bias)", r"decoder.embedding.token_norm.\1"),
        *layer_rules(),
    )


FAMILY = Family(
    name="blenderbot-small",
    model_types=("blenderbot-small",),
    architectures={"BlenderbotSmallForConditionalGeneration": ("generate",), "BlenderbotSmallModel": ("generate",)},
    config=config,
    rules=rules,
    generation=GenerationDefaults(
        bos_token_id=1, end_token_ids=(2,), pad_token_id=0, decoder_start_token_ids=(1,), forced_eos_token_id=2
    ),
    zero_if_absent=frozenset({"head.bias"}),
)
