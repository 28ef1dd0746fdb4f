"""Dashboards, container images and compose files name only metrics, settings and files that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from starlette.datastructures import Headers

from server.api.entry.page_check import PageCheck
from server.metrics import Metrics
from server.settings.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_dashboard_uses_metrics_that_exist() -> None:
    exposed = set(re.findall(r"^# TYPE (\w+) (\w+)", Metrics().render().decode(), re.MULTILINE))
    names = {name for name, kind in exposed if kind != "histogram"}
    names |= {
        name + suffix for name, kind in exposed if kind == "histogram" for suffix in ("_bucket", "_sum", "_count")
    }
    dashboard = json.loads((REPOSITORY / "deploy/grafana/dashboards/triptych.json").read_text())
    queried = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"triptych_\w+", target["expr"])
    }
    assert len(queried) > 15
    assert queried <= names, queried - names


def test_images_and_compose_use_settings_that_exist() -> None:
    files = ("Dockerfile", "docker-compose.yml", "deploy/compose/gpu.yml")
    text = "".join((REPOSITORY / file).read_text() for file in files)
    used = set(re.findall(r"TRIPTYCH_([A-Z_]+)(?==|:| )", text))
    assert {"HOST", "PORT", "INSECURE_NO_AUTH", "DEVICE"} <= used
    assert {name.lower() for name in used - {"TARGET"}} <= Settings.model_fields.keys()


def test_compose_publishes_only_on_loopback() -> None:
    services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    assert set(services) == {"triptych", "prometheus", "grafana"}
    ports = [port for service in services.values() for port in service["ports"]]
    assert len(ports) == 3 and all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_calls_the_server_by_a_name_that_compose_allows() -> None:
    service = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]["triptych"]
    allowed = re.fullmatch(r"\$\{TRIPTYCH_ALLOWED_HOSTS:-(.+)\}", service["environment"]["TRIPTYCH_ALLOWED_HOSTS"])
    assert allowed is not None
    settings = Settings(allowed_hosts=allowed[1])
    jobs = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    for target in jobs[0]["static_configs"][0]["targets"]:
        scope = {"path": "/metrics", "method": "GET", "scheme": "http"}
        PageCheck(settings.allowed_hosts, []).check(scope, Headers({"host": target}))


def test_compose_serves_own_checkpoints_that_are_mounted() -> None:
    text = (REPOSITORY / "docker-compose.yml").read_text()
    service = yaml.safe_load(text)["services"]["triptych"]
    assert service["environment"]["TRIPTYCH_MODELS"] == "${TRIPTYCH_MODELS:-}"
    source, target, mode = service["volumes"][1].rsplit(":", 2)
    variable, default = re.fullmatch(r"\$\{(\w+):-(.+)\}", source).groups()
    assert (target, mode) == ("/checkpoints", "ro") and (REPOSITORY / default).is_dir()
    (command,) = re.findall(r"^#   (.*) docker compose up$", text, re.MULTILINE)
    values = dict(part.split("=", 1) for part in command.split())
    assert values.keys() == {variable, "TRIPTYCH_MODELS"}
    models = Settings(models=values["TRIPTYCH_MODELS"]).models
    assert models == ["llm=/checkpoints/llama", "mt=/checkpoints/opus-mt-en-de"]
    assert Settings(models="").models == [], "without the variable, the demo models are served"


def test_every_configuration_file_is_yaml_or_json() -> None:
    files = [*REPOSITORY.glob("deploy/**/*.yml"), *REPOSITORY.glob("deploy/**/*.json")]
    assert len(files) >= 4
    for file in files:
        assert yaml.safe_load(file.read_text())


def test_images_can_write_models_and_compose_passes_the_hub_token_on() -> None:
    """The image's user owns `/models`, where downloaded checkpoints are stored."""
    image = (REPOSITORY / "Dockerfile").read_text()
    assert re.search(r"install -d -o (\d+) -g \1 /models\n.*?USER \1\n", image, re.DOTALL)
    service = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]["triptych"]
    assert service["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"


def test_the_cuda_image_compiles_kernels_and_keeps_them_in_the_volume() -> None:
    """Triton needs a C compiler to start a kernel, and a cache outside the home directory, which is read-only there."""
    stage = (REPOSITORY / "Dockerfile").read_text().split("FROM runtime AS cuda\n")[1].split("\nFROM ")[0]
    assert re.search(r"apt-get install .*\bgcc\b.*\blibc6-dev\b", stage)
    assert re.search(r"CC=gcc\b", stage) and re.search(r"TRITON_CACHE_DIR=/models/", stage)
    assert re.search(r"XDG_CACHE_HOME=/models/", stage)
    assert re.findall(r"^USER (\d+)$", stage, re.MULTILINE)[-1] == "10001", "the server must not run as root"


def test_compose_for_gpus_changes_only_the_server() -> None:
    (service,) = yaml.safe_load((REPOSITORY / "deploy/compose/gpu.yml").read_text())["services"].items()
    name, changes = service
    assert name == "triptych" and changes.keys() == {"build", "image", "environment", "deploy"}
    assert f"FROM runtime AS {changes['build']['target']}\n" in (REPOSITORY / "Dockerfile").read_text()
    (device,) = changes["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The command that runs Docker Compose: the program `docker-compose`, or else the plugin `docker compose`."""
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    if (
        shutil.which("docker") is not None
        and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        return ["docker", "compose"]
    pytest.skip("neither docker-compose nor the plugin `docker compose` is installed")


@pytest.mark.parametrize("gpus", [None, "2"])
def test_compose_reads_its_files_and_reserves_gpus(compose: list[str], gpus: str | None) -> None:
    """Docker Compose itself merges the two files."""
    files = ["-f", "docker-compose.yml", "-f", "deploy/compose/gpu.yml"]
    environment = {**os.environ} | ({} if gpus is None else {"GPUS": gpus})
    ended = subprocess.run(
        [*compose, *files, "config"], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    service = yaml.safe_load(ended.stdout)["services"]["triptych"]
    assert service["build"]["target"] == "cuda" and service["image"] == "triptych:cuda"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert int(device["count"]) == int(gpus or 1)
    assert service["environment"]["TRIPTYCH_DEVICE"] == "cuda"
    assert service["environment"]["TRIPTYCH_INSECURE_NO_AUTH"] == "true", "the settings of the first file remain"
    # Version 1 writes volumes as text, version 2 as objects.
    targets = {volume.split(":")[1] if isinstance(volume, str) else volume["target"] for volume in service["volumes"]}
    stage = (REPOSITORY / "Dockerfile").read_text().split("FROM runtime AS cuda\n")[1]
    (kernels,) = re.findall(r"TRITON_CACHE_DIR=(\S+)", stage)
    assert any(kernels.startswith(f"{target}/") for target in targets), "compiled kernels are kept in a volume"


def test_the_image_gets_every_file_that_it_copies() -> None:
    """`.dockerignore` excludes each file that it does not name, and a COPY of such a file would fail."""
    rules = (REPOSITORY / ".dockerignore").read_text().splitlines()
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source.removeprefix("./") for copy in copies for source in copy.split()}
    assert sources >= {"triptych.py", "server", "constraints.txt"} and sources <= kept
