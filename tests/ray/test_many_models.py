"""Two replicas on two nodes that declare the same models: only one of them loads each model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.ray.conftest import running_cluster
from tests.waiting import eventually

pytestmark = pytest.mark.ray

REQUESTS = {
    "story": ("/generate", {"prompt": "Once upon a time", "max_new_tokens": 4}),
    "translator-en-fr": ("/translate", {"inputs": ["I am a student"], "source_lang": "en", "target_lang": "fr"}),
    "sentence-encoder": ("/embed", {"inputs": ["The dog chased the cat."]}),
    "sentiment": ("/classify", {"inputs": "I loved this wonderful film"}),
}


def test_requests_go_where_their_model_is_loaded(tmp_path: Path) -> None:
    from server.ray_serve.application import ROUTING_SECONDS  # which needs Ray

    with running_cluster(tmp_path, min_replicas=2, memory="2G") as cluster:
        eventually(lambda: len(cluster.replica_names()) == 2)
        for _ in range(3):
            for name, (path, body) in REQUESTS.items():
                answers = [cluster.post(path, body | {"model": name}) for _ in range(3)]
                assert [answer.status_code for answer in answers] == [200] * 3
            time.sleep(3 * ROUTING_SECONDS)
        assert cluster.metric("triptych_model_loads_total", outcome="loaded") == len(REQUESTS)
