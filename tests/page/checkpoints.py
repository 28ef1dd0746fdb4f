"""Write small random checkpoints for the tasks that no demo model serves."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.conftest import REPOSITORY
from tests.e2e.encoder_checkpoints import write_encoder
from tests.parity import speech

DEMO = REPOSITORY / "weights" / "demo"
ENTITIES = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
ENTAILMENT = {0: "contradiction", 1: "neutral", 2: "entailment"}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_models(root: Path) -> list[str]:
    """Write one checkpoint per task. Returns the arguments for `serve`: the demo models, then these checkpoints."""
    demo = [f"{name}={DEMO / name}" for name in ("sentence-encoder", "sentiment", "story", "translator-en-fr")]
    write_encoder(root / "masked", "bert", "MaskedLM")
    write_encoder(root / "masked-roberta", "roberta", "MaskedLM")
    write_encoder(root / "ranker", "bert", "SequenceClassification", num_labels=1, std=0.3)
    write_encoder(root / "answerer", "bert", "QuestionAnswering", std=0.3)
    write_encoder(root / "tagger", "distilbert", "TokenClassification", std=0.3, **_named(ENTITIES))
    write_encoder(root / "judge", "bert", "SequenceClassification", std=0.3, **_named(ENTAILMENT))
    speech.write(root / "speech", "whisper")
    speech.write_tokenizer(root / "speech")
    shutil.copytree(DEMO / "story", root / "talker")
    (root / "talker" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return [*demo, *(f"{directory.name}={directory}" for directory in sorted(root.iterdir()))]


def _named(labels: dict[int, str]) -> dict[str, object]:
    return {"id2label": labels, "label2id": {label: at for at, label in labels.items()}}
