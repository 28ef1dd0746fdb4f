"""Print the entities that the published code of GLiNER finds with the checkpoints of `gliner_checkpoints`, as JSON.

Runs in a separate environment, because the requirements of gliner exclude ours:

    python -m tests.e2e.gliner_checkpoints /tmp/gliner
    python -m venv gliner && gliner/bin/pip install gliner==0.2.29
    gliner/bin/python tests/e2e/gliner_oracle.py /tmp/gliner > tests/e2e/gliner_oracle.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gliner import GLiNER


def main() -> None:
    directory = Path(sys.argv[1])
    inputs = json.loads((directory / "inputs.json").read_text())
    texts, labels, found = inputs["texts"], inputs["labels"], {}
    for kind in ("spans", "words"):
        model = GLiNER.from_pretrained(str(directory / kind), strict=True, local_files_only=True)
        for threshold in (0.5, 0.2):
            found[f"{kind} {threshold}"] = model.inference(texts, labels, threshold=threshold)
    json.dump({"texts": texts, "labels": labels, "entities": found}, sys.stdout, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
