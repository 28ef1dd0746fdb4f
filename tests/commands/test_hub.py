"""`triptych pull`, `list`, `show`, `rm` and `serve org/name`, against a stand-in for the hub."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.client.test_terminal import terminal
from tests.e2e.conftest import REPOSITORY
from tests.stand_in_hub import StandInHub, commit_of, stand_in_hub
from tests.waiting import eventually

DEMO = REPOSITORY / "weights" / "demo" / "sentiment"


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with stand_in_hub() as server:
        files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
        server.repositories["org/mood"] = {"main": files | {"tf_model.h5": b"x" * 1000}}
        yield server


@pytest.fixture
def environment(hub: StandInHub, tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRIPTYCH_"))}
    return clean | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}


def triptych(environment: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server.cli", *argv]
    return subprocess.run(command, cwd=REPOSITORY, env=dict(environment), capture_output=True, text=True)


def test_pull_list_show_and_rm(hub: StandInHub, environment: dict[str, str], tmp_path: Path) -> None:
    commit = commit_of("org/mood", "main")
    shown = triptych(environment, "show", "org/mood").stdout
    assert "not fetched: triptych pull org/mood" in shown and "model.safetensors" in shown and "h5" not in shown
    done = triptych(environment, "pull", "org/mood")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"org/mood: \d+ files, [\d.]+ MiB, commit {commit[:12]}\n", done.stdout)
    assert "tf_model.h5" not in hub.fetched() and (tmp_path / "home" / "hub" / "models--org--mood").is_dir()
    assert "is up to date" in triptych(environment, "pull", "org/mood").stdout
    assert re.match(r"org/mood +[\d.]+ MiB; main; used \d{4}-", triptych(environment, "list").stdout)
    shown = triptych(environment, "show", "org/mood").stdout
    assert f"main, commit {commit}" in shown and "BertForSequenceClassification; can be served" in shown
    wrong = triptych(environment, "rm", "org/moot", "-y")
    assert wrong.returncode == 2 and "is not in the cache; did you mean org/mood?" in wrong.stderr
    asked = triptych(environment, "rm", "org/mood")
    assert asked.returncode == 2 and "add --yes" in asked.stderr
    assert "are free again" in triptych(environment, "rm", "org/mood", "--yes").stdout
    done = triptych(environment, "list")
    assert done.stdout == "" and "no models" in done.stderr


def test_check_of_a_hub_id(hub: StandInHub, environment: dict[str, str]) -> None:
    done = triptych(environment, "check", "org/mood", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines() if "  " in line)
    assert rows["family"].startswith("bert") and rows["serves"] == "classify" and rows["advice"] == "--dtype float32"
    hub.gated.add("org/gated")
    hub.repositories["org/gated"] = hub.repositories["org/mood"]
    for name, reason in (("org/gated", "HF_TOKEN"), ("org/none", "HF_TOKEN"), ("org/mood@v9", "v9")):
        refused = triptych(environment, "check", name)
        assert refused.returncode == 1 and reason in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr


def test_pull_of_one_gguf_model(hub: StandInHub, environment: dict[str, str]) -> None:
    hub.repositories["org/g"] = {"main": {"m-Q4_K_M.gguf": b"GGUF" * 500, "m-Q8_0.gguf": b"x", "README.md": b"x"}}
    refused = triptych(environment, "pull", "org/g")
    assert refused.returncode == 1 and "choose one of Q4_K_M, Q8_0" in refused.stderr
    done = triptych(environment, "pull", "org/g", "--gguf", "Q4_K_M")
    assert done.returncode == 0 and hub.fetched() == {"m-Q4_K_M.gguf"}, done.stderr


@pytest.mark.parametrize(
    ("argv", "more", "message"),
    [
        (["pull", "/no/path/at/all"], {}, "is not a hub id"),
        (["pull", "org/mood"], {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        (["pull", "org/none"], {}, "set HF_TOKEN"),
        (["rm", "org/mood:Q4_K_M", "--yes"], {}, "leave out :Q4_K_M"),
    ],
)
def test_a_refusal_is_one_line(environment: dict[str, str], argv: list[str], more: dict, message: str) -> None:
    done = triptych(environment | more, *argv)
    assert done.returncode in (1, 2) and message in done.stderr and done.stderr.count("\n") == 1


def test_a_bar_in_bytes_in_a_terminal_and_ctrl_c(hub: StandInHub, environment: dict[str, str]) -> None:
    hub.holds = True
    with terminal("pull", "org/mood", environment=environment) as shell:
        shown = shell.wait_for(r"fetching org/mood \(main, commit \w{12}\): \d+ files, [\d.]+ MiB, into ")
        assert environment["HF_HOME"] in shown
        shell.wait_for(r"\d+%\|.*[\d.]+[kM]/[\d.]+[kM]")
        os.kill(shell.process.pid, signal.SIGINT)
        assert shell.end() == 130
    assert "the same command continues the download" in shell.output
    hub.holds = False
    hub.ranges.clear()
    done = triptych(environment, "pull", "org/mood")
    assert done.returncode == 0, done.stderr
    begins = [begin for name, begin in hub.ranges if name == "model.safetensors"]
    assert len(begins) == 1 and begins[0] > 0


def test_probes_answer_while_serve_downloads(hub: StandInHub, environment: dict[str, str], tmp_path: Path) -> None:
    hub.holds = True
    log = tmp_path / "log"
    argv = ["serve", "mood=org/mood", "--port", "0", "--log-format", "json", "--device", "cpu"]
    port = _free_port()
    argv[3] = str(port)
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "server.cli", *argv], cwd=REPOSITORY, env=environment, stdout=file, stderr=file
        )
    try:

        def half() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                answer = httpx.get(f"{url}/ready")
            except httpx.ConnectError:
                return False
            return answer.status_code == 503 and answer.json()["progress"]["done_bytes"] > 10_000

        eventually(half)
        assert httpx.get(f"{url}/health").status_code == 200
        refused = httpx.post(f"{url}/classify", json={"inputs": "a"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
        assert re.search(r"being downloaded: [\d.]+ \w+ of [\d.]+ MiB", refused.json()["error"]["message"])
        hub.hold.set()

        def ready() -> bool:
            # The server takes over the port from the download progress page, and may close connections meanwhile.
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/ready").status_code == 200
            return False

        eventually(ready)
        answer = httpx.post(f"{url}/classify", json={"inputs": "I loved this wonderful film"})
        assert answer.json()[0]["label"] == "POSITIVE"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(line["message"].startswith("fetching org/mood (main, commit") for line in lines)


def test_a_server_without_access_ends_with_the_reason(hub: StandInHub, environment: dict[str, str]) -> None:
    hub.gated.add("org/mood")
    done = triptych(environment, "serve", "mood=org/mood", "--port", "0")
    assert done.returncode == 1 and "the model is gated: accept its terms" in done.stderr and "HF_TOKEN" in done.stderr


def test_sigterm_during_a_download_ends_the_server(hub: StandInHub, environment: dict[str, str]) -> None:
    hub.holds = True
    process = subprocess.Popen(
        [sys.executable, "-m", "server.cli", "serve", "mood=org/mood", "--port", "0"],
        cwd=REPOSITORY,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: "model.safetensors" in hub.fetched())
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopped during a download" in errors


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_names_of_hub_models() -> None:
    from server.settings.entries import split_entry

    for entry, name in {
        "org/m:Q4_K_M": "m",
        "org/m@v1:Q4_K_M": "m",
        "a=org/m:Q8_0": "a",
        "org/m@refs/pr/1": "m",
    }.items():
        assert split_entry(entry)[0] == name
