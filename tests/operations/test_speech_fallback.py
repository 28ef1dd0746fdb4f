"""Decoding speech again at higher temperatures.

We accept and reject windows as transformers does, refuse options that have no effect, and bound the cost.
"""

from __future__ import annotations

import random
import zlib
from types import SimpleNamespace

import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from server.errors import InvalidRequest
from server.ipc.wire.descriptions import GenerationInfo, ModelInfo
from server.operations.admission import DEFAULT_MEMORY_BYTES
from server.operations.speech import speech_fallback
from server.operations.speech.recording_file import RecordingFile
from server.operations.speech.speech_fallback import (
    FallbackRules,
    compression_ratio,
    temperatures,
    text_compression_ratio,
)
from server.operations.speech.speech_windows import WindowResult, best_attempt
from server.operations.speech.transcribe_spec import TranscribeSpec
from server.text.speech.speech_settings import SpeechSettings
from tests.audio.wavs import wav
from tests.parity.speech import recording

THRESHOLDS = [None, 0.9, 1.4]


@pytest.mark.parametrize("vocab_size", [200, 360, 51865, 70_000])
def test_compression_ratios_equal_transformers(vocab_size: int) -> None:
    chooser = random.Random(1)
    for _ in range(50):
        ids = [chooser.randrange(min(vocab_size, chooser.choice([3, 200]))) for _ in range(chooser.randint(1, 200))]
        theirs = WhisperGenerationMixin._retrieve_compression_ratio(torch.tensor(ids), vocab_size)
        assert compression_ratio(ids, vocab_size) == theirs


def theirs(rules: FallbackRules, ids: list[int], mean: float, no_speech: float) -> str:
    """What transformers decides for a window with these ids, mean log-probability and probability of no speech."""
    from transformers.generation.logits_process import WhisperNoSpeechDetection

    detection = WhisperNoSpeechDetection(1, 1)
    detection._no_speech_prob = [no_speech]
    self = SimpleNamespace(
        _retrieve_compression_ratio=WhisperGenerationMixin._retrieve_compression_ratio,
        _retrieve_avg_logprobs=lambda *_: mean,
    )
    config = SimpleNamespace(
        compression_ratio_threshold=rules.compression_ratio,
        logprob_threshold=rules.logprob,
        no_speech_threshold=rules.no_speech,
    )
    rejected, silent = WhisperGenerationMixin._need_fallback(
        self, torch.tensor(ids), [{"scores": None}], 0, [detection], config, 51865, 0.0
    )
    return "silent" if silent else "rejected" if rejected else "accepted"


def test_verdicts_equal_transformers() -> None:
    seen = set()
    texts = [[5] * 60, list(range(60))]
    for compression in (None, 1.5):
        for logprob in (None, -1.0):
            for no_speech in (None, 0.6) if logprob is not None else (None,):
                rules = FallbackRules((0.0,), compression, logprob, no_speech)
                for ids in texts:
                    for mean in (-0.5, -1.0, -2.0):
                        for probability in (0.1, 0.6, 0.9):
                            verdict = rules.verdict(ids, 51865, mean, probability)
                            assert verdict.kind == theirs(rules, ids, mean, probability)
                            assert (verdict.excess > 0) == (verdict.kind == "rejected")
                            seen.add(verdict.kind)
    assert seen == {"accepted", "rejected", "silent"}


def test_temperatures() -> None:
    assert temperatures(0.0, None) == (0.0,) and temperatures(0.3, None) == (0.3,)
    assert temperatures(0.0, 0.2) == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert temperatures(0.5, 0.3) == (0.5, 0.8) and temperatures(1.0, 0.1) == (1.0,)


def spec(**fields: object) -> TranscribeSpec:
    return TranscribeSpec(RecordingFile(wav(recording(0.1))), 1800, **fields)  # type: ignore[arg-type]


def test_rules_of_requests_and_checkpoints() -> None:
    plain = SpeechSettings()
    own = SpeechSettings(compression_ratio_threshold=1.35, logprob_threshold=-0.7, no_speech_threshold=0.2)
    published = FallbackRules((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), None, -1.0, 0.6, 2.4)
    assert spec().rules(plain) == published and not published.accepts_everything
    once = spec(temperatures=(0.0,), no_speech_threshold=1.0).rules(plain)
    assert once == FallbackRules() and once.accepts_everything
    assert spec(temperatures=(0.4,)).rules(plain) == FallbackRules((0.4,), None, -1.0, 0.6)
    assert spec(temperatures=(0.0,)).rules(own) == FallbackRules((0.0,), None, -0.7, 0.2)
    assert spec(temperatures=(0.0, 1.0)).rules(own) == FallbackRules((0.0, 1.0), 1.35, -0.7, 0.2)
    given = spec(temperatures=(0.0, 1.0), compression_ratio_threshold=3, logprob_threshold=-2.0)
    assert given.rules(own) == FallbackRules((0.0, 1.0), None, -2.0, 0.2, 3)


