"""A speech model in the engine equals transformers: alone, in a batch, and with text models in the same engine."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers.generation import GenerationMixin
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from models.layers.log_mel import LogMel
from server.audio.token_times import token_times
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.scheduling.schedule import SOURCE_TOKENS_PER_TOKEN
from server.ipc.client.submission import pick_rows
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.encode_messages import Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.logprobs import Logprobs
from server.ipc.wire.params import PromptProbe, SpeechAlignment, TimestampRules
from tests.engine.harness import Pair, Results, engine, generate, make_pair, run
from tests.ipc.one_row import id_of, one_row
from tests.parity.checkpoints import load, random_ids
from tests.parity.speech import (
    END,
    FIRST_TIME,
    LANGUAGES,
    NO_SPEECH,
    NO_TIMESTAMPS,
    SHAPES,
    START,
    START_OF_PREVIOUS,
    TRANSCRIBE,
    frames_of,
    recording,
    write,
)

PREFIX = [START, LANGUAGES["<|de|>"], TRANSCRIBE]
TIMES = TimestampRules(FIRST_TIME, 5)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, device) -> Pair:
    return make_speech_pair(request.param, tmp_path_factory.mktemp(request.param), device)


def make_speech_pair(name, directory, device) -> Pair:
    oracle = write(directory, name).to(device)
    return Pair(
        name,
        oracle,
        LoadedCheckpoint(
            ModelSpec(name, str(directory), "float32"), load(directory, device), torch.float32, device, 0.0
        ),
    )


def random_frames(pair: Pair, count: int) -> list[torch.Tensor]:
    config = pair.oracle.config
    return frames_of(count, config.num_mel_bins, 2 * config.max_source_positions, seed=7)


def transcribe(pair: Pair, sequence_id: int, frames: torch.Tensor, prefix=PREFIX, **params) -> Generate:
    settings = {"max_new_tokens": 20, "end_token_ids": [END], **params}
    return one_row(sequence_id, pair.name, [], prefix, frames=frames.numpy().astype("<f4").tobytes(), **settings)


@torch.inference_mode()
def reference(pair: Pair, frames: torch.Tensor, prefix, **settings) -> list[list[int]]:
    """The tokens that transformers generates without the long-form logic of Whisper's `generate`."""
    device = pair.oracle.device
    output = GenerationMixin.generate(
        pair.oracle,
        frames.T[None].to(device),
        decoder_input_ids=torch.tensor([[*prefix]], device=device),
        do_sample=False,
        max_new_tokens=20,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        max_length=None,
        **settings,
    )
    texts = []
    for row in output[:, len(prefix) :].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token == END), len(row))
        texts.append(row[:end])
    return texts


def test_greedy_text_equals_transformers(pair):
    recordings = random_frames(pair, 6)
    results = run(pair.engine(), [transcribe(pair, i, frames) for i, frames in enumerate(recordings)])
    texts = [results.texts(i) for i in range(6)]
    assert texts == [reference(pair, frames, PREFIX) for frames in recordings]
    assert len({tuple(text[0]) for text in texts}) > 3


def test_four_beams_equal_transformers(pair):
    recordings = random_frames(pair, 4)
    settings = {"num_beams": 4, "num_return_sequences": 4}
    results = run(pair.engine(), [transcribe(pair, i, frames, **settings) for i, frames in enumerate(recordings)])
    assert [results.texts(i) for i in range(4)] == [
        reference(pair, frames, PREFIX, **settings) for frames in recordings
    ]


def mixed_requests(pair: Pair) -> list[Generate]:
    requests = []
    for i, frames in enumerate(random_frames(pair, 15)):
        settings = [
            {},
            {"timestamps": TIMES, "suppress_token_ids": [NO_TIMESTAMPS]},
            {"num_beams": 3, "timestamps": TIMES},
            {"do_sample": True, "seed": i, "temperature": 0.8, "timestamps": TIMES},
            {"num_beams": 2, "num_return_sequences": 2, "begin_suppress_token_ids": [5, END], "logprobs": True},
        ][i % 5]
        requests.append(transcribe(pair, i, frames, max_new_tokens=8 + i, **settings))
    return requests


@pytest.fixture(scope="module")
def alone(pair):
    return {id_of(request): run(pair.engine(), [request]).texts(id_of(request)) for request in mixed_requests(pair)}


