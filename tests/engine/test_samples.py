"""A speech model whose encoder reads audio samples: in the engine it equals transformers, alone and in a batch."""

from __future__ import annotations

import random

import pytest
import torch

from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import build
from server.ipc.wire.descriptions import EngineOptions, ModelSpec
from server.ipc.wire.fit import sequence_sizes
from server.ipc.wire.generate_messages import Generate
from tests.engine.harness import Pair, Results, run
from tests.ipc.one_row import id_of, one_row
from tests.parity import moonshine
from tests.parity.checkpoints import load
from tests.parity.speech import recording

START, END = moonshine.START, moonshine.END
SHAPES = dict.fromkeys(moonshine.SHAPES, moonshine.write)
SECONDS = (0.9, 0.07, 1.47, 0.31, 2.2, 0.6)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device) -> Pair:
    directory = tmp_path_factory.mktemp(request.param)
    oracle = SHAPES[request.param](directory, request.param).to(device)
    spec = ModelSpec(request.param, str(directory), "float32")
    return Pair(request.param, oracle, LoadedCheckpoint(spec, load(directory, device), torch.float32, device, 0.0))


CLIPS = [recording(seconds, seed) for seed, seconds in enumerate(SECONDS)]


def transcribe(pair: Pair, sequence_id: int, samples, **params) -> Generate:
    settings = {"max_new_tokens": 20, "end_token_ids": [END], **params}
    return one_row(sequence_id, pair.name, [], [START], frames=samples.astype("<f4").tobytes(), **settings)


@torch.inference_mode()
def reference(pair: Pair, samples, **settings) -> tuple[list[list[int]], list[float]]:
    """The tokens and the scores of the hypotheses that transformers generates."""
    output = pair.oracle.generate(
        **moonshine.inputs(pair.oracle, torch.from_numpy(samples).to(pair.oracle.device)),
        do_sample=False,
        max_new_tokens=20,
        max_length=None,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    texts = []
    for row in output.sequences[:, 1:].tolist():
        texts.append(row[: next((i + 1 for i, token in enumerate(row) if token == END), len(row))])
    scores = [] if output.get("sequences_scores") is None else output.sequences_scores.tolist()
    return texts, scores


def test_greedy_text_equals_transformers(pair):
    results = run(pair.engine(), [transcribe(pair, i, clip) for i, clip in enumerate(CLIPS)])
    texts = [results.texts(i) for i in range(len(CLIPS))]
    assert texts == [reference(pair, clip)[0] for clip in CLIPS]
    assert len({tuple(text[0]) for text in texts}) > 3


def test_four_beams_equal_transformers(pair):
    settings = {"num_beams": 4, "num_return_sequences": 4}
    results = run(pair.engine(), [transcribe(pair, i, clip, **settings) for i, clip in enumerate(CLIPS)])
    for index, clip in enumerate(CLIPS):
        texts, scores = reference(pair, clip, **settings)
        assert results.texts(index) == texts
        assert [found.score for found in results.finished[index].hypotheses] == pytest.approx(scores, abs=1e-4)


def mixed_requests(pair: Pair) -> list[Generate]:
    settings = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 5, "temperature": 0.8}, {"logprobs": True}]
    return [transcribe(pair, i, CLIPS[i % 6], max_new_tokens=6 + i, **settings[i % 4]) for i in range(12)]


def answers(results: Results) -> dict:
    assert not results.failed
    return {sequence_id: results.texts(sequence_id) for sequence_id in results.finished}


@pytest.mark.parametrize("max_batch_tokens, block_size", [(512, 4), (5, 1), (64, 32)])
def test_alone_equals_batched(pair, max_batch_tokens, block_size):
    alone = {id_of(one): run(pair.engine(), [one]).texts(id_of(one)) for one in mixed_requests(pair)}
    requests = mixed_requests(pair)
    random.Random(3).shuffle(requests)
    engine = pair.engine(max_batch_tokens=max_batch_tokens, block_size=block_size)
    assert answers(run(engine, requests, every=2)) == alone


def test_a_recording_takes_blocks_for_its_length(pair):
    """A recording takes KV blocks for its own length, because samples are not padded, unlike log-mel frames."""
    engine = pair.engine(block_size=4)
    embedding = pair.loaded.samples
    tokens = embedding.num_tokens(len(CLIPS[2]))
    engine.add(transcribe(pair, 1, CLIPS[2]))
    assert engine.stats().queue_tokens == tokens + 1
    engine.step()
    assert engine.stats().kv_blocks_used["cross"] == -(-tokens // 4)


@pytest.mark.parametrize("num_bytes", [0, 4 * 16_000 + 1, 4 * 16_000 * 40])
def test_samples_of_a_wrong_size_fail_alone(pair, num_bytes):
    wrong = one_row(9, pair.name, [], [START], frames=bytes(num_bytes), max_new_tokens=4, end_token_ids=[END])
    results = run(pair.engine(), [wrong, transcribe(pair, 1, CLIPS[0])])
    assert set(results.failed) == {9} and set(results.finished) == {1}


def test_the_http_process_counts_the_tokens_of_a_recording(pair):
    _, info = build(pair.loaded, EngineOptions(), 1 << 22)
    embedding = pair.loaded.samples
    for clip in CLIPS:
        expected = embedding.num_tokens(len(clip)) + 1
        assert sequence_sizes(transcribe(pair, 1, clip), info) == [expected]


def test_samples_that_are_too_few_for_a_token_fail(pair):
    few = pair.loaded.samples.min_samples - 1
    wrong = one_row(9, pair.name, [], [START], frames=bytes(4 * few), max_new_tokens=4, end_token_ids=[END])
    assert set(run(pair.engine(), [wrong]).failed) == {9}
