"""Heads of T5 and its successors besides the language model head.

Text classification uses the decoder's hidden state at the last token, question answering its hidden states at all
tokens, and token classification the hidden states of the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.config import ClassificationHead, LanguageModelHead, ModelConfig, SpanHead, TokenClassificationHead
from models.families.shared.family import CheckpointTask, Family
from models.families.shared.fields import Fields
from models.families.shared.rename_rules import renamed
from weights.rules import Rename, Rule


def with_t5_heads(stem: str, family: Family) -> Family:
    """Add text classification, token classification and question answering heads to a T5 family.

    For text classification and question answering the text is the input of both the encoder and the decoder, as in
    BART. Classification uses the decoder's hidden state at the last token; question answering computes start and end
    logits at every token. Token classification uses the encoder alone.

    stem: start of the class names in transformers, for example `MT5` for `MT5ForSequenceClassification`.
    """
    texts, tokens, spans = (
        f"{stem}For{task}" for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    )
    heads: dict[str, tuple[CheckpointTask, ...]] = {
        texts: ("classify",),
        tokens: ("token_classify",),
        spans: ("question_answer",),
    }
    language_model, encoder = f"{stem}ForConditionalGeneration", f"{stem}EncoderModel"

    def config(hf: Mapping[str, Any], architecture: str) -> ModelConfig:
        fields = Fields({name: hf[name] for name in ("id2label", "num_labels", "decoder_start_token_id") if name in hf})
        if architecture in (texts, spans):
            start = fields.integer("decoder_start_token_id", 0, least=0)
            if architecture == spans:
                return replace(family.config(hf, language_model), head=SpanHead(start_token_id=start))
            head = ClassificationHead(fields.labels(), dense="tanh", pool="last", start_token_id=start)
            return replace(family.config(hf, language_model), head=head)
        if architecture == tokens:
            return replace(family.config(hf, encoder), head=TokenClassificationHead(fields.labels()))
        return family.config(hf, architecture)

    def rules(model: ModelConfig, hf: Mapping[str, Any], architecture: str) -> Sequence[Rule]:
        if architecture not in heads:
            return family.rules(model, hf, architecture)
        stacks = family.rules(replace(model, head=LanguageModelHead(tied=True)), hf, language_model)
        return (
            Rename(r"classification_head\.dense\.(weight|bias)", r"head.dense.\1"),
            Rename(r"(?:classification_head\.out_proj|classifier|qa_outputs)\.(weight|bias)", r"head.output.\1"),
            *renamed(stacks, "", r"(?:transformer\.)?"),
        )

    return replace(family, architectures={**family.architectures, **heads}, config=config, rules=rules)
