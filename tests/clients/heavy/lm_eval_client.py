"""Run lm-eval's `local-completions` with its remote tokenizer.

The only argument is the folder with the task file and its data. Prints the accuracy and the score of each choice as
JSON.
"""

from __future__ import annotations

import json
import os
import sys

KEY = os.environ["TRIPTYCH_API_KEY"]
os.environ["OPENAI_API_KEY"] = KEY
os.environ["HF_HOME"] = os.path.join(sys.argv[1], "cache")

import lm_eval  # noqa: E402

results = lm_eval.simple_evaluate(
    model="local-completions",
    model_args={
        "model": "story",
        "base_url": f"{os.environ['TRIPTYCH_URL']}/models/story/v1/completions",
        "tokenizer_backend": "remote",
        "tokenized_requests": True,
        "num_concurrent": 1,
        "auth_token": KEY,
    },
    tasks=["stories"],
    task_manager=lm_eval.tasks.TaskManager(include_path=sys.argv[1], include_defaults=False),
    bootstrap_iters=0,
)
samples = sorted(results["samples"]["stories"], key=lambda sample: sample["doc_id"])
scores = [[(float(total), str(greedy) == "True") for total, greedy in sample["filtered_resps"]] for sample in samples]
print(json.dumps({"accuracy": results["results"]["stories"]["acc,none"], "scores": scores}))