def answers(results: Results) -> dict:
    assert not results.failed
    return {sequence_id: results.texts(sequence_id) for sequence_id in results.finished}


@pytest.mark.parametrize("max_batch_tokens, block_size", [(512, 4), (5, 1), (64, 32)])
def test_alone_equals_batched(pair, alone, max_batch_tokens, block_size):
    one = pair.engine(max_batch_tokens=max_batch_tokens, block_size=block_size)
    requests = mixed_requests(pair)
    random.Random(3).shuffle(requests)
    assert answers(run(one, requests, every=2)) == alone


def test_preempted_and_computed_again_without_encoding_twice(pair, alone, monkeypatch):
    one = pair.engine()
    model = one.models[pair.name].generation
    pool = model.scheduler.blocks.self_pool
    model.scheduler.blocks.self_pool = type(pool)(3 * pool.blocks_for(len(PREFIX) + 22), pool.block_size)
    encoded_lengths = []
    encode = model.runner.model.encode
    monkeypatch.setattr(
        model.runner.model, "encode", lambda batch: encoded_lengths.extend(batch.lengths) or encode(batch)
    )
    assert answers(run(one, mixed_requests(pair))) == alone
    assert model.scheduler.num_preemptions > 0
    assert len(encoded_lengths) == 15 and set(encoded_lengths) == {pair.oracle.config.max_source_positions}


