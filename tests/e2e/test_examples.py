"""Every script in `examples/` runs against a real server, and every native route has a script.

The tests also run commands and programs on pages of the documentation that need more than the demo models. The pages
mark these commands with `<!-- run by tests/e2e/test_examples.py -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docx
import pytest

from server.api.dialects.native import routes as native
from server.api.dialects.openai.audio import routes as audio
from tests.audio.wavs import wav
from tests.documented_commands import Block, shell_blocks
from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.encoder_checkpoints import write_encoder
from tests.e2e.speech.recordings import LONG
from tests.parity.speech import write as write_whisper
from tests.parity.speech import write_tokenizer

HEAVY_EXAMPLES = {"langchain_chat", "litellm_chat"}
"""Examples whose packages need a separate environment. `tests.clients.heavy` runs them."""
EXAMPLES = sorted(path for path in (REPOSITORY / "examples").glob("*.py") if path.stem not in HEAVY_EXAMPLES)
NLI_LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}
HEADS = {
    "ner": ("TokenClassification", {}),
    "mlm": ("MaskedLM", {}),
    "qa": ("QuestionAnswering", {}),
    "cross-encoder": ("SequenceClassification", {"num_labels": 1}),
    "nli": ("SequenceClassification", {"id2label": NLI_LABELS, "label2id": {v: k for k, v in NLI_LABELS.items()}}),
}
MODEL_OF = {
    "generate": "story",
    "generate_stream": "story",
    "translate": "translator-en-fr",
    "embed": "sentence-encoder",
    "embed_all": "sentence-encoder",
    "similarity": "sentence-encoder",
    "classify": "sentiment",
    "tokenize_text": "story",
    "token_classify": "ner",
    "fill_mask": "mlm",
    "question_answer": "qa",
    "rerank": "cross-encoder",
    "zero_shot_classify": "nli",
    "transcribe": "whisper",
    "translate_speech": "whisper",
    "openai_chat": "story",
    "openai_completions": "story",
    "openai_embeddings": "sentence-encoder",
    "openai_responses": "story",
    "huggingface_client": "story",
    "tgi_stream": "story",
    "embed_sparse": "mlm",
    "late_chunking": "sentence-encoder",
    "server_status": "",
    "anthropic_messages": "story",
    "ollama_chat": "story",
    "cohere_rerank": "cross-encoder",
    "batch_jobs": "",
    "libretranslate_client": "translator-en-fr",
    "deepl_client": "translator-en-fr",
    "translate_html": "translator-en-fr",
    "translate_glossary": "translator-en-fr",
    "generate_allowed_sequences": "story",
    "store_allowed_sequences": "story",
}
PRINTED = {
    "libretranslate_client": r"English to fr\ndetected: en\ntranslation: Le jardin est petit\.\n",
    "deepl_client": r"languages: French\nfrom EN: Le jardin est petit\.\nhtml: <p class=\"intro\">.+<b>rouge</b>\.",
    "translate_glossary": r"translation: .*maison.*\ntranslation: .*\bvilla\b.*jardin",
    "translate_html": r"<h1 id=\"top\">.+</h1>\n<p>.+<a href=\"/house\">.+</a>.*<code>make serve</code>",
    "generate": r"greedy: .+\nsample 0: .+\nsample 1: .+\nusage: ",
    "generate_allowed_sequences": r"(-\d+\.\d{3} (a boy|a girl|a little dog|a little girl|the moon)\n){5}$",
    "store_allowed_sequences": r"stored 5 sequences in \d+ bytes\n(-\d+\.\d{3} (a|the) .+\n){5}$",
    "generate_stream": r".+\nfinished: (length|stop)",
    "translate": r"translation: Je suis un étudiant\n(alternative: .+\n){2}(translation: .+\n){2}",
    "embed": r"dimensions: \d+\ncosine:     -?\d",
    "embed_all": r"token 0: \[.+\]\ntoken 1: ",
    "similarity": r"-?\d\.\d+: The cat was chased by the dog\.\n-?\d\.\d+: The king",
    "classify": r"POSITIVE \(\d\.\d+\): I loved .+\nNEGATIVE ",
    "tokenize_text": r" +\d+  .+\n(.*\n)+text: The old fox slept\.",
    "token_classify": r"LABEL_\d \(0\.\d+\): .+",
    "fill_mask": r"(0\.\d+: .+\n){3}",
    "question_answer": r"(\d\.\d+: .+\n)+",
    "rerank": r"(\d\.\d+: .+\n){3}",
    "zero_shot_classify": r"(0\.\d+: (music|sport|law)\n){3}",
    "transcribe": r"\d+\.\d seconds of speech in language .+\n( +\d+\.\d\d to +\d+\.\d\d: .*\n)+",
    "translate_speech": r"English: .+",
    "openai_chat": r"answer: , there was .+\nusage: 45 tokens\nstreamed: , there was .+",
    "openai_completions": r" +'<s>' \n( +'.+' -\d+\.\d\d\n)+",
    "openai_embeddings": r"sentence-encoder reads 128 tokens\n(\d\.\d+: .+\n){2}",
    "openai_responses": r"answer: (, there was .+)\nstreamed: (.+)\nwithout a store: \2",
    "huggingface_client": r"text: .+\nstream: .+\n",
    "tgi_stream": r".+\nfinished: (length|eos_token)",
    "embed_sparse": r"weights above zero: \d+ and \d+\ndot product: \d+\.\d{3}",
    "late_chunking": r"(.+: \[.+, \.\.\.\]\n){3}",
    "batch_jobs": r"5000 vectors of \d+ numbers\n500 translations: Je suis un étudiant \.\.\. Le chien .+",
    "server_status": r"/health: 200\n/ready: 200\nversion: .+\n(.+ parameters, routes /.+\n)+triptych_kv_blocks_total",
    "anthropic_messages": r"prompt tokens: \d+\nmessage: .+\nstop reason: (max_tokens|end_turn)\nstream: .+\n",
    "ollama_chat": r"models: .*story:latest.*\nanswer: .+\n\d+ tokens in \d+\.\d\d s\n",
    "cohere_rerank": r"(0\.\d+: .+\n){2}",
}

MARKED = [block for block in shell_blocks() if block.reason == "tests/e2e/test_examples.py"]
"""The command blocks that this file runs: in docs/command-line.md, docs/first-hour.md, docs/serving.md and
docs/translation.md."""
CUT = 3
"""Exit status of a client command whose answer was cut at its limit of tokens."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the demo models, and a tiny random model for every task that no demo model has."""
    root = tmp_path_factory.mktemp("models")
    demo = REPOSITORY / "weights" / "demo"
    models = {name: demo / name for name in ("story", "translator-en-fr", "sentence-encoder", "sentiment")}
    for name, (head, settings) in HEADS.items():
        models[name] = write_encoder(root / name, "bert", head, **settings)
    write_whisper(root / "whisper", "whisper")
    write_tokenizer(root / "whisper")
    models["whisper"] = root / "whisper"
    arguments = [f"{name}={directory}" for name, directory in models.items()]
    with serving(tmp_path_factory.mktemp("server") / "log", *arguments) as running:
        yield running


