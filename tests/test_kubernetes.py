"""The overlays in `deploy/kubernetes` can be rendered, are valid, and use only names that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.metrics import Metrics
from server.settings.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]
OVERLAYS = {"cpu", "gpu", "keda"}
CUSTOM_KINDS = {"ScaledObject", "ServiceMonitor"}
"""Kinds of objects that KEDA and the Prometheus operator define. Kubernetes has no schema for them."""


def test_every_overlay_is_tested() -> None:
    assert {folder.name for folder in (REPOSITORY / "deploy/kubernetes/overlays").iterdir()} == OVERLAYS


@pytest.fixture(scope="module", params=sorted(OVERLAYS))
def overlay(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def objects(overlay: str) -> dict[str, Any]:
    """The rendered objects of an overlay, by kind."""
    program = shutil.which("kustomize") or shutil.which("kubectl")
    if program is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    verb = "build" if Path(program).name == "kustomize" else "kustomize"
    command = [program, verb, str(REPOSITORY / "deploy/kubernetes/overlays" / overlay)]
    rendered = subprocess.run(command, capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stderr
    assert "deprecated" not in rendered.stderr
    documents = list(yaml.safe_load_all(rendered.stdout))
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def test_the_objects_fit_their_schemas(objects: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    for kind in objects.keys() - CUSTOM_KINDS:
        kubernetes_validate.validate(objects[kind], version, strict=True)


def test_an_unknown_field_does_not_fit(objects: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    damaged = {**objects["Service"], "spec": {**objects["Service"]["spec"], "port": 8000}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(damaged, kubernetes_validate.latest_version(), strict=True)


def test_the_settings_exist(objects: dict[str, Any]) -> None:
    values = {
        name.removeprefix("TRIPTYCH_").lower(): value
        for name, value in objects["ConfigMap"]["data"].items()
        if name.startswith("TRIPTYCH_")
    }
    container = _container(objects)
    names = {entry["name"] for entry in container["env"]}
    assert {"TRIPTYCH_API_KEYS", "HF_TOKEN"} == names
    settings = Settings(**values, host="0.0.0.0", api_keys="key")
    assert settings.metrics_port == 9100
    assert container["envFrom"][0]["configMapRef"]["name"] == objects["ConfigMap"]["metadata"]["name"]


def test_probes_and_ports(objects: dict[str, Any]) -> None:
    container = _container(objects)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": Settings.model_fields["port"].default, "metrics": 9100}
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/ready", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert all(container[name]["httpGet"]["port"] in ports for name in paths)
    assert {port["targetPort"] for port in objects["Service"]["spec"]["ports"]} == ports.keys()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    grace = Settings.model_fields["grace_seconds"].default + int(
        container["lifecycle"]["preStop"]["exec"]["command"][1]
    )
    assert pod["terminationGracePeriodSeconds"] >= grace + 10


def test_the_pod_is_the_user_of_the_image_and_owns_its_volume(objects: dict[str, Any]) -> None:
    user = int(re.findall(r"^USER (\d+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)[-1])
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    mounts = {mount["mountPath"]: mount["name"] for mount in _container(objects)["volumeMounts"]}
    claims = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert claims[mounts["/models"]] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert mounts.keys() == {"/models", "/tmp"}


def test_every_selector_finds_the_pods(objects: dict[str, Any]) -> None:
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert labels >= objects["Service"]["spec"]["selector"].items()
    assert labels >= objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items()


def test_the_parts_of_each_overlay(objects: dict[str, Any], overlay: str) -> None:
    container = _container(objects)
    target = {"gpu": "cuda"}.get(overlay, "cpu")
    assert container["image"] == f"triptych:{target}"
    assert re.search(rf"^FROM runtime AS {target}$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert (container["resources"]["limits"].get("nvidia.com/gpu") == "1") == (overlay == "gpu")
    assert objects["ConfigMap"]["data"].get("TRIPTYCH_DEVICE") == ("cuda" if overlay == "gpu" else None)
    assert (objects.keys() >= CUSTOM_KINDS) == (overlay == "keda")
    if overlay == "keda":
        _check_scaling(objects)


def _check_scaling(objects: dict[str, Any]) -> None:
    monitor, scaled = objects["ServiceMonitor"], objects["ScaledObject"]
    assert objects["Deployment"]["metadata"]["name"] == scaled["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in objects["Deployment"]["spec"], "applying the files again must not undo the scaling"
    assert objects["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    service = objects["Service"]
    assert service["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    secret = _container(objects)["env"][0]["valueFrom"]["secretKeyRef"]["name"]
    assert endpoint["authorization"]["credentials"]["name"] == secret
    (trigger,) = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    (metric,) = re.findall(r"triptych_\w+(?=\{)", query)
    assert f"# TYPE {metric} gauge" in Metrics().render().decode()
    (job,) = re.findall(r'job="(\w+)"', query)
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == job


def _container(objects: dict[str, Any]) -> dict[str, Any]:
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = (REPOSITORY / "deploy/systemd/triptych.service").read_text()
    unit = tmp_path / "triptych.service"
    unit.write_text(text.replace("/opt/triptych/bin/triptych", sys.executable))
    result = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    flags = set(re.findall(r" --([a-z-]+)", re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0])) - {"config"}
    assert {flag.replace("-", "_") for flag in flags} <= Settings.model_fields.keys()
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(timeout) >= Settings.model_fields["grace_seconds"].default + 10
