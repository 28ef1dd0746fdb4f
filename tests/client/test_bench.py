"""The load generator: arrivals, lengths, accounting, statistics, and runs against a fake server."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.cli import main
from server.client.bench.breakdown import breakdown_table
from server.client.bench.command import add_arguments, make_jobs
from server.client.bench.dialects import ROUTES, measure
from server.client.bench.lengths import make_prompt, parse_lengths
from server.client.bench.load import Job, Sample, closed_loop, open_loop, poisson_arrivals
from server.client.bench.summary import Level, percentile, spread, table
from server.client.connection import Connection, ServerAddress
from tests.client.fake_server import FakeRequest, Reply, error, events, fake_server

JOB = Job("some words", 5)


class FakeClock:
    """A simulated clock. late: seconds by which every sleep is too long."""

    def __init__(self, late: float = 0.0) -> None:
        self.seconds = 100.0
        self.late = late

    def now(self) -> float:
        return self.seconds

    async def sleep_until(self, when: float) -> None:
        await asyncio.sleep(0)  # existing tasks start before the clock moves
        self.seconds = max(self.seconds, when + self.late)


async def test_slow_answers_do_not_delay_arrivals() -> None:
    """Requests are sent at their planned times although no answer arrives before the last request is sent.

    A client that waits for answers would never end.
    """
    clock, all_sent = FakeClock(), asyncio.Event()
    due: list[float] = []

    async def send(job: Job, when: float) -> Sample:
        due.append(when)
        assert clock.now() == when
        if len(due) == 20:
            all_sent.set()
        await all_sent.wait()
        return Sample(when, when, [clock.now()], clock.now())

    arrivals = [0.5 * number for number in range(20)]
    async with asyncio.timeout(30):
        samples = await open_loop([JOB] * 20, arrivals, send, clock)
    assert due == [100 + arrival for arrival in arrivals]
    level = Level("2 requests/s", samples)
    assert level.first_token_seconds() == [9.5 - arrival for arrival in arrivals]


async def test_a_late_client_counts_from_the_arrival() -> None:
    clock = FakeClock(late=0.25)

    async def send(job: Job, when: float) -> Sample:
        return Sample(when, clock.now(), [clock.now() + 1], clock.now() + 2)

    level = Level("1 requests/s", await open_loop([JOB] * 3, [1.0, 2.0, 3.0], send, clock))
    assert level.first_token_seconds() == [1.25] * 3 and level.latency_seconds() == [2.25] * 3
    assert level.late_seconds() == [0.25] * 3
    assert "sent up to 250 ms late" in table([level])


async def test_the_open_loop_ends_at_its_time() -> None:
    async def send(job: Job, when: float) -> Sample:
        return Sample(when, when, [], when)

    samples = await open_loop(itertools.repeat(JOB), itertools.count(1), send, FakeClock(), seconds=4.5)
    assert [sample.due for sample in samples] == [101, 102, 103, 104]


async def test_the_closed_loop_keeps_its_concurrency() -> None:
    clock = FakeClock()
    running = most = 0

    async def send(job: Job, when: float) -> Sample:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        clock.seconds += 1
        running -= 1
        return Sample(when, when, [], clock.now())

    samples = await closed_loop(itertools.repeat(JOB, 20), 4, send, clock)
    assert len(samples) == 20 and most == 4
    assert all(after.due in {100, *(before.ended for before in samples)} for after in samples)
    assert len(await closed_loop(itertools.repeat(JOB), 2, send, clock, seconds=10)) in (10, 11)


def test_poisson_arrivals() -> None:
    arrivals = list(itertools.islice(poisson_arrivals(8.0, random.Random(1)), 20_000))
    gaps = [after - before for before, after in itertools.pairwise(arrivals)]
    assert min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 8, rel=0.05)  # as for exponential gaps
    assert arrivals == list(itertools.islice(poisson_arrivals(8.0, random.Random(1)), 20_000))


def lengths(text: str, count: int = 5000) -> list[int]:
    return list(itertools.islice(parse_lengths(text).draw(random.Random(3)), count))


def test_lengths(tmp_path: Path) -> None:
    assert set(lengths("7")) == {7}
    assert set(lengths("uniform:3,6")) == {3, 4, 5, 6}
    drawn = lengths("lognormal:100,0.5")
    assert min(drawn) >= 1 and statistics.median(drawn) == pytest.approx(100, rel=0.05)
    assert statistics.mean(drawn) == pytest.approx(100 * 2.718281828 ** (0.5**2 / 2), rel=0.05)
    (tmp_path / "lengths").write_text("5\n9\n")
    assert lengths(f"file:{tmp_path / 'lengths'}", 5) == [5, 9, 5, 9, 5]


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-3",
        "x",
        "uniform:5",
        "uniform:9,3",
        "uniform:0,3",
        "lognormal:100",
        "lognormal:0,1",
        "normal:1,2",
        "file:/no/such",
        "fixed:3",
    ],
)
def test_wrong_lengths(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_lengths(text)


def test_prompts_are_words_of_a_seed() -> None:
    prompt = make_prompt(50, random.Random(1))
    assert len(prompt.split(" ")) == 50 and prompt == make_prompt(50, random.Random(1)) != make_prompt(
        50, random.Random(2)
    )


def test_prompts_share_their_first_words() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    prompts = []
    for seed in (1, 2):
        arguments = parser.parse_args(["http://server", "--shared-words", "5", "--prompt-words", "3"])
        prompts += [job.prompt.split(" ") for job in itertools.islice(make_jobs(arguments, [], random.Random(seed)), 2)]
    assert len({tuple(words[:5]) for words in prompts}) == 1 and len({tuple(words[5:]) for words in prompts}) == 4
    arguments = parser.parse_args(["http://server", "--shared-words", "2"])
    assert next(make_jobs(arguments, ["a"], random.Random(1))).prompt.endswith(" a")


def test_the_share_from_the_cache_counts_answers_that_name_it() -> None:
    samples = [Sample(0, 0, [1], 2, prompt_tokens=30, cached_tokens=24), Sample(0, 0, [1], 2, prompt_tokens=10)]
    level = Level("1 at a time", samples)
    assert level.cached_share() == level.as_json()["cached_prompt_share"] == 0.8
    assert Level("1 at a time", samples[1:]).cached_share() is None
    counted = [Sample(0, 0, [1], 2, prompt_tokens=30, completion_tokens=2, cached_tokens=24)]
    assert "prompt tokens from the cache" in table([Level("1 at a time", counted)])


def test_percentiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    values = [random.Random(5).random() for _ in range(37)] + [3.0, 1.0]
    for percent in (0, 1, 50, 90, 99, 100):
        assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))
    assert spread([]) is None and spread([2.0])["p99"] == 2.0


class SteppingClock(FakeClock):
    """A simulated clock that advances by one second with each reading."""

    def now(self) -> float:
        self.seconds += 1
        return self.seconds


async def sample_of(reply: Reply | Exception, route: tuple[str, str]) -> Sample:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status, headers=dict(reply.headers), content=reply.encode())

    connection = Connection(ServerAddress("http://server", retries=0), httpx.MockTransport(handle))
    return await measure(connection, ROUTES[route], JOB, 100.0, {}, SteppingClock())


OPENAI = [
    ("", {"choices": [{"index": 0, "text": "a"}]}),
    ("", {"choices": [{"index": 0, "text": "b"}]}),
    ("", {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}),
]
COUNTS = {"prompt_tokens": 3, "completion_tokens": 5}
USAGE = ("", {"choices": [], "usage": {**COUNTS, "prompt_tokens_details": {"cached_tokens": 2}}})
CHAT = [
    ("", {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    ("", {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}),
    ("", {"choices": [{"index": 0, "delta": {"content": "a"}}]}),
    ("", {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
]
NATIVE = [
    ("token", {"text": "a", "tokens": [{"id": 1}, {"id": 2}]}),
    ("token", {"text": "b", "tokens": [{"id": 3}]}),
    ("done", {"choices": [{"text": "ab"}], "usage": {**COUNTS, "cached_tokens": 2}}),
]
DONE = ("", "[DONE]")


@pytest.mark.parametrize(
    ("route", "stream", "times", "tokens"),
    [
        (("openai", "generate"), [*OPENAI, USAGE, DONE], [102, 103], 5),
        (("openai", "generate"), [*OPENAI, DONE], [102, 103], None),
        (("openai", "chat"), [*CHAT, USAGE, DONE], [103, 104], 5),
        (("native", "generate"), NATIVE, [102, 103], 5),
    ],
)
async def test_token_times(route: tuple[str, str], stream: list, times: Sequence[int], tokens: int | None) -> None:
    sample = await sample_of(events(*stream), route)
    assert sample.error is None and sample.sent == 101 and sample.times == times
    assert sample.completion_tokens == tokens and sample.ended > times[-1]
    assert sample.cached_tokens == (2 if tokens else None)
    level = Level("1 at a time", [sample])
    assert level.output_tokens() == (tokens or 2)
    assert level.counted_by == ("usage" if tokens else "events")


@pytest.mark.parametrize(
    ("reply", "route", "kind"),
    [
        (error(429, "full"), ("openai", "generate"), "HTTP 429"),
        (error(500, "engine"), ("native", "embed"), "HTTP 500"),
        (events(*OPENAI), ("openai", "generate"), "broken stream"),
        (events(*NATIVE[:1]), ("native", "generate"), "broken stream"),
        (
            events(NATIVE[0], ("done", {"choices": [{"text": "a", "finish_reason": "timeout"}]})),
            ("native", "generate"),
            "timeout",
        ),
        (events(NATIVE[0], ("error", {"error": {"message": "x"}})), ("native", "generate"), "error event"),
        (events(OPENAI[0], ("", {"error": {"message": "x"}})), ("openai", "generate"), "error event"),
        (httpx.ReadTimeout("slow"), ("openai", "generate"), "timeout"),
        (httpx.ConnectError("refused"), ("openai", "generate"), "connection"),
    ],
)
async def test_errors_have_classes(reply: Reply | Exception, route: tuple[str, str], kind: str) -> None:
    sample = await sample_of(reply, route)
    assert sample.error == kind
    level = Level("1 at a time", [sample, await sample_of(events(*OPENAI, USAGE, DONE), ("openai", "generate"))])
    assert level.errors == {kind: 1} and len(level.succeeded) == 1 and level.output_tokens() == 5


async def test_embeddings_have_usage() -> None:
    reply = Reply({"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 9, "total_tokens": 9}})
    sample = await sample_of(reply, ("openai", "embed"))
    assert sample.error is None and sample.prompt_tokens == 9 and sample.times == []


def test_statistics() -> None:
    samples = [
        Sample(0.0, 0.0, [1.0, 1.5, 2.5], 3.0, 10, 6),
        Sample(1.0, 1.0, [2.0], 5.0, 10, 4),
        Sample(2.0, 2.0, [], 2.5, error="HTTP 429", message="full (HTTP 429)"),
    ]
    result = Level("2 at a time", samples).as_json()
    assert (
        result["seconds"] == 5.0 and result["requests_per_second"] == 0.4 and result["output_tokens_per_second"] == 2.0
    )
    assert result["errors"] == {"HTTP 429": 1} and result["prompt_tokens"] == 20
    assert result["first_token_seconds"]["mean"] == 1.0 and result["inter_token_seconds"]["p50"] == 0.75
    assert result["latency_seconds"]["max"] == 4.0
    shown = table([Level("2 at a time", samples)])
    assert "1 failed: full (HTTP 429)" in shown and "sent up to" not in shown


def answer(request: FakeRequest) -> Reply:
    if request.path == "/v1/models":
        return Reply({"data": [{"id": "llm"}]})
    if request.path.endswith("embeddings"):
        return Reply({"usage": {"prompt_tokens": 2}})
    return events(*OPENAI, USAGE, DONE) if request.path.startswith("/v1") else events(*NATIVE)


def bench(server_answer: Any, *argv: str, status: int = 0) -> list[FakeRequest]:
    with fake_server(server_answer) as server:
        try:
            main(["bench", server.url, *argv])
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
    assert code == status
    return server.requests


def test_a_run_with_several_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "results.json"), "--plot", str(tmp_path / "plot.svg")]
    argv = ["--concurrency", "1,2", "--requests", "5", "--warmup", "3", "--prompt-words", "uniform:2,4", "--ignore-eos"]
    requests = bench(answer, *argv, "--output-tokens", "7", "--extra", '{"user": "me"}', *files)
    sent = [request.body for request in requests if request.body]
    assert len(sent) == 2 * (5 + 3)  # the warm-up is sent, and not measured
    assert {len(body["prompt"].split()) for body in sent} <= {2, 3, 4}
    assert len({body["prompt"] for body in sent}) > 8
    first = sent[0]
    assert first["max_tokens"] == 7 and first["stream_options"] == {"include_usage": True} and first["model"] == "llm"
    assert first["ignore_eos"] is True and first["temperature"] == 0 and first["user"] == "me"
    shown = capsys.readouterr().out
    assert "1 at a time" in shown and "inter-token, ms, p99" in shown
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(level["load"], level["requests"], level["output_tokens"]) for level in results["levels"]] == [
        ("1 at a time", 5, 25),
        ("2 at a time", 5, 25),
    ]
    assert results["model"] == "llm" and results["route"] == "/v1/completions"
    texts = [text.text for text in ElementTree.parse(tmp_path / "plot.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"first token p50", "first token p99", "inter-token p99", "requests at a time"} <= set(texts)
    again = [request.body["prompt"] for request in bench(answer, *argv) if request.body]
    assert sorted(again) == sorted(body["prompt"] for body in sent)


def test_rates_tasks_and_prompts_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    argv = ["--dialect", "native", "--rate", "200", "--duration", "0.2", "--prompts", str(tmp_path / "prompts")]
    requests = bench(answer, *argv, "--plot", str(tmp_path / "plot.svg"))
    assert {request.path for request in requests} == {"/generate"}
    assert {request.body["prompt"] for request in requests} == {"one", "two"}
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 2 * (len(requests) - 4)
    bench(answer, "--task", "embed", "--requests", "3", "--json", "-")
    result = json.loads(capsys.readouterr().out.rpartition("\n{\n")[2].join(["{\n", ""]))
    assert result["levels"][0]["first_token_seconds"] is None and result["levels"][0]["prompt_tokens"] == 6


def test_shared_words_show_what_the_prefix_cache_found(capsys: pytest.CaptureFixture[str]) -> None:
    page = b'# TYPE triptych_state_bytes gauge\ntriptych_state_bytes{kind="snapshots"} 3.145728e+06\n'

    def with_metrics(request: FakeRequest) -> Reply:
        return Reply(page) if request.path == "/metrics" else answer(request)

    argv = ["--requests", "2", "--warmup", "1", "--shared-words", "4", "--prompt-words", "3"]
    requests = bench(with_metrics, *argv, "--json", "-")
    assert len({tuple(request.body["prompt"].split()[:4]) for request in requests if request.body}) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["snapshot_bytes"] == 3 << 20 and result["shared_words"] == 4
    assert result["levels"][0]["cached_prompt_share"] == pytest.approx(2 / 3)
    bench(with_metrics, *argv)
    shown = capsys.readouterr().out
    assert "66.7%" in shown and "snapshots of states in the prefix cache: 3.0 MiB" in shown
    bench(answer, *argv)
    assert "snapshots" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "server_answer", "status", "message"),
    [
        (["--task", "translate"], answer, 2, "--dialect openai has no task translate, only generate, chat, embed"),
        ([], lambda request: Reply({"data": [{"id": "a"}, {"id": "b"}]}), 2, "choose a model with --model: a, b"),
        (["-m", "a", "--requests", "2"], lambda request: error(429, "full"), 1, "no request succeeded"),
        (["--rate", "0"], answer, 2, "--rate: write a number above 0"),
        (["--rate", "1", "--concurrency", "1"], answer, 2, "not allowed with"),
        (["-m", "a", "--rate", "0.001", "--duration", "0.01"], answer, 2, "too short"),
        (["--prompts", "/no/such/file"], answer, 2, "--prompts: cannot read"),
    ],
)
def test_errors_are_one_line(
    argv: list[str], server_answer: Any, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(server_answer, *argv, status=status)
    shown = capsys.readouterr().err
    assert shown.startswith("triptych: ") and message in shown and shown.count("\n") == 1


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "http://127.0.0.1:1", "-m", "a"])
    assert stop.value.code == 2 and "no server answers" in capsys.readouterr().err


async def test_the_parts_of_the_time_are_asked_for_and_read() -> None:
    """With `breakdown`, the client asks for the parts of the time and reads them. It does not ask for a stream then."""
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        header = {"server-timing": "arrival;dur=1.5, tokenize;dur=0.5, cache, step;dur=20.0, hand_back;dur=x"}
        return httpx.Response(200, headers=header, json={"usage": COUNTS})

    connection = Connection(ServerAddress("http://server", retries=0), httpx.MockTransport(handle))
    sample = await measure(connection, ROUTES["openai", "generate"], JOB, 100.0, {}, SteppingClock(), breakdown=True)
    assert sample.error is None and sample.parts == {"arrival": 0.0015, "tokenize": 0.0005, "step": 0.02}
    assert seen[0].headers["x-breakdown"] == "1" and "stream" not in json.loads(seen[0].content)
    plain = await measure(connection, ROUTES["native", "embed"], JOB, 100.0, {}, SteppingClock())
    assert "x-breakdown" not in seen[1].headers and plain.error is None


def test_the_table_of_parts_has_their_shares_and_the_rest() -> None:
    parts = {"arrival": 0.001, "step": 0.006, "compile_format": 0.001}
    samples = [Sample(0.0, 0.0, ended=0.010, parts=parts), Sample(0.0, 0.0, ended=0.5, error="timeout")]
    lines = breakdown_table([Level("1 at a time", samples)]).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "1 at a time, ms",
        "arrival: received, checked, admitted",
        "step: the model",
        "compile_format",
        "client, connection and HTTP library",
    ]
    assert [line.split()[-1] for line in lines[1:]] == ["10.0%", "60.0%", "10.0%", "20.0%"]
    assert "reports no parts" in breakdown_table([Level("1 at a time", [Sample(0.0, 0.0, ended=1.0)])])
