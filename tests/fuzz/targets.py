"""The fuzzing targets: functions that pass any bytes to a parser of external data.

A target returns normally if the parser refuses the bytes with its documented error. It raises for any other error. For
valid input it checks properties of the result. `tests/fuzz/corpus/TARGET/` contains inputs for each target.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import tempfile
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

from server.api.bodies import body
from server.api.bodies.sse import frame
from server.api.dialects.registry import ROUTES
from server.api.routes.route import JsonRoute
from server.api.routes.streaming_route import StreamingRoute
from server.api_keys import load_keys
from server.audio.containers import container_of
from server.audio.read import max_seconds_of, reading_bytes
from server.audio.wav import AudioError, read_wav
from server.client.connection import StreamEvent, read_events
from server.errors import EngineFailure, RequestError, StartError
from server.text.markup.markup import parse
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_tokens import MarkupError
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.detokenizer import IncrementalDetokenizer
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from weights.errors import WeightsError
from weights.read import open_checkpoint

DEMO = Path(__file__).resolve().parents[2] / "weights" / "demo"
MAX_TENSOR_BYTES = 1 << 20

Target = Callable[[bytes], None]


def dialects(data: bytes) -> None:
    """A JSON body is read, validated and converted to a specification.

    data: path of a route, a line break, and the body.
    """
    path, _, raw = data.partition(b"\n")
    for route in ROUTES:
        if route.path.encode() == path:
            try:
                valid = body.validate(body.parse(raw), route.body)
                if isinstance(route, JsonRoute | StreamingRoute):
                    route.parse(valid)
            except RequestError as error:
                assert error.status in (404, 413, 415, 422), error.status
                json.dumps(error.body("id"), allow_nan=False).encode()


def html(data: bytes) -> None:
    """Parse an HTML document. Its parts, joined again, must be the unchanged document."""
    _markup(data, MarkupOptions("html"))


def xml(data: bytes) -> None:
    """Parse an XML document. Its parts, joined again, must be the unchanged document."""
    _markup(data, MarkupOptions("xml"))


def _markup(data: bytes, options: MarkupOptions) -> None:
    document = data.decode(errors="ignore")
    try:
        parts = parse(document, options)
    except MarkupError:
        return
    raw = [part if isinstance(part, str) else "".join(piece.raw for piece in part.pieces) for part in parts]
    assert "".join(raw) == document


def wav(data: bytes) -> None:
    """Read a WAV recording. The samples must be finite, and at most as many as the header and the limit allow."""
    longest = max_seconds_of(data, 2.0)
    assert (longest is None or 0 <= longest <= 2.0) and reading_bytes(data) >= len(data)
    assert "\n" not in container_of(data).name
    try:
        samples, rate = read_wav(data, 2.0)
    except AudioError as error:
        assert "\n" not in str(error)
        return
    assert np.isfinite(samples).all() and 0 < len(samples) <= 2 * rate


def events(data: bytes) -> None:
    """Our client reads a stream of server-sent events, in one piece and byte by byte."""
    assert _read_events([data]) == _read_events([bytes([byte]) for byte in data])


def frames(data: bytes) -> None:
    """Write a text as one event with our server code. Our client must read exactly one event with the same text."""
    text = data.decode("utf-16-le", "ignore")
    assert _read_events([frame("token", {"text": text})]) == [StreamEvent("token", json.dumps({"text": text}))] or [
        json.loads(event.data) for event in _read_events([frame("token", {"text": text})])
    ] == [{"text": text}]


def _read_events(chunks: list[bytes]) -> list[StreamEvent]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def read() -> list[StreamEvent]:
        return [event async for event in read_events(stream())]

    return asyncio.run(read())


def detokenizer(data: bytes) -> None:
    """The streamed text of any tokens must be the decoded text of all tokens.

    data: the first byte chooses the demo model, and each two further bytes choose a token.
    """
    if not data:
        return
    tokenizer = _demo_tokenizer(data[0] % 4)
    ids = [int.from_bytes(data[at : at + 2], "little") % tokenizer.vocab_size for at in range(1, len(data) - 1, 2)]
    for skip in (True, False):
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
        text = "".join([*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()])
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@functools.cache
def _demo_tokenizer(number: int) -> Tokenizer:
    return load_tokenizer(DEMO / ("sentence-encoder", "sentiment", "story", "translator-en-fr")[number])


def safetensors(data: bytes) -> None:
    """Open a safetensors file. If that succeeds, each tensor in it must be readable."""
    _checkpoint({"model.safetensors": data})


def weight_index(data: bytes) -> None:
    """Open a checkpoint with this index of weight files."""
    _checkpoint({"model.safetensors.index.json": data})


def _checkpoint(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name, data in files.items():
            (Path(directory) / name).write_bytes(data)
        try:
            with open_checkpoint(Path(directory)) as tensors:
                for tensor in tensors.values():
                    if tensor.dtype is not None and tensor.nbytes <= MAX_TENSOR_BYTES:
                        assert tuple(tensor.read().shape) == tensor.shape
        except WeightsError as error:
            assert "\n" not in str(error) and directory not in str(error)


def tokenizer_json(data: bytes) -> None:
    """Load a `tokenizer.json`. If that succeeds, tokenizing must not fail."""
    _tokenizer("tokenizer.json", data)


def sentencepiece(data: bytes) -> None:
    """Load a SentencePiece model (`spiece.model`). If that succeeds, tokenizing must not fail."""
    _tokenizer("spiece.model", data)


def tokenizer_config(data: bytes) -> None:
    """Load a `tokenizer_config.json` beside a valid `tokenizer.json`. If that succeeds, tokenizing must not fail."""
    _tokenizer("tokenizer_config.json", data, {"tokenizer.json": (DEMO / "story" / "tokenizer.json").read_bytes()})


def _tokenizer(name: str, data: bytes, others: dict[str, bytes] | None = None) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for file, content in {"config.json": b"{}", **(others or {}), name: data}.items():
            (Path(directory) / file).write_bytes(content)
        try:
            tokenizer = load_tokenizer(Path(directory))
        except TokenizerError as error:
            assert "\n" not in str(error) and directory not in str(error)
            return
        # An error for a single request is allowed, for example if the vocabulary has no token for unknown characters.
        with contextlib.suppress(EngineFailure):
            tokenizer.encode(["The old fox.", "\u00e9\U0001f600"])


def key_file(data: bytes) -> None:
    """Read a TOML file of API keys. No error message may contain one of its long values."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "keys.toml"
        path.write_bytes(data)
        try:
            load_keys([], path)
        except StartError as error:
            said = str(error)
            assert "\n" not in said
            assert not [value for value in _texts(data) if len(value) > 16 and value in said]


def _texts(data: bytes) -> list[str]:
    """All text values of a TOML document."""

    def inside(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for part in value.values() for text in inside(part)]
        if isinstance(value, list):
            return [text for part in value for text in inside(part)]
        return [value] if isinstance(value, str) else []

    try:
        return inside(tomllib.loads(data.decode()))
    except (ValueError, RecursionError):
        return []


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        dialects,
        html,
        xml,
        wav,
        events,
        frames,
        detokenizer,
        safetensors,
        weight_index,
        tokenizer_json,
        sentencepiece,
        tokenizer_config,
        key_file,
    )
}
