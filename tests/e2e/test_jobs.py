"""The four tasks of the demo models, and the commands of README.md and docs/requests.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import httpx
import numpy as np
import pytest

from tests.documented_commands import shell_blocks
from tests.e2e.conftest import RunningServer
from tests.e2e.sse import stream
from tests.waiting import read_in_parts


def post(server: RunningServer, route: str, body: dict) -> dict:
    response = httpx.post(server.url + route, json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def test_translates_a_sentence(demo_server: RunningServer) -> None:
    answer = post(demo_server, "/translate", {"inputs": "I am a student", "source_lang": "en", "target_lang": "fr"})
    assert [t["text"] for t in answer["translations"]] == ["Je suis un étudiant"]


def test_continues_a_story(demo_server: RunningServer) -> None:
    answer = post(demo_server, "/generate", {"prompt": "Once upon a time", "max_new_tokens": 40})
    text = answer["choices"][0]["text"]
    assert len(re.findall(r"[a-z]+", text)) >= 10
    assert answer["usage"]["completion_tokens"] <= 40


def test_vectors_have_length_1_and_a_paraphrase_is_nearest(demo_server: RunningServer) -> None:
    sentences = ["The dog chased the cat.", "The cat was chased by the dog.", "The king bought a red boat."]
    a, b, c = (np.array(v) for v in post(demo_server, "/embed", {"inputs": sentences}))
    assert np.allclose([a @ a, b @ b, c @ c], 1, atol=1e-5)
    assert a @ b > a @ c


@pytest.mark.parametrize(
    ("review", "label"), [("I loved this wonderful film", "POSITIVE"), ("What a terrible, boring book", "NEGATIVE")]
)
def test_classifies(demo_server: RunningServer, review: str, label: str) -> None:
    best, *_ = post(demo_server, "/classify", {"inputs": review})
    assert best["label"] == label and best["score"] > 0.5


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 7}, {"num_beams": 4}],
    ids=["greedy", "seeded", "beams"],
)
def test_a_streamed_story_equals_the_whole_answer(demo_server: RunningServer, sampling: dict) -> None:
    body = {"prompt": "The old fox", "max_new_tokens": 48, **sampling}
    whole = post(demo_server, "/generate", body)["choices"][0]
    received = read_in_parts(
        lambda: stream(demo_server.url + "/generate", {**body, "stream": True}),
        lambda received: len(received) > 3 or "num_beams" in sampling,
    )
    assert received[-1][0] == "done"
    assert "".join(data["text"] for name, data in received if name == "token") == whole["text"]
    assert received[-1][1]["choices"][0]["text"] == whole["text"]


def test_a_streamed_translation_equals_the_whole_answer(demo_server: RunningServer) -> None:
    body = {
        "inputs": ["I am a student. The big dog sleeps.", "She reads a book."],
        "source_lang": "en",
        "target_lang": "fr",
    }
    whole = [t["text"] for t in post(demo_server, "/translate", body)["translations"]]
    received = stream(demo_server.url + "/translate", {**body, "stream": True})
    joined = ["", ""]
    for name, data in received:
        if name == "token":
            joined[data["index"]] += data["text"]
    assert joined == whole
    assert [t["text"] for t in received[-1][1]["translations"]] == whole


def test_tokenize_and_back(demo_server: RunningServer) -> None:
    text = "The old fox slept."
    (tokens,) = post(demo_server, "/tokenize", {"model": "story", "inputs": text})
    (again,) = post(
        demo_server, "/detokenize", {"model": "story", "ids": [t["id"] for t in tokens], "skip_special_tokens": True}
    )
    assert again == text


def documented_commands() -> list[str]:
    """Every curl command in a `console` block of any page."""
    blocks = [block for block in shell_blocks() if block.language == "console"]
    return list(dict.fromkeys(line for block in blocks for line in block.commands if line.startswith("curl ")))


def test_every_demo_task_has_a_documented_command() -> None:
    routes = {match for command in documented_commands() for match in re.findall(r":8000(/\w+)", command)}
    assert routes >= {"/generate", "/translate", "/embed", "/similarity", "/classify", "/tokenize", "/detokenize"}
    assert routes >= {"/health", "/ready", "/info", "/metrics"}


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_work_as_pasted(demo_server: RunningServer, command: str) -> None:
    assert shutil.which("curl"), "the examples need curl"
    command = command.replace("curl ", "curl --fail-with-body ", 1).replace("http://127.0.0.1:8000", demo_server.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    if "generate_stream" in command:
        assert '"generated_text":"' in done.stdout.splitlines()[-2]
    elif "stream" in command:
        assert "event: done\n" in done.stdout
    elif "/metrics" in command:
        assert "triptych_build_info" in done.stdout
    elif "response_format" in command:
        (choice,) = json.loads(done.stdout)["choices"]
        assert list(json.loads(choice["text"])) == ["name", "animal", "age"], choice
    else:
        json.loads(done.stdout)


def test_metrics_pass_promtool(demo_server: RunningServer) -> None:
    page = demo_server.get("/metrics").content
    promtool = shutil.which("promtool")
    if promtool is None:
        from prometheus_client.parser import text_string_to_metric_families

        assert {f.name for f in text_string_to_metric_families(page.decode())} >= {
            "triptych_requests",
            "triptych_streams_open",
        }
        return
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()


def test_fewer_answers_than_beams_when_no_more_are_possible(demo_server: RunningServer) -> None:
    """If only one answer is possible, a request for four answers gets one.

    The forced first token and the forced end token determine the whole answer here.
    """
    forced = {"forced_bos_token": "▁le", "max_new_tokens": 2}
    body = {
        "model": "translator-en-fr",
        "prompt": "I am a student",
        **forced,
        "num_beams": 4,
        "num_return_sequences": 4,
    }
    (choice,) = post(demo_server, "/generate", body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("le", "stop")
    body = {"inputs": "I am a student", **forced, "num_alternatives": 3}
    (translation,) = post(demo_server, "/translate", body)["translations"]
    assert (translation["text"], translation["alternatives"]) == ("le", [])