def run(script: Path, server: RunningServer, *arguments: str) -> str:
    environment = os.environ | {"TRIPTYCH_URL": server.url}
    if MODEL_OF[script.stem]:
        environment["TRIPTYCH_MODEL"] = MODEL_OF[script.stem]
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=[script.stem for script in EXAMPLES])
def test_the_example_runs(server: RunningServer, script: Path, tmp_path: Path) -> None:
    arguments = []
    if MODEL_OF[script.stem] == "whisper":
        (tmp_path / "recording.wav").write_bytes(wav(LONG[0]))
        arguments = [str(tmp_path / "recording.wav")]
    printed = run(script, server, *arguments)
    assert re.match(PRINTED[script.stem], printed), printed


def test_every_native_route_has_an_example(server: RunningServer) -> None:
    routes = {route.path for route in (*native.ROUTES, *audio.ROUTES)} | {"/health", "/ready", "/info", "/metrics"}
    assert routes <= server.get("/openapi.json").json()["paths"].keys()
    shown = {route for script in EXAMPLES for route in re.findall(r"(?:POST|GET|,|and) (/[\w/]+)", script.read_text())}
    assert len(routes) >= 18
    assert routes <= shown, routes - shown
    assert set(MODEL_OF) == set(PRINTED) == {script.stem for script in EXAMPLES}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with the files that the commands on the pages use."""
    for name in ("meeting.mp3", "talk.wav"):
        (tmp_path / name).write_bytes(wav(LONG[0]))
    (tmp_path / "passages.txt").write_text("Ada lived in London.\nFoxes sleep in dens.\n")
    letter = docx.Document()
    letter.add_paragraph("The garden is small.")
    letter.save(str(tmp_path / "letter.docx"))
    return tmp_path


@pytest.mark.parametrize("block", MARKED, ids=[f"{Path(block.page).stem}-{block.line}" for block in MARKED])
def test_the_commands_of_a_page(server: RunningServer, block: Block, home: Path) -> None:
    environment = os.environ | {"TRIPTYCH_URL": server.url, "PYTHONPATH": str(REPOSITORY), "HOME": str(home)}
    define = f'triptych() {{ "{sys.executable}" -m server.cli "$@"; }}\n'
    answer = ""
    for command in block.commands:
        own = command.replace("http://127.0.0.1:8000", server.url).replace("curl ", "curl --fail-with-body ", 1)
        own = own.replace("/path/llama", str(REPOSITORY / "weights" / "demo" / "story"))
        if "resp_..." in own:
            own = own.replace("resp_...", re.search(r"resp_\w+", answer)[0])
        shell = ["bash", "-c", define + own]
        done = subprocess.run(shell, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode in (0, CUT), done.stdout + done.stderr
        answer = done.stdout
        if not answer and not own.startswith(("mkdir ", "export ")):
            written = re.search(r"(?:-o|>) (\S+)$", own)[1]
            assert (home / written.replace("~", str(home))).stat().st_size, own


def test_the_programs_of_a_page(server: RunningServer) -> None:
    """The Hugging Face client works as in docs/requests.md. Another translator replaces the T5 of the second part."""
    page = (REPOSITORY / "docs" / "requests.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    second = second.replace("/t5/", "/translator-en-fr/").replace('"de"', '"fr"')
    for code in (first, first.splitlines()[0] + "\n" + second):
        lines = code.replace("http://127.0.0.1:8000", server.url).strip().splitlines()
        names: dict[str, object] = {}
        exec("\n".join([*lines[:-1], f"answer = {lines[-1]}"]), names)
        assert names["answer"]
