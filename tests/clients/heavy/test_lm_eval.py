"""lm-eval's `local-completions` with its remote tokenizer: its scores equal those of the same model in transformers.

The task file and its data are written by the test, because no data set can be downloaded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

from tests.clients.conftest import ClientServer
from tests.clients.heavy.scripts import EXAMPLES, HERE, needs_environment, run_script
from tests.clients.models import DEMO
from tests.documented_commands import shell_blocks

DOCUMENTS = [
    {"prompt": "Once upon a time there was", "choices": [" a king", " a red", " the fox slept"], "answer": 0},
    {"prompt": "The old fox", "choices": [" slept", " bought a boat", " was"], "answer": 2},
    {"prompt": "The dog chased", "choices": [" the cat", " time"], "answer": 0},
    {"prompt": "A small cat", "choices": [" saw the queen", " old", " and the dog ran home"], "answer": 1},
]
TASK = """\
task: stories
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def expected_logprobs() -> list[list[tuple[float, bool]]]:
    """For each document and choice: sum of log-probabilities in transformers, and whether greedy search finds it."""
    directory = DEMO / "story"
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for document in DOCUMENTS:
        row = []
        for choice in document["choices"]:
            context = tokenizer(document["prompt"], add_special_tokens=False).input_ids
            whole = tokenizer(document["prompt"] + choice, add_special_tokens=False).input_ids
            assert whole[: len(context)] == context
            with torch.inference_mode():
                logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            tail = [logprobs[place - 1] for place in range(len(context), len(whole))]
            tokens = whole[len(context) :]
            total = sum(float(row_scores[token]) for row_scores, token in zip(tail, tokens, strict=True))
            row.append(
                (total, all(int(row_scores.argmax()) == token for row_scores, token in zip(tail, tokens, strict=True)))
            )
        found.append(row)
    return found


def write_task(directory: Path) -> None:
    """Write the task file `stories` and its data."""
    data = directory / "stories.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    (directory / "stories.yaml").write_text(TASK.format(data=data))


@needs_environment
def test_scores_equal_transformers(server: ClientServer, tmp_path: Path) -> None:
    write_task(tmp_path)
    printed = run_script(HERE / "lm_eval_client.py", server, tmp_path, str(tmp_path))
    results = json.loads(printed.splitlines()[-1])
    expected = expected_logprobs()
    for row, theirs in zip(results["scores"], expected, strict=True):
        for (logprob, is_greedy), (their_logprob, their_greedy) in zip(row, theirs, strict=True):
            assert logprob == pytest.approx(their_logprob, abs=1e-3)
            assert is_greedy == their_greedy
    best = [max(range(len(row)), key=lambda index: row[index][0]) for row in expected]
    right = sum(place == document["answer"] for place, document in zip(best, DOCUMENTS, strict=True))
    assert results["accuracy"] == right / len(best)


@needs_environment
def test_the_example_runs(server: ClientServer, tmp_path: Path) -> None:
    write_task(tmp_path)
    printed = run_script(EXAMPLES / "lm_eval.sh", server, tmp_path, "stories", "--include_path", str(tmp_path))
    assert re.search(r"\|stories\b.*\|acc\b", printed), printed


@needs_environment
def test_the_command_of_the_page(server: ClientServer, tmp_path: Path) -> None:
    """The lm-eval command in docs/requests.md works with the task of this file."""
    write_task(tmp_path)
    (block,) = [block for block in shell_blocks() if block.reason == "tests/clients/heavy/test_lm_eval.py"]
    (command,) = block.commands
    command = command.replace("YOUR_TASK", f"stories --include_path {tmp_path}")
    command = command.replace("http://127.0.0.1:8000", server.url)
    script = tmp_path / "page.sh"
    key = server.key or "not-needed"
    script.write_text(f"export OPENAI_API_KEY={key}\n{command},auth_token={key}\n")
    assert re.search(r"\|stories\b.*\|acc\b", run_script(script, server, tmp_path))
