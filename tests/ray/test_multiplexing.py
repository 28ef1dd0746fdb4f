"""The choice of a replica for a request, by the request's model. Ray need not be installed."""

from __future__ import annotations

import json
import time

import pytest

from server.ray_serve.autoscaling import model_figure, scale_on_waiting
from server.ray_serve.multiplexing import MAX_NAME, ReplicaModels, ranks, requested_model
from tests.ray.test_parts import Context


def reports(**loaded: str) -> dict[str, ReplicaModels]:
    """The reports of replicas. loaded: by replica, the names of its loaded models, separated by spaces."""
    return {name: ReplicaModels(frozenset(models.split())) for name, models in loaded.items()}


def test_replicas_with_the_model_come_first() -> None:
    assert ranks("b", reports(one="a", two="a b", three="b")) == [["two", "three"], ["one"]]
    assert ranks("b", reports(one="b", two="b")) == [["one", "two"]]
    assert ranks("b", {}) == []


def test_a_model_that_no_replica_has_goes_to_the_same_one() -> None:
    names = [f"replica-{index}" for index in range(8)]
    chosen: set[str] = set()
    for model in map(str, range(64)):
        (first,), others = ranks(model, reports(**dict.fromkeys(names, "")))
        assert ranks(model, reports(**dict.fromkeys(reversed(names), "")))[0] == [first]
        assert sorted([first, *others]) == names
        left = dict.fromkeys([name for name in names if name != others[3]], "")
        assert ranks(model, reports(**left))[0] == [first], "the loss of another replica moves no model"
        chosen.add(first)
    assert len(chosen) == len(names), "the models are spread over all replicas"


def test_one_more_replica_loads_a_model_that_is_waited_for_everywhere() -> None:
    busy = ReplicaModels(frozenset("a"), {"a": 3})
    idle = reports(three="b", four="")
    first, others = ranks("a", {"one": busy, "two": busy, **idle})
    assert first[:2] == ["one", "two"] and len(first) == 3 and len(others) == 1
    first, others = ranks("a", {"one": busy, "two": ReplicaModels(frozenset("a"), {"b": 9}), **idle})
    assert first == ["one", "two"], "one of them has no queue"


def test_a_report_survives_its_way_as_json() -> None:
    report = ReplicaModels(frozenset({"a", "b"}), {"a": 2.0})
    assert ReplicaModels.of(json.loads(json.dumps(report.to_stats()))) == report
    assert ReplicaModels.of({}) == ReplicaModels()


FORM = (
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nspeech\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/generate", b'{"prompt": "x", "model": "llm"}', "llm"),
        ("/api/show", b'{"name": "llm"}', "llm"),
        ("/models/llm", b'{"inputs": "x"}', "llm"),
        ("/models/my%20llm/load", b"{}", "my llm"),
        ("/models/load", b'{"model": "llm"}', "llm"),
        ("/v1/audio/transcriptions", FORM, "speech"),
        ("/v1/audio/transcriptions", FORM.replace(b"RIFF", bytes(1 << 20)), "speech"),
        ("/v1/audio/transcriptions", b"--x\r\n", ""),
        ("/generate", b'{"prompt": "x"}', ""),
        ("/generate", b'{"model": ["llm"]}', ""),
        ("/generate", b'["llm"]', ""),
        ("/generate", b"{", ""),
        ("/generate", b"\xff", ""),
        ("/generate", b"[" * 100_000, ""),
        ("/generate", b'{"prompt": ' + b"[" * 100_000, ""),
        ("/generate", b'{"model": "' + b"a" * 1000 + b'"}', "a" * MAX_NAME),
        ("/health", b"", ""),
    ],
)
def test_the_name_of_the_model_is_found(path: str, body: bytes, model: str) -> None:
    assert requested_model(path, body) == model


@pytest.mark.parametrize("part", [b'name="model"', b'name="model"\r\n', b'name="model"\r\nx\r\n', b"\r\n"])
def test_a_form_is_searched_in_bounded_time(part: bytes) -> None:
    """The expression holds Python's global lock. It went through the rest of the form from each place."""
    body = b"--x\r\n" + part * ((24 << 20) // len(part))
    began = time.thread_time()
    assert requested_model("/v1/audio/transcriptions", body) == ""
    assert time.thread_time() - began < 0.05


class ModelContext(Context):
    """Metrics for an autoscaling policy. by_model: running and waiting sequences in each replica, by model."""

    by_model: dict[str, tuple[list[float], list[float]]]

    @property
    def aggregated_metrics(self) -> dict[str, dict[str, float]]:
        found = dict(super().aggregated_metrics)
        for model, figures in self.by_model.items():
            for name, values in zip(("running_sequences", "waiting_sequences"), figures, strict=True):
                found[model_figure(name, model)] = dict(zip("ab", values, strict=False))
        return found


@pytest.mark.parametrize(
    ("by_model", "replicas"),
    [
        ({"mt": ([1, 0], [2, 0])}, 4),  # one replica runs it, and two more would run what waits
        ({"mt": ([2, 2], [2, 2])}, 4),
        ({"mt": ([0, 0], [5, 0])}, 3),  # it is being loaded
        ({"mt": ([20, 0], [1, 0])}, 2),  # a burst
        ({"mt": ([1, 0], [1, 0]), "llm": ([90, 0], [0, 0])}, 3),
    ],
)
def test_replicas_follow_the_waiting_sequences_of_a_single_model(by_model, replicas: int) -> None:
    context = ModelContext(running=200, waiting=5, total_num_requests=205)
    context.by_model = by_model
    assert scale_on_waiting(context) == (replicas, {})
