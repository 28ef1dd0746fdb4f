"""Print, as JSON, what OpenAI's published sequential algorithm decides for the recordings of `speech_scripts`.

The decisions are the windows that it decodes, each with its temperature and the text before it, and the segments that
it keeps. A script replaces the model. Run it in a separate environment, from the root of the repository:

    python -m venv whisper && whisper/bin/pip install openai-whisper==20250625
    PYTHONPATH=. whisper/bin/python -m tests.operations.whisper_oracle > tests/operations/whisper_oracle.json
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
import whisper
from whisper.decoding import DecodingResult
from whisper.tokenizer import get_tokenizer

from server.operations.speech.speech_fallback import compression_ratio
from tests.operations.speech_scripts import CONTEXT, COUNT, END, PROMPT, VOCAB, WINDOW_FRAMES, Script, script

published = import_module("whisper.transcribe")
"""The module `transcribe`. An import from the package would give its function of the same name."""


class ScriptedModel:
    """A model whose results a script determines. calls: first frame, temperature and prompt of each decoded window."""

    device, is_multilingual, num_languages = torch.device("cpu"), True, 99
    dims = SimpleNamespace(n_mels=1, n_audio_ctx=WINDOW_FRAMES // 2, n_text_ctx=CONTEXT)

    def __init__(self, script: Script) -> None:
        self.script, self.calls = script, list[list[Any]]()
        self.window, self.attempt = -1, 0

    def decode(self, frames: torch.Tensor, options: Any) -> DecodingResult:
        if options.temperature == self.script.temperatures[0]:
            self.window, self.attempt = self.window + 1, 0
        else:
            self.attempt += 1
        found = self.script.attempt(self.window, self.attempt)
        prompt = options.prompt[-(CONTEXT // 2 - 1) :] if self.script.conditions else None
        # Each frame holds its own number.
        self.calls.append([int(frames[0, 0]), options.temperature, prompt])
        return DecodingResult(
            audio_features=frames,
            language="en",
            tokens=found.token_ids,
            avg_logprob=found.logprob,
            no_speech_prob=found.no_speech,
            temperature=options.temperature,
            # OpenAI's code compresses the text, transformers and we compress the token ids.
            compression_ratio=compression_ratio([*found.token_ids, END], VOCAB),
        )


def decisions(script: Script) -> dict[str, Any]:
    model = ScriptedModel(script)
    frames = torch.arange(script.total_frames + WINDOW_FRAMES, dtype=torch.float32)[None]
    published.log_mel_spectrogram = lambda *_, **__: frames
    found = published.transcribe(
        model,
        "",
        temperature=script.temperatures,
        compression_ratio_threshold=script.compression_ratio,
        logprob_threshold=script.logprob,
        no_speech_threshold=script.no_speech,
        condition_on_previous_text=script.conditions,
        initial_prompt=PROMPT if script.prompted else None,
        language="en",
        fp16=False,
    )
    segments = [
        [
            round(segment["start"], 4),
            round(segment["end"], 4),
            [token for token in segment["tokens"] if token < END],
            segment["seek"],
        ]
        for segment in found["segments"]
        if segment["tokens"]
    ]
    return {"calls": model.calls, "segments": segments}


def main() -> None:
    table = {
        "version": whisper.__version__,
        "prompt": get_tokenizer(True).encode(" " + PROMPT),
        "decisions": [decisions(script(number)) for number in range(COUNT)],
    }
    json.dump(table, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
