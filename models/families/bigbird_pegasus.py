"""BigBird-Pegasus (Zaheer et al. 2020, arXiv:2007.14062, section 4): summaries of long texts.

Pre-norm layers, learned positions that start at 0, and block sparse attention in the encoder. The tensor named
`layernorm_embedding` in checkpoints is the norm after the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.config import LearnedPositions, ModelConfig
from models.families.shared.bart_config import (
    bart_attention,
    bart_embedding,
    bart_fields,
    bart_head,
    bart_model,
    bart_stack,
)
from models.families.shared.bart_rules import PREFIX, pre_norm_rules
from models.families.shared.block_sparse import block_sparse
from models.families.shared.family import Family
from weights.rules import Rename, Rule

_DEFAULTS = {"vocab_size": 96103, "layers": 16, "activation_function": "gelu_new", "max_position_embeddings": 4096}


def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
    fields = bart_fields(hf, **_DEFAULTS, scale_embedding=True)
    fields.refuse_unless("tie_word_embeddings", True)
    bias = fields.flag("use_bias", False)
    embedding = bart_embedding(fields, LearnedPositions(fields.integer("max_position_embeddings")))
    attention = block_sparse(fields, bart_attention(fields, "encoder", causal=False, bias=bias))
    attentions = (attention,) * fields.integer("encoder_layers")
    start = fields.integer("decoder_start_token_id", 2, least=0)
    return bart_model(
        fields,
        bart_head(fields, architecture, start, default_end_token_id=1),
        bart_stack(fields, "encoder", embedding, pre_norm=True, attentions=attentions),
        bart_stack(fields, "decoder", embedding, pre_norm=True, bias=bias),
    )


def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
    stack = rf"{PREFIX}(encoder|decoder)\."
    attention, ours = rf"{PREFIX}encoder\.layers\.(\d+)\.self_attn\.", r"encoder.layers.\1.attention."
    return (
        Rename(stack + r"embed_positions\.weight", r"\1.embedding.positions.weight"),
        Rename(stack + r"layernorm_embedding\.(weight|bias)", r"\1.final_norm.\2"),
        Rename(attention + r"self\.(query|key|value)\.(weight|bias)", ours + r"\2.\3"),
        Rename(attention + r"output\.(weight|bias)", ours + r"output.\2"),
        *pre_norm_rules(),
    )


FAMILY = Family(
    name="bigbird_pegasus",
    model_types=("bigbird_pegasus",),
    architectures={
        "BigBirdPegasusForConditionalGeneration": ("generate",),
        "BigBirdPegasusModel": ("generate",),
        "BigBirdPegasusForSequenceClassification": ("classify",),
        "BigBirdPegasusForQuestionAnswering": ("question_answer",),
    },
    config=config,
    rules=rules,
    zero_if_absent=frozenset({"head.bias"}),
)
