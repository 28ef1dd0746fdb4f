"""Fixtures: a Ray cluster of two nodes on this machine that runs deploy/ray/serve.yaml with the demo models."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.waiting import HANG_SECONDS, eventually, is_gone

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGURATION = REPOSITORY / "deploy" / "ray" / "serve.yaml"
KEY = "a-key-of-the-tests"
OBJECT_STORE_BYTES = 100 << 20
HEAD = "head"
"""The name of a Ray resource that only the first node has."""

# Set before ray is imported, because it reads these variables only then. Without a token here, Ray would write one to
# the home directory, or give every local user access.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@dataclass
class RunningCluster:
    """A cluster that runs the application. url: address of its HTTP proxy. log: directory with the logs of Ray."""

    cluster: Any
    second_node: Any
    url: str
    log: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {KEY}"}

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=HANG_SECONDS, **{"headers": self.headers, **more})

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=HANG_SECONDS, **{"headers": self.headers, **more})

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels, over all replicas."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(
                f'{label}="{text}"' in sample for label, text in labels.items()
            ):
                total += float(value)
        return total

    def replica_processes(self) -> list[psutil.Process]:
        """The processes in which replicas run."""
        return [process for process in _descendants() if "ServeReplica:triptych:triptych" in _command(process)]

    def replica_names(self) -> set[str]:
        """The names of the replicas that answer a request for their metrics."""
        lines = [
            line for line in self.get("/metrics").text.splitlines() if line.startswith("triptych_requests_running{")
        ]
        return {line.partition('replica="')[2].partition('"')[0] for line in lines}

    def log_text(self) -> str:
        """All text that Ray's worker processes wrote to standard error."""
        return "".join(path.read_text(errors="replace") for path in self.log.glob("worker-*.err"))


def engine_workers(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Find the engine workers that a process has started, by default those of the test process."""
    return [process for process in _descendants(of) if "server.engine.process.worker" in _command(process)]


def helper_processes(replica: psutil.Process, script: str) -> list[psutil.Process]:
    """The helper processes of a replica that run a script (`server.system.line_process`). script: name of its file."""
    return [process for process in _descendants(replica) if script in _command(process)]


def _descendants(of: psutil.Process | None = None) -> list[psutil.Process]:
    try:
        return (of or psutil.Process()).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _configuration(port: int, min_replicas: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """The configuration of deploy/ray, changed for small machines and a fast test.

    arguments: more arguments for the function that builds the application.
    """
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["proxy_location"] = "HeadOnly"
    configuration["http_options"] = {"host": "127.0.0.1", "port": port}
    (application,) = configuration["applications"]
    application["args"] = {"max_batch_rows": 4, "grace_seconds": 5, **arguments}
    application["runtime_env"] = {"env_vars": {"TRIPTYCH_API_KEYS": KEY}}
    replicas, ingress = application["deployments"]
    replicas["ray_actor_options"] = {"num_cpus": 1}
    replicas["max_replicas_per_node"] = 1
    replicas["autoscaling_config"] |= {
        "min_replicas": min_replicas,
        "max_replicas": 2,
        "upscale_delay_s": 0.5,
        "look_back_period_s": 2,
        "metrics_interval_s": 1,
    }
    ingress["num_replicas"] = 1
    ingress["ray_actor_options"]["resources"] = {HEAD: 0.1}  # a test removes the other node
    return dict(configuration)


@contextlib.contextmanager
def running_cluster(directory: Path, min_replicas: int = 1, **arguments: Any) -> Iterator[RunningCluster]:
    """Start a cluster and wait until its application is ready. arguments: settings of the replicas."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    port = _free_port()
    file = directory / "serve.yaml"
    file.write_text(yaml.safe_dump(_configuration(port, min_replicas, arguments)))
    node = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "resources": {HEAD: 1}, **node}
    )
    try:
        second = cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        with (directory / "serve.log").open("wb") as output:
            serving = subprocess.Popen(
                [sys.executable, "-m", "ray.serve.scripts", "run", str(file), "--address", cluster.address],
                cwd=REPOSITORY,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running = RunningCluster(
            cluster, second, f"http://127.0.0.1:{port}", Path(cluster.head_node.get_session_dir_path()) / "logs"
        )

        def ready() -> bool:
            assert serving.poll() is None, (directory / "serve.log").read_text()
            with contextlib.suppress(httpx.TransportError):
                return running.get("/ready").status_code == 200
            return False

        try:
            eventually(ready)
            yield running
        finally:
            workers = engine_workers()
            serving.send_signal(signal.SIGINT)
            serving.wait(HANG_SECONDS)
            assert all(is_gone(worker) for worker in workers), "a worker has outlived the application"
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("ray")) as running:
        yield running
