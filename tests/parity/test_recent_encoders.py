"""Encoders of 2019 to 2026 and their heads equal transformers, with texts of several lengths in one ragged batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from models.checkpoint.loader import LoadedModel, load_model
from models.steps.batch import EncoderBatch
from tests.parity.recent_encoder_cases import BODIES

LENGTHS = (5, 1, 17, 9, 3)
VOCAB = 101
HEADS = {
    "": ("embed",),
    "ForMaskedLM": ("embed", "fill_mask"),
    "ForSequenceClassification": ("classify",),
    "ForTokenClassification": ("token_classify",),
    "ForQuestionAnswering": ("question_answer",),
}
"""The tasks of each head, by the end of the class name in transformers."""
CASES = [
    (body, head)
    for body, (name, _) in BODIES.items()
    for head in HEADS
    if hasattr(transformers, f"{name}{head or 'Model'}")
]


def reference(name: str, head: str, settings: dict[str, object]) -> nn.Module:
    """A random model of transformers. No norm weight is one and no bias is zero, because these values hide errors."""
    torch.manual_seed(1)
    settings = {**settings, "attn_implementation": "eager", "initializer_range": 0.2}
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}{head or 'Model'}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("layer_scalar"):
                buffer.fill_(0.7)
    return model


def batch_of(model: nn.Module, device: torch.device) -> EncoderBatch:
    generator = torch.Generator().manual_seed(3)
    total, types = sum(LENGTHS), getattr(model.config, "type_vocab_size", 0)
    return EncoderBatch(
        token_ids=torch.randint(5, VOCAB, (total,), generator=generator).to(device),
        lengths=LENGTHS,
        token_type_ids=torch.randint(types, (total,), generator=generator).to(device) if types else None,
    )


def one_by_one(model: nn.Module, batch: EncoderBatch) -> list:
    """Results of the transformers model for each text, computed one text at a time."""
    outputs = []
    for start, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        inputs = {"input_ids": batch.token_ids[None, start:end].cpu()}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids[None, start:end].cpu()
        with torch.no_grad():
            outputs.append(model(**inputs))
    return outputs


def expected(outputs: list, head: str) -> Tensor:
    match head:
        case "":
            return torch.cat([output.last_hidden_state[0] for output in outputs])
        case "ForQuestionAnswering":
            return torch.cat([torch.stack([output.start_logits[0], output.end_logits[0]], dim=1) for output in outputs])
        case "ForSequenceClassification":
            return torch.cat([output.logits for output in outputs])
        case _:
            return torch.cat([output.logits[0] for output in outputs])


def found(ours: LoadedModel, batch: EncoderBatch, head: str) -> Tensor:
    hidden = ours.transformer.encode(batch)
    match head:
        case "":
            return hidden
        case "ForMaskedLM":
            return ours.transformer.logits(hidden)
        case "ForSequenceClassification":
            return ours.transformer.classify(hidden, batch)
        case _:
            return ours.transformer.classify_tokens(hidden, batch)


@pytest.mark.parametrize(("body", "head"), CASES, ids=[f"{body}-{head or 'Model'}" for body, head in CASES])
@torch.inference_mode()
def test_head(body: str, head: str, tmp_path: Path, device: torch.device):
    name, settings = BODIES[body]
    model = reference(name, head, {**settings, **({"num_labels": 3} if "Classification" in head else {})})
    model.save_pretrained(tmp_path)
    ours, batch = load_model(tmp_path, torch.float32, device), batch_of(model, device)
    together = found(ours, batch, head)
    torch.testing.assert_close(together.cpu(), expected(one_by_one(model, batch), head), atol=1e-4, rtol=0)
    assert ours.tasks == HEADS[head]
    if head:
        return
    for index, length in enumerate(LENGTHS):
        where, types = slice(batch.offsets[index], batch.offsets[index] + length), batch.token_type_ids
        own = EncoderBatch(batch.token_ids[where], (length,), None if types is None else types[where])
        torch.testing.assert_close(ours.transformer.encode(own), together[where], atol=1e-5, rtol=0)
