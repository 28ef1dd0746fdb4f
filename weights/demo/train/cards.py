"""Write the model cards, README.md and metrics.json of each demo model, from its measured figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from weights.demo.train.training import HOME

Figures = dict[str, float | int | str]


@dataclass(frozen=True)
class About:
    """Texts of one model card. `figures` has the label of each figure; the figures themselves are measured."""

    title: str
    what: str
    data: str
    limits: str
    tags: str
    figures: dict[str, str]


ABOUT = {
    "translator-en-fr": About(
        title="English to French translator",
        what=(
            "A Marian-type encoder-decoder that translates simple English sentences to French, in the file layout"
            " of the opus-mt models: two SentencePiece models, a joint vocabulary and beam search in the "
            "generation settings."
        ),
        data=(
            "Sentence pairs from a synchronous grammar (`grammar/bilingual.py`) with agreement, elision, "
            "contraction, present, compound past, imperfect, future, near future and"
            " conditional, modal verbs, negation, questions, comparison, possession, reported speech and "
            "subordinate clauses. One English sentence has one French one: *you* is always *vous* to one man, *I*"
            " and *they* alone are masculine, the simple past is the passé composé (the imperfect for *be*), and "
            "questions use *est-ce que*. A tenth to a fifth of the pairs lack the final punctuation or the first "
            "capital. The short phrasebook (greetings and the like) is always in training and never measured."
        ),
        limits=(
            "It knows the words and the constructions of its grammar and nothing else: another word is spelled "
            "out from pieces or replaced by one it knows, and a long or unusual sentence comes out wrong. The "
            "sentences of the grammar are correct but often silly. It is no general translator."
        ),
        tags="language: [en, fr]\npipeline_tag: translation",
        figures={
            "sentences": "Held-out sentences",
            "exact_match_greedy": "Exact match, greedy",
            "exact_match_beam4": "Exact match, beam search with 4 beams",
            "exact_match_greedy_lower_case_unpunctuated": "Exact match, greedy, typed in lower case without "
            "punctuation",
        },
    ),
    "story": About(
        title="Storyteller",
        what=(
            "A LLaMA-type decoder with grouped-query attention that continues the beginning of a short tale. In a chat,"
            " it continues the tale that user and assistant have told so far."
        ),
        data=(
            "Short tales from a story grammar (`grammar/story.py`, `grammar/plots.py`): eight plots with "
            "characters, names and pronouns that stay the same, places, things, dialogue and an ending, each "
            "followed by the end-of-text token."
        ),
        limits=(
            "It tells only the tales of its grammar: a prompt with other words is continued as if it were one of "
            "them. Its sentences are grammatical, but it loses track of who is who: a character, above all the "
            "second, may turn up again under another name or as another animal. It answers no questions, and its chat "
            "template leaves out system messages, because it follows no instructions."
        ),
        tags="language: [en]\npipeline_tag: text-generation",
        figures={
            "stories": "Held-out stories",
            "tokens": "Tokens in them",
            "perplexity": "Perplexity per token",
            "unigram_perplexity": "Perplexity of guessing by token frequency alone",
        },
    ),
    "sentiment": About(
        title="Sentiment classifier",
        what="A BERT-type classifier that tells NEGATIVE from POSITIVE reviews.",
        data=(
            "Reviews from a grammar (`grammar/review.py`) about films, books, restaurants, hotels, phones, music,"
            " shops, courses and toys, with negation (*not bad at all*), intensifiers, and contrasts in which the"
            " overall verdict decides."
        ),
        limits=(
            "It has learned the few hundred opinion words of its grammar; it guesses on any others, on irony, and"
            " on comparisons. There is no neutral label."
        ),
        tags="language: [en]\npipeline_tag: text-classification",
        figures={
            "reviews": "Held-out reviews",
            "accuracy": "Accuracy",
            "accuracy_with_contrast": "Accuracy on those with a contrast",
            "accuracy_with_negation": "Accuracy on those with a negation",
        },
    ),
    "sentence-encoder": About(
        title="Sentence encoder",
        what=(
            "A BERT-type encoder in the sentence-transformers layout: mean pooling, then unit length, so that the"
            " dot product of two vectors is the cosine of two meanings."
        ),
        data=(
            "Paraphrases from a grammar of events (`grammar/events.py`): synonyms, active and passive, moved "
            "adverbials, clefts, *there is*, owning and belonging, question forms; with near misses that change "
            "one point (subject, object, number, negation, place, time, tense, verb, or who does it to whom) as "
            "hard negatives of contrastive training."
        ),
        limits=(
            "It compares sentences of its grammar's words and shapes. Words it has not seen are split into pieces"
            " that mean little to it, so the cosine of two arbitrary texts says little."
        ),
        tags="language: [en]\npipeline_tag: sentence-similarity\nlibrary_name: sentence-transformers",
        figures={
            "triples": "Held-out triples of sentence, paraphrase and near miss",
            "paraphrase_above_hard_negative": "Paraphrase closer than the near miss",
            "paraphrase_above_random": "Paraphrase closer than a random other sentence",
            "mean_cosine_paraphrase": "Mean cosine with the paraphrase",
            "mean_cosine_hard_negative": "Mean cosine with the near miss",
            "mean_cosine_random": "Mean cosine with a random sentence",
        },
    ),
}


def show(key: str, value: float | int | str) -> str:
    """Format the figure `value` for a card. A share becomes a percentage; the name `key` tells whether it is one."""
    if isinstance(value, float):
        share = key.startswith(("exact", "accuracy", "paraphrase"))
        return f"{value:.2%}" if share else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else value


def _parameters(folder: Path) -> int:
    total = 0
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - the file object is not iterable
            size = 1
            for dimension in tensors.get_slice(name).get_shape():
                size *= dimension
            total += size
    return total


def _architecture(config: dict[str, object]) -> str:
    if config["model_type"] == "marian":
        return (
            f"Marian, {config['encoder_layers']} encoder and {config['decoder_layers']} decoder layers, width "
            f"{config['d_model']}, "
            f"feed-forward {config['encoder_ffn_dim']}, {config['encoder_attention_heads']} heads"
        )
    heads = f"{config['num_attention_heads']} heads"
    if "num_key_value_heads" in config:
        heads += f" over {config['num_key_value_heads']} key-value heads"
    name = {"llama": "LLaMA", "bert": "BERT"}[str(config["model_type"])]
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    return f"{name}, {layers} layers, width {width}, feed-forward {config['intermediate_size']}, {heads}"


def write(name: str, figures: Figures, training: Figures) -> None:
    """Write metrics.json and README.md of the demo model `name`.

    figures: measured on held-out texts. training: steps, seconds and machine of the training.
    """
    folder, about = HOME / name, ABOUT[name]
    command = f"python -m weights.demo.train --evaluate {name}"
    metrics = {"model": name, "command": command, "held_out": figures, "training": training}
    (folder / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", "utf-8")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    megabytes = (folder / "model.safetensors").stat().st_size / 1e6
    rows = [f"| {label} | {show(key, figures[key])} |" for key, label in about.figures.items()]
    samples = [f"- `{key}` → {value}" for key, value in figures.items() if key not in about.figures]
    lines = [
        f"---\n{about.tags}\n---\n\n# {about.title} (`{name}`)\n",
        f"{about.what}\n",
        "## Architecture\n",
        f"{_architecture(config)}; vocabulary {config['vocab_size']}. {_parameters(folder):,} parameters in float32, "
        f"{megabytes:.1f} MB.\n",
        "## Training data\n",
        f"{about.data} All text is generated by the recipe, `weights/demo/train`; nothing was downloaded.\n",
        f"Trained with `python -m weights.demo.train {name}`: {training['steps']:,} steps in "
        f"{training['seconds'] / 60:.1f} "  # type: ignore[operator]
        f"minutes ({training['machine']}).\n",
        "## Held-out figures\n",
        "Held-out texts are chosen by a hash of their words (or, for events, of their meaning) and are never "
        "trained on. "
        f"They come from the same grammar. Printed by `{command}`:\n",
        "| Figure | Value |\n| --- | --- |",
        "\n".join(rows) + "\n",
    ]
    if samples:
        lines += ["## Examples\n", "\n".join(samples) + "\n"]
    lines += ["## Limits\n", about.limits]
    (folder / "README.md").write_text("\n".join(lines) + "\n", "utf-8")