def test_a_repetitive_text_is_rejected_by_its_own_compression() -> None:
    """The token ids of this text compress worse than its characters, as is usual for a repeated long word."""
    rules = FallbackRules((0.0, 0.2), text_compression_ratio=2.4)
    said = " thank you for watching" * 8
    assert rules.verdict([5, 6, 7, 8], 51865, None, None, lambda: said).kind == "rejected"
    plain = rules.verdict([5] * 60, 51865, None, None, lambda: " The garden behind the house is small.")
    assert plain.kind == "accepted"
    assert text_compression_ratio("a" * 64) == len("a" * 64) / len(zlib.compress(b"a" * 64))


def test_a_window_with_a_likely_attempt_is_not_silent() -> None:
    rules = FallbackRules((0.0, 1.0), None, -1.0, 0.6, 2.4)
    assert rules.verdict([5], 51865, -5.1, 0.8, lambda: "x").kind == "silent"
    assert rules.verdict([5], 51865, -5.1, 0.8, lambda: "x", [-1.5, None]).kind == "rejected"  # None: not computed
    assert rules.verdict([5], 51865, -5.1, 0.8, lambda: "x", [-1.5]).kind == "silent"
    found = rules.verdict([5], 51865, -5.1, 0.8, lambda: "x", [-1.5, -0.2])
    assert found.kind == "rejected" and found.excess == pytest.approx(4.1)


LIKELY, UNLIKELY = -0.2, -1.6


@pytest.mark.parametrize(
    ("attempts", "used"),
    [
        # The speaker repeats himself: a likely text that compresses slightly too well is better than a random one.
        ([(LIKELY, 2.6), (LIKELY, 2.55), (-5.1, 0.7)], 1),
        # A model in a loop: an unlikely text is better.
        ([(LIKELY, 8.0), (UNLIKELY, 1.2), (-2.5, 1.0)], 1),
        ([(UNLIKELY, 1.0), (-1.2, 1.0), (-3.0, 1.0)], 1),
        ([(UNLIKELY, 1.0), (LIKELY, 1.0)], 1),  # the second is accepted
        ([(LIKELY, 2.5), (LIKELY, 2.5)], 0),
    ],
)
def test_the_best_of_rejected_attempts_is_used(attempts: list[tuple[float, float]], used: int) -> None:
    rules = FallbackRules((0.0, 0.5, 1.0), None, -1.0, 0.6, 2.4)
    judged = []
    for number, (mean, ratio) in enumerate(attempts):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(speech_fallback, "text_compression_ratio", lambda text, ratio=ratio: ratio)
            verdict = rules.verdict([5], 51865, mean, 0.1, lambda: "", [result.mean_logprob for result, _ in judged])
        judged.append((WindowResult([number], float(number), mean_logprob=mean), verdict))
    assert best_attempt(judged).token_ids == [used]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperatures": (0.5,), "num_beams": 2}, "num_beams"),
        ({"temperatures": (0.0,), "compression_ratio_threshold": 2.0}, "compression_ratio_threshold"),
        ({"temperatures": (0.0,), "no_speech_threshold": 1, "logprob_threshold": -1.0}, "logprob_threshold"),
        ({"batched": True, "condition_on_previous_text": True}, "condition_on_previous_text"),
    ],
)
def test_options_without_effect_are_refused(fields: dict, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        spec(**fields).check()
    assert error.value.param == param


WHISPER = ModelInfo(
    "whisper", "whisper", "", ["transcribe"], "float32", 0, 0, 51865, 768, 448, 1500, num_mels=80,
    is_encoder_decoder=True, generation=GenerationInfo(max_new_tokens=447),
)  # fmt: skip


@pytest.mark.parametrize("fields", [{}, {"num_beams": 5}, {"batched": True}, {"batched": True, "with_words": True}])
def test_recordings_fit_a_server_with_default_limits(fields: dict) -> None:
    """A model of Whisper's size serves one window, 10 minutes of WAV, and half an hour of MP3."""
    model = SimpleNamespace(info=WHISPER)
    for seconds, file in [(30, wav(recording(30.0))), (600, bytes(4 << 20)), (1800, bytes(15 << 20))]:
        asked = TranscribeSpec(RecordingFile(file), 1800, **fields)
        assert asked.cost(model, seconds).memory_bytes < DEFAULT_MEMORY_BYTES, seconds
        assert asked.cost(model).memory_bytes <= asked.cost(model, 1800).memory_bytes


def test_the_cost_of_a_recording_grows_with_its_length_and_its_windows_at_once() -> None:
    model = SimpleNamespace(info=WHISPER)
    costs = [spec(**fields).cost(model, seconds) for fields in ({}, {"batched": True}) for seconds in (30.0, 600.0)]
    assert costs[0].memory_bytes < costs[1].memory_bytes and costs[2].input_tokens < costs[3].input_tokens
    assert costs[0].input_tokens == costs[1].input_tokens == 1948 and costs[3].sequences == 16
