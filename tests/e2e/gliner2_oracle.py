"""Print what the published code of GLiNER2 finds with the checkpoints of `gliner2_checkpoints`, as JSON.

Runs in a separate environment:

    python -m tests.e2e.gliner2_checkpoints /tmp/gliner2
    python -m venv gliner2 && gliner2/bin/pip install gliner2==2.1.0 transformers==5.23.0
    gliner2/bin/python tests/e2e/gliner2_oracle.py /tmp/gliner2 > tests/e2e/gliner2_oracle.json
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from gliner2 import GLiNER2


def main() -> None:
    directory = Path(sys.argv[1])
    inputs = json.loads((directory / "inputs.json").read_text())
    texts, labels, task = inputs["texts"], inputs["labels"], inputs["task"]
    entities, classes = {}, {}
    with contextlib.redirect_stdout(sys.stderr):
        for kind in ("projection", "transformer"):
            model = GLiNER2.from_pretrained(str(directory / kind))
            more = {"include_confidence": True, "include_spans": True}
            for threshold in (0.5, 0.2):
                found = [model.extract_entities(text, labels, threshold=threshold, **more) for text in texts]
                entities[f"{kind} {threshold}"] = [answer["entities"] for answer in found]
            for many in (False, True):
                schema = {task: {"labels": inputs["classes"], "multi_label": many, "cls_threshold": 0.0}}
                found = [model.classify_text(text, schema, include_confidence=True) for text in texts]
                classes[f"{kind} {many}"] = [answer[task] for answer in found]
    json.dump({**inputs, "entities": entities, "scores": classes}, sys.stdout, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
