"""`--metrics-port` moves the monitoring routes to a second port, which may need the API key."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from server.api.app import create_monitoring, create_routes
from server.api.serve import Endpoints
from server.compose import create_app
from server.errors import StartError
from server.settings.read import load
from server.settings.settings import Settings
from tests.api.conftest import Bench


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("::1", 200), ("0.0.0.0", 401), ("10.0.0.5", 401)])
async def test_a_public_metrics_port_needs_the_key(tmp_path: Path, host: str, status: int) -> None:
    bench = Bench(tmp_path, Settings(api_keys="the-key", metrics_port=0, metrics_host=host))
    bench.become_ready()
    app = create_monitoring(bench.state)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        assert [(await http.get(path)).status_code for path in ("/health", "/ready")] == [200, 200]
        assert (await http.get("/metrics")).status_code == status
        answer = await http.get("/metrics", headers={"x-api-key": "the-key"})
        assert answer.status_code == 200 and "triptych_requests_total" in answer.text
        error = (await http.get("/info", headers={"x-api-key": "the-key"})).json()["error"]
        assert error["code"] == "not_found" and error["request_id"]
    bench.runtime.close()


def test_the_first_port_has_metrics_only_without_a_second_one(tmp_path: Path) -> None:
    for settings, has_metrics in ((Settings(), True), (Settings(metrics_port=9100), False)):
        bench = Bench(tmp_path, settings)
        assert ("/metrics" in create_routes(bench.state).openapi()["paths"]) is has_metrics
        bench.runtime.close()


def test_a_public_metrics_port_needs_a_key_in_the_settings() -> None:
    public = {"metrics_port": 9100, "metrics_host": "0.0.0.0"}
    with pytest.raises(StartError, match=r"^metrics_host 0\.0\.0\.0 is reachable from other machines, but no API key"):
        load(public).check_exposure()
    load(public | {"insecure_no_auth": True}).check_exposure()
    load(public | {"metrics_port": None}).check_exposure()


def test_a_used_port_is_named_by_its_setting() -> None:
    with Endpoints.open(load({"port": 0})) as first:
        port = first.api.getsockname()[1]
        assert (first.metrics, first.metrics_url) == (None, "") and first.url == f"http://127.0.0.1:{port}"
        with (
            pytest.raises(StartError, match=f"^metrics_port {port} on 127.0.0.1 is already in use"),
            Endpoints.open(load({"port": 0, "metrics_port": port})),
        ):
            pass


@pytest.mark.parametrize("settings", [{"metrics_port": 1}, {"tls_certificate": "a", "tls_key": "b"}])
def test_another_asgi_server_refuses_settings_of_ports(settings: dict) -> None:
    with pytest.raises(StartError, match="only `triptych serve` has this setting"):
        create_app(load(settings))