def test_an_audio_source_counts_as_its_positions(pair):
    positions = pair.oracle.config.max_source_positions
    one = pair.engine(max_batch_tokens=2 * -(-positions // SOURCE_TOKENS_PER_TOKEN) + 9)
    for request in mixed_requests(pair)[:4]:
        one.add(request)
    assert one.stats().queue_tokens == 4 * (positions + len(PREFIX))
    schedule = one.models[pair.name].generation.scheduler.schedule()
    assert len(schedule.sources) == 2, "a third source would exceed max_batch_tokens"
    used = one.stats().kv_blocks_used["cross"]
    assert used == 2 * -(-positions // 4)


def test_an_aborted_request_frees_its_blocks(pair):
    one = pair.engine()
    for request in mixed_requests(pair):
        one.add(request)
    results = Results()
    for _ in range(4):
        results.take(one.step())
    assert one.stats().kv_blocks_used["cross"] > 0
    for request in mixed_requests(pair):
        one.abort(id_of(request))
    assert set(one.stats().kv_blocks_used.values()) == {0} and not one.has_work


def test_with_text_models_in_one_engine(pair, alone, tmp_path, device):
    texts = [make_pair("bart", tmp_path / "bart", device), make_pair("gpt2", tmp_path / "gpt2", device)]
    prompts = random_ids(97, [5, 17, 9], seed=4)
    others = [generate(text, 100 + 10 * at + i, p) for at, text in enumerate(texts) for i, p in enumerate(prompts)]
    apart = {id_of(r): run(texts[(id_of(r) - 100) // 10].engine(), [r]).texts(id_of(r)) for r in others}
    mixed = [*mixed_requests(pair), *others]
    random.Random(5).shuffle(mixed)
    together = engine([pair, *texts], block_size=4, kv_cache_bytes=1 << 23)
    assert answers(run(together, mixed, every=1)) == alone | apart


def test_log_mel_frames(pair, device):
    num_mels = pair.oracle.config.num_mel_bins
    pieces = [recording(0.025 + 0.07 * i, seed=i) for i in range(5)]
    items = [EncodeItem([], samples=piece.astype("<f4").tobytes()) for piece in pieces]
    results = run(pair.engine(), [Encode(1, pair.name, "log_mel", items), *mixed_requests(pair)[:3]])
    for i, piece in enumerate(pieces):
        found = np.frombuffer(results.encoded[1, i], "<f4").reshape(-1, num_mels)
        expected = LogMel(num_mels)(torch.from_numpy(piece).to(device)).cpu().numpy()
        assert results.rows[1, i] == len(expected) == (len(piece) - 400) // 160 + 1
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("size", [0, 4 * 399, 4 * 400 + 1, 4 * 160 * 200])
def test_audio_of_a_wrong_size_is_refused(pair, size):
    results = run(pair.engine(), [Encode(1, pair.name, "log_mel", [EncodeItem([], samples=bytes(size))])])
    assert "bytes" in results.failed[1].message


def test_invalid_messages_are_refused(pair, tmp_path, device):
    (frames,) = random_frames(pair, 1)
    text = make_pair("bart", tmp_path, device)
    wrong = [
        transcribe(pair, 1, frames[:-1]),
        one_row(2, pair.name, [5, 6], PREFIX, max_new_tokens=5),
        transcribe(pair, 3, frames, prefix=[]),
        transcribe(pair, 4, frames, timestamps=TimestampRules(10_000)),
        transcribe(pair, 5, frames, timestamps=TIMES, end_token_ids=[]),
        one_row(6, "bart", [5], [2], max_new_tokens=5, frames=bytes(64)),
        Encode(7, pair.name, "embed", [EncodeItem([5])]),
        transcribe(pair, 8, frames, probe=PromptProbe(len(PREFIX), NO_SPEECH)),
        transcribe(pair, 9, frames, probe=PromptProbe(0, 10_000)),
        transcribe(pair, 10, frames, alignment=SpeechAlignment([(9, 0)], 7), recorded_tokens=5),
        transcribe(pair, 11, frames, alignment=SpeechAlignment([(0, 9)], 7), recorded_tokens=5),
        transcribe(pair, 12, frames, alignment=SpeechAlignment([(0, 0)], 4), recorded_tokens=5),
        transcribe(pair, 13, frames, alignment=SpeechAlignment([(0, 0)], 7)),
        transcribe(pair, 14, frames, alignment=SpeechAlignment([(0, 0)], 7), recorded_tokens=10_000),
        transcribe(pair, 15, frames, logprobs=True, processed_logprobs=True, top_logprobs=2),
    ]
    results = run(engine([pair, text], block_size=4, kv_cache_bytes=1 << 22), wrong)
    assert set(results.failed) == set(range(1, 16))


BEFORE = [START_OF_PREVIOUS, 40, 41, 42]


@pytest.mark.parametrize("max_batch_tokens", [512, 3])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_probability_of_no_speech(pair, max_batch_tokens, beams):
    """The probability of no speech comes from the unprocessed distribution after the start token.

    Other tokens of the prefix may stand before and after the start token.
    """
    clips = random_frames(pair, 4)
    prefixes = [PREFIX, [*BEFORE, *PREFIX], [*BEFORE[:2], *PREFIX], PREFIX]
    requests = [
        transcribe(
            pair, i, clip, prefix=prefix, probe=PromptProbe(prefix.index(START), NO_SPEECH), num_beams=beams,
            suppress_token_ids=[NO_SPEECH],
        )
        for i, (clip, prefix) in enumerate(zip(clips, prefixes, strict=True))
    ]  # fmt: skip
    results = run(pair.engine(max_batch_tokens=max_batch_tokens), [*requests, transcribe(pair, 9, clips[0])])
    assert results.finished[9].probe_logprob is None
    for i, (clip, prefix) in enumerate(zip(clips, prefixes, strict=True)):
        with torch.inference_mode():
            logits = pair.oracle(
                input_features=clip.T[None].to(pair.oracle.device),
                decoder_input_ids=torch.tensor([prefix], device=pair.oracle.device),
            ).logits[0, prefix.index(START)]
        assert results.finished[i].probe_logprob == pytest.approx(float(logits.log_softmax(-1)[NO_SPEECH]), abs=1e-4)
    assert len({results.finished[i].probe_logprob for i in range(4)}) == 4


@pytest.mark.parametrize("beams", [1, 3])
def test_log_probabilities_after_masks(pair, beams):
    """The mean log-probability of a text equals the one that transformers compares with `logprob_threshold`.

    Rows with and without masked tokens run in the same batch.
    """
    clips = random_frames(pair, 3)
    banned = list(range(20, 200))
    settings = {"num_beams": beams, "logprobs": True, "suppress_token_ids": banned}
    requests = [transcribe(pair, i, clip, processed_logprobs=True, **settings) for i, clip in enumerate(clips)]
    requests += [transcribe(pair, 10, clips[0], num_beams=beams, logprobs=True)]
    requests += [transcribe(pair, 11, clips[0], **settings)]
    results = run(pair.engine(), requests)

    for i, clip in enumerate(clips):
        hypothesis = results.finished[i].hypotheses[0]
        with torch.inference_mode():
            logits = pair.oracle(
                input_features=clip.T[None].to(pair.oracle.device),
                decoder_input_ids=torch.tensor([[*PREFIX, *hypothesis.token_ids]], device=pair.oracle.device),
            ).logits[0, len(PREFIX) - 1 : -1]
        logits = logits.clone()
        logits[:, banned] = -torch.inf
        own = logits.log_softmax(-1).gather(1, torch.tensor(hypothesis.token_ids, device=logits.device)[:, None])[:, 0]
        found = torch.tensor(list(Logprobs(hypothesis.logprobs).own()))
        torch.testing.assert_close(found, own.cpu(), atol=1e-4, rtol=1e-4)
        theirs = WhisperGenerationMixin._retrieve_avg_logprobs(
            list(logits), torch.tensor(hypothesis.token_ids, device=logits.device), 0.0
        )
        assert float(found.mean()) == pytest.approx(float(theirs), abs=1e-4)
    raw = Logprobs(results.finished[11].hypotheses[0].logprobs).own()
    assert list(raw) != list(Logprobs(results.finished[0].hypotheses[0].logprobs).own())


@pytest.mark.parametrize("recorded", [None, 13, 2])
@pytest.mark.parametrize("beams", [1, 3])
def test_token_times_equal_transformers(pair, recorded, beams):
    positions = pair.oracle.config.max_source_positions
    recorded = recorded or positions
    heads = [(0, 1), (pair.oracle.config.decoder_layers - 1, 0)]
    clips = random_frames(pair, 3)
    prefixes = [PREFIX, [*BEFORE, *PREFIX], PREFIX]
    requests = [
        transcribe(
            pair, i, clip, prefix=prefix, alignment=SpeechAlignment(heads, 7), recorded_tokens=recorded, num_beams=beams
        )
        for i, (clip, prefix) in enumerate(zip(clips, prefixes, strict=True))
    ]
    together = run(pair.engine(), [*requests, transcribe(pair, 9, clips[0])])
    assert together.finished[9].hypotheses[0].attention is None
    for i, (clip, prefix) in enumerate(zip(clips, prefixes, strict=True)):
        best = together.finished[i].hypotheses[0]
        with torch.inference_mode():
            output = GenerationMixin.generate(
                pair.oracle,
                clip.T[None].to(pair.oracle.device),
                decoder_input_ids=torch.tensor([prefix], device=pair.oracle.device),
                do_sample=False,
                max_new_tokens=20,
                suppress_tokens=None,
                begin_suppress_tokens=None,
                max_length=None,
                num_beams=beams,
                output_attentions=True,
                return_dict_in_generate=True,
            )
            times = WhisperGenerationMixin._extract_token_timestamps(
                pair.oracle, output, heads, num_frames=torch.tensor([2 * recorded]), num_input_ids=len(prefix)
            )[0, len(prefix) :].tolist()
        found = token_times(best.attention, recorded, len(best.token_ids))
        assert best.token_ids == output.sequences[0, len(prefix) :].tolist()[: len(best.token_ids)]
        assert found == pytest.approx(times[: len(found)], abs=1e-5)
        alone = run(pair.engine(), [requests[i]]).finished[i].hypotheses[0].attention
        assert alone == best.attention


def test_several_sources_of_one_request(pair):
    """If the rows of one message have different audio, their results are those of separate messages."""
    clips = random_frames(pair, 4)
    alone = [run(pair.engine(), [transcribe(pair, 0, clip)]).texts(0) for clip in clips]
    message = transcribe(pair, 0, clips[0])
    frames = [clip.numpy().astype("<f4").tobytes() for clip in clips]
    rows = [GenerateRow(row, 20, place, PREFIX) for row, place in enumerate([2, 0, 3, 1])]
    results = run(pair.engine(), [Generate(pair.name, message.params, [], rows, frames=frames)])
    assert [results.texts(row) for row in range(4)] == [alone[place] for place in (2, 0, 3, 1)]
    some = pick_rows(Generate(pair.name, message.params, [], rows, frames=frames), rows[1:3])
    assert some.frames == [frames[0], frames[3]] and [row.prompt for row in some.rows] == [0, 1]
    assert [run(pair.engine(), [some]).texts(row.sequence_id) for row in some.rows] == [alone[0], alone[3]]
    outside = Generate(pair.name, message.params, [], [GenerateRow(7, 5, 4, PREFIX)], frames=frames)
    assert "not among the 4" in run(pair.engine(), [outside]).failed[7].message
