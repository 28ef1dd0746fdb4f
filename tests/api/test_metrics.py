"""`/metrics` has the documented names, obeys the rules of `promtool check metrics`, and has correct values."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from server.ipc.wire.generate_messages import Finished, Hypothesis, Tokens
from server.ipc.wire.step_messages import Stats, StepTiming
from server.metrics import CONTENT_TYPE
from tests.api.conftest import Bench

CONTRACT = {
    "requests_total", "requests_finished_total", "requests_rejected_total", "requests_cancelled_total",
    "requests_running", "requests_waiting", "queue_tokens", "streams_open", "prompt_tokens_total",
    "model_requests_running", "model_requests_waiting",
    "generated_tokens_total", "padding_tokens_total", "wasted_tokens_total", "time_to_first_token_seconds",
    "inter_token_seconds", "request_seconds", "queue_seconds", "tokenize_seconds", "step_seconds", "batch_rows",
    "batch_tokens", "kv_blocks_used", "kv_blocks_total", "preemptions_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "speculative_drafted_tokens_total", "speculative_accepted_tokens_total",
    "worker_restarts_total", "model_load_seconds", "device_memory_bytes", "build_info", "mask_wait_seconds",
    "beam_lag_tokens", "state_bytes", "model_eager", "models", "model_bytes", "models_budget_bytes",
    "model_loads_total", "model_unloads_total", "model_load_duration_seconds", "model_from_packed_cache",
    "kv_host_bytes", "kv_host_blocks_total",
}  # fmt: skip

LABELS = {
    "route", "status", "model", "reason", "stage", "phase", "pool", "kind", "family", "version", "device", "le",
    "state", "outcome", "event",
}  # fmt: skip


async def page(http: httpx.AsyncClient) -> str:
    response = await http.get("/metrics")
    assert response.headers["content-type"] == CONTENT_TYPE
    return response.text


def value(text: str, series: str) -> float:
    found = re.search(rf"^triptych_{re.escape(series)} (\S+)$", text, re.MULTILINE)
    assert found is not None, series
    return float(found[1])


async def metrics_after_events(bench: Bench, http: httpx.AsyncClient) -> str:
    """Cause one event of every kind and return the metrics."""
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "abc", "model": "decoder"}))
    (row,) = await bench.sent_rows()
    bench.output(tokens=[Tokens(row.sequence_id, [100])])
    bench.output(tokens=[Tokens(row.sequence_id, [101])])
    whole = Finished(row.sequence_id, [Hypothesis([100, 101, 102], "length")], 0.5, 0.1, 0.1, 2)
    bench.output(finished=[whole])
    await posted
    await http.post("/generate", json={"prompt": "abc", "n": "x"})
    await http.get("/nowhere")
    await http.get("/docs")
    steps = [StepTiming("decoder", "decode", 0.01, 3, 5, 2, 0.002, [0, 3])]
    stats = Stats(
        1, 1, 2, 30, {"self": 4}, {"self": 64, "cross": 8}, {"weights": 99}, steps, 1, 6, 3, 2, {"decoder": (8, 5)},
        {"snapshots": 700}, {"decoder": 1}, {"decoder": 2}, {"spilled": 16, "restored": 9, "damaged": 1},
        {"used": 300, "total": 800},
    )  # fmt: skip
    bench.client.on_stats(stats)
    return await page(http)


async def test_names_equal_the_contract(bench: Bench, http: httpx.AsyncClient) -> None:
    text = await metrics_after_events(bench, http)
    names = set(re.findall(r"^# TYPE triptych_(\S+)", text, re.MULTILINE))
    assert names == CONTRACT


async def test_promtool_rules(bench: Bench, http: httpx.AsyncClient) -> None:
    text = await metrics_after_events(bench, http)
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), family.name
        assert re.fullmatch(r"triptych_[a-z][a-z0-9_]*", family.name)
        assert not re.search(r"_(ms|us|ns|s|ratio_percent|kb|mb|minutes|milliseconds)$", family.name)
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
            assert set(sample.labels) <= LABELS, sample.name
            if family.type != "histogram":
                assert not sample.name.endswith(("_count", "_sum", "_bucket"))
    assert "_created" not in text
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_values_after_events(bench: Bench, http: httpx.AsyncClient) -> None:
    text = await metrics_after_events(bench, http)
    assert value(text, 'requests_total{route="/generate",status="200"}') == 1
    assert value(text, 'requests_total{route="/generate",status="422"}') == 1
    assert value(text, 'requests_total{route="unmatched",status="404"}') == 1
    assert value(text, 'requests_total{route="/docs",status="200"}') == 1
    assert value(text, 'requests_finished_total{model="decoder",reason="length"}') == 1
    assert value(text, 'requests_rejected_total{reason="invalid_request"}') == 1
    assert value(text, 'prompt_tokens_total{model="decoder"}') == 3
    assert value(text, 'generated_tokens_total{model="decoder"}') == 3
    assert value(text, 'inter_token_seconds_count{model="decoder"}') == 2
    assert value(text, 'time_to_first_token_seconds_count{model="decoder"}') == 1
    assert value(text, 'queue_seconds_sum{model="decoder"}') == 0.5
    assert (value(text, "prefix_cache_queries_total"), value(text, "prefix_cache_hits_total")) == (3, 2)
    assert value(text, 'state_bytes{kind="snapshots"}') == 700
    blocks = [value(text, f'kv_host_blocks_total{{event="{event}"}}') for event in ("spilled", "restored", "damaged")]
    assert blocks == [16, 9, 1]
    assert [value(text, f'kv_host_bytes{{kind="{kind}"}}') for kind in ("used", "total")] == [300, 800]
    assert value(text, 'speculative_drafted_tokens_total{model="decoder"}') == 8
    assert value(text, 'speculative_accepted_tokens_total{model="decoder"}') == 5
    assert value(text, "tokenize_seconds_count") == 1
    assert (value(text, "requests_running"), value(text, "requests_waiting"), value(text, "queue_tokens")) == (1, 2, 30)
    by_model = [value(text, f'model_requests_{state}{{model="decoder"}}') for state in ("running", "waiting")]
    assert by_model == [1, 2]
    assert (value(text, 'kv_blocks_used{pool="self"}'), value(text, 'kv_blocks_total{pool="cross"}')) == (4, 8)
    assert value(text, 'step_seconds_sum{phase="decode"}') == 0.01
    assert (value(text, "batch_rows_sum"), value(text, "batch_tokens_sum")) == (3, 5)
    assert (value(text, "padding_tokens_total"), value(text, "wasted_tokens_total")) == (2, 6)
    assert value(text, "mask_wait_seconds_sum") == 0.002
    assert (value(text, "beam_lag_tokens_sum"), value(text, "beam_lag_tokens_count")) == (3, 2)
    assert value(text, "preemptions_total") == 1
    assert value(text, 'device_memory_bytes{kind="weights"}') == 99
    assert value(text, 'model_load_seconds{family="fake",model="decoder"}') == 0.01
    bench.client.on_lost()
    after = await page(http)
    assert (value(after, "worker_restarts_total"), value(after, "requests_running")) == (1, 0)
    assert value(after, 'kv_blocks_used{pool="self"}') == 0


@pytest.mark.parametrize("execution", ["program", "CUDA graphs", "eager: layers of the decoder (std)"])
async def test_a_model_that_runs_eagerly_is_told(bench: Bench, http: httpx.AsyncClient, execution: str) -> None:
    bench.infos = {name: replace(info, execution=execution) for name, info in bench.infos.items()}
    bench.become_ready()
    is_eager = execution.startswith("eager")
    assert value(await page(http), 'model_eager{model="decoder"}') == is_eager
    models = (await http.get("/info")).json()["models"]
    assert [model["execution"] for model in models] == [execution] * len(bench.infos)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "BREW"])
async def test_unknown_routes_add_a_bounded_number_of_series(
    bench: Bench, http: httpx.AsyncClient, method: str
) -> None:
    await http.request(method, "/seen/before")
    before = (await page(http)).count("\n")
    for number in range(100):
        await http.request(method, f"/strange/{number}")
    assert (await page(http)).count("\n") <= before + 25  # `/metrics` itself was counted for the first time
