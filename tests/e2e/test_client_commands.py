"""The client commands with the demo models: with a running server, and with a server that the command starts itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import warm_processes
from tests.e2e.conftest import REPOSITORY, RunningServer

DEMO = REPOSITORY / "weights" / "demo"


def output(*argv: str, input: str = "", status: int = 0) -> str:
    done = warm_processes.run(*argv, input=input)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_generate(demo_server: RunningServer) -> None:
    body = {"model": "story", "prompt": "Once upon a time", "max_new_tokens": 12, "seed": 3, "temperature": 0.9}
    expected = demo_server.post("/generate", json=body).json()["choices"][0]["text"]
    argv = ["generate", "--url", demo_server.url, "-m", "story", "--max-new-tokens", "12", "--seed", "3"]
    argv += ["--temperature", "0.9"]
    assert output(*argv, "Once upon a time", status=3) == expected + "\n"
    assert output(*argv, input="Once upon a time\n", status=3) == expected + "\n"
    line = json.loads(output(*argv, "Once upon a time", "--json"))
    assert line["answer"]["choices"][0]["text"] == expected
    assert output(*argv, "Yes?", "--choice", "yes", "--choice", "no") in ("yes\n", "no\n")


def test_translate(demo_server: RunningServer) -> None:
    argv = ["translate", "--url", demo_server.url, "--source-lang", "en", "--target-lang", "fr"]
    assert output(*argv, "I am a student") == "Je suis un étudiant\n"
    lines = output(*argv, input="I am a student\n\nThe garden is small.\n").split("\n")
    assert lines == ["Je suis un étudiant", "", "Le jardin est petit.", ""]


def test_embed_and_classify(demo_server: RunningServer) -> None:
    (vector, other) = (json.loads(line) for line in output("embed", "--url", demo_server.url, "a", "b").splitlines())
    assert vector == demo_server.post("/embed", json={"inputs": "a"}).json()[0] and len(other) == len(vector)
    shown = output("classify", "--url", demo_server.url, "I loved this wonderful film")
    assert shown.startswith("POSITIVE\t0.9") and shown.endswith("\tI loved this wonderful film\n")


def test_a_batch_of_files_with_cut_texts(demo_server: RunningServer, tmp_path: Path) -> None:
    sentences = [f"The cat sees {number} dogs." for number in range(199)] + ["dog " * 2000]
    (tmp_path / "in.txt").write_text("\n".join(sentences))
    argv = [
        "embed",
        "--url",
        demo_server.url,
        "--input",
        str(tmp_path / "in.txt"),
        "--output",
        str(tmp_path / "out.jsonl"),
    ]
    done = warm_processes.run(*argv)
    assert done.returncode == 0 and "1 texts were cut" in done.stderr and "200 answers in" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == list(range(1, 201))
    assert [line["line"] for line in lines if line.get("truncated")] == [200]


def test_errors_of_the_server_are_one_line(demo_server: RunningServer) -> None:
    done = warm_processes.run("generate", "--url", demo_server.url, "-m", "story", "--temperature", "1000", "a")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("triptych: `temperature`") and done.stderr.endswith("(HTTP 422)\n")
    done = warm_processes.run("embed", "--url", demo_server.url, "-m", "none", "a", "b")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "HTTP 404" in done.stderr


def test_chat(demo_server: RunningServer) -> None:
    body = {"model": "story", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
    expected = demo_server.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    argv = ["chat", "--url", demo_server.url, "-m", "story"]
    argv += ["--temperature", "0"]
    shown = output(*argv, "--max-new-tokens", "12", "Hello", status=3)
    assert shown == expected.removesuffix("\n") + "\n"
    assert output(*argv, "--choice", "yes", "--choice", "no", input="Yes or no?") in ("yes\n", "no\n")
    done = warm_processes.run("chat", "--url", demo_server.url, "-m", "sentiment", "Hello")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "(HTTP 4" in done.stderr


@pytest.mark.parametrize("task", ["generate", "chat", "embed"])
def test_bench_as_a_client_of_openai(demo_server: RunningServer, task: str, tmp_path: Path) -> None:
    model = "sentence-encoder" if task == "embed" else "story"
    argv = ["bench", demo_server.url, "--task", task, "-m", model, "--rate", "40", "--requests", "6"]
    argv += ["--output-tokens", "8", "--prompt-words", "5", "--json", str(tmp_path / "results.json")]
    output(*argv, *([] if task == "embed" else ["--ignore-eos"]))
    (level,) = json.loads((tmp_path / "results.json").read_text())["levels"]
    assert level["succeeded"] == 6 and level["prompt_tokens"] > 6
    assert task == "embed" or (level["output_tokens"] == 48 and level["output_tokens_counted_by"] == "usage")
    assert (level["first_token_seconds"] is None) is (task == "embed")


def test_bench(demo_server: RunningServer, tmp_path: Path) -> None:
    argv = ["bench", demo_server.url, "--dialect", "native", "-m", "story", "--requests", "6", "--concurrency", "2"]
    argv += ["--output-tokens", "8", "--ignore-eos", "--prompt-words", "5", "--json", str(tmp_path / "results.json")]
    assert "first token, ms, p50" in output(*argv)
    (level,) = json.loads((tmp_path / "results.json").read_text())["levels"]
    assert level["succeeded"] == 6 and level["output_tokens"] == 48 and level["output_tokens_counted_by"] == "usage"


def test_models_of_a_server(demo_server: RunningServer) -> None:
    rows = dict(line.split(maxsplit=1) for line in output("models", "--url", demo_server.url).splitlines())
    assert list(rows) == [model["name"] for model in demo_server.get("/info").json()["models"]]
    assert rows["story"].startswith("generate") and "512 tokens" in rows["story"]


def test_an_unknown_model_is_named_with_those_that_exist(demo_server: RunningServer) -> None:
    done = warm_processes.run("generate", "--url", demo_server.url, "-m", "stroy", "a")
    assert done.returncode == 1 and "no model is named stroy; did you mean story? the models are" in done.stderr
    assert "translator-en-fr" in done.stderr and done.stderr.count("\n") == 1


def test_without_a_server() -> None:
    command = [sys.executable, "-m", "server.cli", "translate", "--load", str(DEMO / "translator-en-fr")]
    process = subprocess.Popen(
        [*command, "I am a student"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.communicate(timeout=120) == ("Je suis un étudiant\n", None) and process.returncode == 0
    with pytest.raises(ProcessLookupError):  # neither the command nor its worker is left
        os.killpg(process.pid, 0)


def test_settings_and_errors_without_a_server(tmp_path: Path) -> None:
    story = str(DEMO / "story")
    shown = output(
        "generate", "--load", f"tale={story}", "--dtype", "bfloat16", "--max-new-tokens", "5", "--json", "Once"
    )
    assert json.loads(shown)["answer"]["model"] == "tale"
    for argv, message in (
        (["--load", str(tmp_path)], "is not a checkpoint"),
        (["--load", story, "--dtype", "float8"], "dtype"),
    ):
        done = warm_processes.run("generate", *argv, "Once")
        assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and message in done.stderr, done.stderr


def test_ctrl_c_while_a_model_loads() -> None:
    command = [sys.executable, "-m", "server.cli", "generate", "--load", str(DEMO / "story"), "a"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parent = psutil.Process(process.pid)
    while not (workers := [child for child in parent.children() if "server.engine.process.worker" in child.cmdline()]):
        time.sleep(0.02)
    (worker,) = workers
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 130
    with pytest.raises(psutil.NoSuchProcess):
        worker.status()
