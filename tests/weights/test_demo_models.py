"""The demo models in the repository are complete and small, and reach their target metrics on held-out data."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer

from weights.demo.train import cards, paraphrase, reviews, stories, translation
from weights.demo.train.training import HOME

COMMON = {"config.json", "model.safetensors", "tokenizer_config.json", "README.md", "metrics.json"}
FILES = {
    "story": {"tokenizer.json", "generation_config.json", "chat_template.jinja"},
    "translator-en-fr": {"source.spm", "target.spm", "vocab.json", "generation_config.json"},
    "sentiment": {"tokenizer.json", "vocab.txt"},
    "sentence-encoder": {"tokenizer.json", "vocab.txt", "modules.json", "1_Pooling/config.json"},
}


def load(name: str, file: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((HOME / name / file).read_text("utf-8"))
    return content


@pytest.mark.parametrize("name", FILES)
def test_a_model_is_complete_and_at_most_five_megabytes(name: str) -> None:
    for file in COMMON | FILES[name]:
        assert (HOME / name / file).is_file(), file
    size = sum(path.stat().st_size for path in Path(HOME / name).rglob("*") if path.is_file())
    assert size <= 5_000_000


@pytest.mark.parametrize("name", FILES)
def test_the_model_card_has_the_recorded_metrics(name: str) -> None:
    figures = load(name, "metrics.json")["held_out"]
    assert isinstance(figures, dict)
    card = (HOME / name / "README.md").read_text("utf-8")
    for key, label in cards.ABOUT[name].figures.items():
        assert f"| {label} | {cards.show(key, figures[key])} |" in card


@pytest.mark.parametrize(
    ("name", "key", "least"),
    [
        ("translator-en-fr", "exact_match_greedy", 0.98),
        ("translator-en-fr", "exact_match_beam4", 0.98),
        ("sentiment", "accuracy", 0.98),
        ("sentence-encoder", "paraphrase_above_hard_negative", 0.97),
        ("sentence-encoder", "paraphrase_above_random", 0.97),
    ],
)
def test_the_recorded_metrics_reach_their_targets(name: str, key: str, least: float) -> None:
    figures = load(name, "metrics.json")["held_out"]
    assert isinstance(figures, dict)
    assert figures[key] >= least


def test_the_translator_has_the_settings_of_opus_mt() -> None:
    config, generation = load("translator-en-fr", "config.json"), load("translator-en-fr", "generation_config.json")
    vocabulary = load("translator-en-fr", "vocab.json")
    padding = len(vocabulary) - 1
    assert (vocabulary["</s>"], vocabulary["<unk>"], vocabulary["<pad>"]) == (0, 1, padding)
    assert config["decoder_start_token_id"] == config["pad_token_id"] == padding == generation["pad_token_id"]
    assert generation["bad_words_ids"] == [[padding]]
    assert generation["num_beams"] == 4
    assert generation["forced_eos_token_id"] == 0
    assert config["encoder_layers"] != config["decoder_layers"]


def test_the_translator_translates_a_known_sentence() -> None:
    sources = ["I am a student", "I am a student.", "i am a student"]
    assert translation.translate(sources, 4) == ["Je suis un étudiant", "Je suis un étudiant.", "Je suis un étudiant"]


def test_the_translator_on_held_out_sentences() -> None:
    pairs = translation.held_out_pairs(100, seed=77)
    answers = translation.translate([source for source, _ in pairs], 1)
    assert sum(answer == target for answer, (_, target) in zip(answers, pairs, strict=True)) >= 95


def test_the_storyteller_has_lower_perplexity_than_token_frequencies() -> None:
    figures = stories.perplexities(24)
    perplexity, unigram = figures["perplexity"], figures["unigram_perplexity"]
    assert isinstance(perplexity, float) and isinstance(unigram, float)
    assert perplexity < unigram / 20


def test_the_storyteller_continues_the_tale_of_a_chat() -> None:
    assert (HOME / "story" / "chat_template.jinja").read_text("utf-8") == stories.CHAT_TEMPLATE
    chat = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "Once upon a time"},
        {"role": "assistant", "content": ", there was a fox."},
        {"role": "user", "content": "One day"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(HOME / "story")
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == "<s>Once upon a time, there was a fox. One day"


@pytest.mark.parametrize("prompt", ["Once upon a time", "The old fox"])
def test_the_storyteller_uses_only_words_of_its_grammar(prompt: str) -> None:
    known: set[str] = set()
    for text in islice(stories.training_stories(Random(3)), 4000):
        known.update(re.findall(r"\w+", text))
    story = stories.continue_story(prompt, 40)
    assert story.startswith(prompt)
    continued = re.findall(r"\w+", story)[:-1]  # The last word may be incomplete.
    assert len(continued) > 20
    assert set(continued) <= known


def test_the_classifier_on_plain_and_held_out_reviews() -> None:
    assert reviews.classify(list(reviews.EXAMPLES)) == list(reviews.EXAMPLES.values())
    held = reviews.held_out_reviews(300, seed=77)
    got = reviews.classify([text for text, _ in held])
    right = sum(reviews.LABELS[label] == answer for (_, label), answer in zip(held, got, strict=True))
    assert right >= 0.97 * len(held)


def test_the_encoder_ranks_paraphrases_above_near_misses() -> None:
    triples = paraphrase.held_out_triples(300, seed=77)
    anchors, same, other = (paraphrase.embed([triple[index] for triple in triples]) for index in range(3))
    closer = (anchors * same).sum(-1) > (anchors * other).sum(-1)
    assert float(closer.float().mean()) >= 0.95
    assert float((anchors.norm(dim=-1) - 1).abs().max()) < 1e-5
