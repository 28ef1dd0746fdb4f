"""A checkpoint of every model type passes `triptych check`, and a server answers requests for each of its tasks.

For families that are refused, `triptych check` prints one line with the reason.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.families import FAMILIES
from models.families.shared.refused import REFUSED
from models.families.shared.unserved import NEAREST_OF_REFUSED
from tests import warm_processes
from tests.audio.wavs import wav
from tests.e2e.conftest import COMMAND, REPOSITORY, RunningServer, serving
from tests.families import checkpoints
from tests.parity.speech import recording
from tests.waiting import HANG_SECONDS

pytestmark = pytest.mark.rare_family
SMALL = ("--device", "cpu", "--dtype", "float32", "--threads", "1")
LOADED_WITHOUT_THE_COMPILER = """
import sys
from pathlib import Path
import torch
from models.checkpoint.loader import load_model
sys.modules["torch._dynamo"] = None
for directory in sys.argv[1:]:
    load_model(Path(directory), torch.float32, torch.device("cpu"), lambda done, total: None)
"""
NAMED_TASKS = {
    "EmbeddingGemma": ["embed"],
    "Arctic-Embed-M-2": ["embed"],
    "Jina-Embeddings-3": ["embed"],
    "Nomic-Embed-2": ["embed"],
    "causal-off": ["embed"],
    "MADLAD": ["generate", "translate"],
    "BGE-M3": ["embed", "late_interaction", "embed_sparse"],
    "ColBERT": ["late_interaction"],
    "SPLADE": ["embed_sparse"],
    "Qwen3-Reranker": ["rerank"],
    "GLiNER": ["token_classify"],
    "GLiNER2": ["token_classify"],
}
"""Tasks of the checkpoints whose published name is no model type."""
FLAGS = {"Qwen3-Reranker": ("--rerank-prompts", "{name}=qwen3-reranker")}
NAMES = (*sorted(FAMILIES), *NAMED_TASKS)
TEXT = "the old sailor"
LANGUAGES = {"source_lang": "en", "target_lang": "fr"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": ("/generate", {"prompt": TEXT, "max_new_tokens": 3}),
    "translate": ("/translate", {"inputs": TEXT, "max_new_tokens": 3, **LANGUAGES}),
    "embed": ("/embed", {"inputs": TEXT}),
    "embed_sparse": ("/embed_sparse", {"inputs": TEXT}),
    "fill_mask": ("/fill_mask", {"inputs": f"{TEXT} <mask>"}),
    "late_interaction": ("/rerank", {"query": TEXT, "texts": [TEXT, "a frog"]}),
    "rerank": ("/rerank", {"query": TEXT, "texts": [TEXT, "a frog"]}),
    "token_classify": ("/token_classify", {"inputs": TEXT, "labels": ["person"]}),
}
"""Path and body of a request for each task, except for `transcribe`."""


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root, written = tmp_path_factory.mktemp("checkpoints"), dict[str, Path]()

    def directory(name: str) -> Path:
        if name not in written:
            written[name] = checkpoints.write_checkpoint(root / name, name)
        return written[name]

    return directory


def promised(name: str, directory: Path) -> list[str]:
    """The tasks that a checkpoint must have. name: model type, or key of `NAMED_TASKS`."""
    return NAMED_TASKS.get(name) or checkpoints.tasks_of(name, checkpoints.architecture_of(directory))


def flags_of(name: str, served: str) -> list[str]:
    """The command-line flags that a checkpoint needs. served: name under which the model is served."""
    return [flag.format(name=served) for flag in FLAGS.get(name, ())]


def test_every_model_type_has_a_checkpoint() -> None:
    assert set(FAMILIES) <= checkpoints.covered()
    assert NAMED_TASKS.keys() == checkpoints.NAMED.keys() | checkpoints.RETRIEVAL.keys()


@pytest.mark.parametrize("name", NAMES)
def test_check_describes_the_checkpoint(name: str, directory_of: Callable[[str], Path]) -> None:
    directory = directory_of(name)
    done = warm_processes.run("check", f"it={directory}", *SMALL, *flags_of(name, "it"))
    table = dict(re.split(" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    execution = table["execution"]
    said = [line.partition("WARNING triptych.worker ")[2] for line in done.stderr.splitlines()]
    text_only = [line for line in said if line.startswith("model 'it': only its language model is loaded: ")]
    slower = [f"model 'it' runs slower than it could, {execution}"] if execution.startswith("eager") else []
    assert done.returncode == 0
    assert [line for line in said if line not in text_only] == slower
    assert len(text_only) <= 1
    tasks = promised(name, directory)
    assert table["serves"].split(", ") == tasks
    assert "warning" not in table and int(table["parameters"].replace(",", "")) > 0
    # A model with a CTC head has no KV cache. Most speech checkpoints do not list languages. Cohere ASR has them in
    # its prompts.
    has_decoder = name not in checkpoints.CTC
    assert ("KV cache" in table) is (has_decoder and bool({"generate", "translate", "transcribe"} & set(tasks)))
    names_languages = name in ("whisper", "cohere_asr") or "translate" in tasks
    assert ("languages" in table) is (names_languages and name != "t5")
    if name in FAMILIES:
        assert table["family"] == f"{FAMILIES[name].name} ({checkpoints.architecture_of(directory)})"


def test_no_checkpoint_needs_the_compiler_of_torch(directory_of: Callable[[str], Path]) -> None:
    """No checkpoint makes torch import `torch._dynamo`, which would take seconds at the start of a server.

    Some operations on the meta device do that.
    """
    directories = [str(directory_of(name)) for name in NAMES if name not in FLAGS]
    done = subprocess.run(
        [sys.executable, "-c", LOADED_WITHOUT_THE_COMPILER, *directories],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_check_in_a_new_interpreter(directory_of: Callable[[str], Path]) -> None:
    """`triptych check` works in a new interpreter. Other tests fork a process that has imported everything."""
    command = [*COMMAND, "check", str(directory_of("qwen3_5_text"))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stderr) == (0, "") and "qwen3_5 (Qwen3_5ForCausalLM)" in done.stdout


@pytest.fixture(scope="module")
def server(directory_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the checkpoints of all model types."""
    models = [f"{name}={directory_of(name)}" for name in NAMES]
    flags = [flag for name in NAMES for flag in flags_of(name, name)]
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, *models, *SMALL, *flags, "--kv-cache-memory", "512M", "--no-access-log") as running:
        yield running


