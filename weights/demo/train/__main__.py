"""Train the demo models, or measure the shipped ones: `python -m weights.demo.train [--evaluate] [name ...]`."""

from __future__ import annotations

import argparse
import json
import time
from types import ModuleType

import torch

from weights.demo.train import cards, paraphrase, reviews, stories, translation
from weights.demo.train.training import HOME

MODELS: dict[str, ModuleType] = {module.NAME: module for module in (translation, stories, reviews, paraphrase)}


def measure(name: str) -> cards.Figures:
    """Measure the shipped weights on held-out texts, and print the figures."""
    figures: cards.Figures = MODELS[name].evaluate()
    print(f"{name}, held out:")
    for key, value in figures.items():
        print(f"  {key}: {cards.show(key, value)}")
    return figures


def train(name: str, machine: str) -> None:
    """Train one demo model from scratch, measure it and write its model card.

    machine: remark on the machine, for the card.
    """
    start = time.perf_counter()
    MODELS[name].train()
    seconds = time.perf_counter() - start
    print(f"{name}: trained in {seconds / 60:.1f} minutes")
    training: cards.Figures = {"steps": MODELS[name].STEPS, "seconds": round(seconds), "machine": machine}
    cards.write(name, measure(name), training)


def main() -> None:
    """Parse the command line, then train or measure the models that it names."""
    parser = argparse.ArgumentParser(prog="python -m weights.demo.train", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which models: {', '.join(MODELS)} (default all)")
    parser.add_argument("--evaluate", action="store_true", help="measure the shipped weights and train nothing")
    parser.add_argument("--cards", action="store_true", help="with --evaluate: write the figures to the model cards")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--machine", default="", help="a remark on the machine for the card")
    arguments = parser.parse_args()
    short = {"translator": "translator-en-fr", "encoder": "sentence-encoder"}
    names = [short.get(name, name) for name in arguments.names] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no such model: {', '.join(unknown)}")
    torch.set_num_threads(arguments.threads)
    machine = arguments.machine or f"{arguments.threads} CPU threads"
    for name in names:
        if not arguments.evaluate:
            train(name, machine)
            continue
        figures = measure(name)
        if arguments.cards:
            known = json.loads((HOME / name / "metrics.json").read_text("utf-8"))
            cards.write(name, figures, known["training"])


if __name__ == "__main__":
    main()
