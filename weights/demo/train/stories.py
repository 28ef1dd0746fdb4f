"""Train and measure the storyteller, a small LLaMA-type decoder with grouped-query attention.

Its tokenizer is byte-level BPE.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from weights.demo.train.grammar.story import story
from weights.demo.train.split import held_out
from weights.demo.train.training import HOME, Batch, by_length, fit, pad, save_model, seed_everything

NAME = "story"
STEPS = 3300
_CONTEXT = 512
_BATCH = 16
_CHUNK = 64
_VOCABULARY = 1280
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
CHAT_TEMPLATE = """\
{#- The storyteller continues what user and assistant have told so far. It has learned no instructions. -#}
{{- bos_token }}
{%- for message in messages if message.role in ('user', 'assistant') %}
    {{- ' ' if not loop.first and message.content and message.content[0] not in ' ,.;:!?' }}
    {{- message.content }}
{%- endfor %}"""
PROMPTS = ("Once upon a time", "The old fox", "One day, a brave girl", "In a small village")


def training_stories(rng: random.Random) -> Iterator[str]:
    """Infinite stream of stories for training, without held-out stories."""
    while True:
        text = story(rng)
        if not held_out(text):
            yield text


def held_out_stories(count: int, seed: int = 20_000) -> list[str]:
    """`count` distinct held-out stories."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        text = story(rng)
        if held_out(text):
            found[text] = None
    return list(found)


def _train_tokenizer(folder: Path, seed: int) -> PreTrainedTokenizerFast:
    stream = training_stories(random.Random(seed))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((next(stream) for _ in range(8000)), trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
            ),
        ]
    )
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)
    return wrapped


def _build(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        initializer_range=0.04,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)  # type: ignore[no-untyped-call]
    return model


def _batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Batch]:
    rng = random.Random(seed)
    stream = training_stories(rng)
    while True:
        encoded = tokenizer([next(stream) for _ in range(_BATCH * _CHUNK)])["input_ids"]
        for rows in by_length([[*row, tokenizer.eos_token_id] for row in encoded], len, _BATCH, rng):
            yield {"input_ids": pad(rows, tokenizer.pad_token_id)}


def _loss(model: LlamaForCausalLM, padding: int, batch: Batch) -> torch.Tensor:
    ids = batch["input_ids"]
    # Padding is on the right, so that causal attention never reads it for a real token.
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=padding)


def train(seed: int = 2, steps: int = STEPS) -> None:
    """Train the storyteller from scratch and write it, with its tokenizer, to its directory in `weights/demo`."""
    seed_everything(seed)
    folder = HOME / NAME
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer(folder, seed)
    model = _build(tokenizer)
    fit(
        model,
        _batches(tokenizer, seed),
        partial(_loss, model, tokenizer.pad_token_id),
        steps,
        name=NAME,
        learning_rate=2e-3,
        warmup=300,
        save=lambda: save_model(model, folder),
        save_every=500,
    )


def continue_story(prompt: str, tokens: int = 120, folder: Path = HOME / NAME) -> str:
    """The text `prompt` with its greedy continuation of at most `tokens` tokens.

    folder: directory of the model; by default the model in this package.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        output = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=tokens)
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


def _unigram_perplexity(tokenizer: PreTrainedTokenizerBase, rows: list[list[int]]) -> float:
    """Perplexity per token of a unigram model, the token frequencies in training stories, as a baseline.

    rows: token ids of held-out stories.
    """
    stream = training_stories(random.Random(7))
    counts = Counter(range(len(tokenizer)))  # start at one, so that no probability is zero
    for ids in tokenizer([next(stream) for _ in range(4000)])["input_ids"]:
        counts.update([*ids[1:], tokenizer.eos_token_id])
    total = sum(counts.values())
    losses = [-math.log(counts[token] / total) for row in rows for token in row[1:]]
    return math.exp(sum(losses) / len(losses))


def perplexities(count: int, folder: Path = HOME / NAME) -> dict[str, float | int | str]:
    """Perplexity per token on `count` held-out stories, of the model and of a unigram model for comparison."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    rows = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(held_out_stories(count))["input_ids"]]
    rows.sort(key=len)
    loss = tokens = 0.0
    with torch.inference_mode():
        for start in range(0, count, _BATCH):
            ids = pad(rows[start : start + _BATCH], tokenizer.pad_token_id)
            real = int((ids[:, 1:] != tokenizer.pad_token_id).sum())
            loss += float(_loss(model, tokenizer.pad_token_id, {"input_ids": ids})) * real
            tokens += real
    return {
        "stories": count,
        "tokens": int(tokens),
        "perplexity": math.exp(loss / tokens),
        "unigram_perplexity": _unigram_perplexity(tokenizer, rows),
    }


def evaluate(count: int = 1000) -> dict[str, float | int | str]:
    """Perplexities on `count` held-out stories, and greedy continuations of a few prompts."""
    return perplexities(count) | {f"greedy: {prompt}": continue_story(prompt) for prompt in PROMPTS}