def test_a_server_answers_for_every_model_type(server: RunningServer, directory_of: Callable[[str], Path]) -> None:
    """A server answers a request for each task of each model, and `/info` lists the right tasks."""
    tasks = {name: promised(name, directory_of(name)) for name in NAMES}
    failed = {(name, task): why for name in NAMES for task in tasks[name] if (why := _problem(server, name, task))}
    listed = {model["name"]: model["tasks"] for model in server.get("/info").json()["models"]}
    assert (failed, listed) == ({}, tasks)


def _problem(server: RunningServer, name: str, task: str) -> str | None:
    """Send a request for a task to a model. Returns None if it is answered, else the status and the error."""
    if task == "transcribe":
        sound = {"file": ("sound.wav", wav(recording(0.5)), "audio/wav")}
        response = server.post("/v1/audio/transcriptions", data={"model": name, "language": "en"}, files=sound)
    else:
        path, body = REQUESTS[task]
        if name not in ("GLiNER", "GLiNER2"):  # other models have labels of their own
            body = {key: value for key, value in body.items() if key != "labels"}
        response = server.post(path, json={"model": name, **body})
    return None if response.status_code == 200 else f"{response.status_code}: {response.text[:300]}"


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_refused_family_gives_its_reason_in_one_line(model_type: str, tmp_path: Path) -> None:
    """A refused family is reported in one line with the reason, before any error of the tokenizer.

    Such families often have a tokenizer that cannot be read.
    """
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": ["AnyModel"]}))
    done = warm_processes.run("check", f"it={tmp_path}")
    reason = f"{REFUSED[model_type]}; the nearest served family is {NEAREST_OF_REFUSED[model_type]}"
    line = f"triptych: model 'it': 'model_type': {model_type!r} is not supported: {reason}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_serve_refuses_a_family_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlnet", "architectures": ["AnyModel"]}))
    done = warm_processes.run("serve", f"it={tmp_path}", "--port", "0", "--log-level", "error")
    reason = f"{REFUSED['xlnet']}; the nearest served family is roberta"
    line = f"triptych: model 'it': 'model_type': 'xlnet' is not supported: {reason}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
