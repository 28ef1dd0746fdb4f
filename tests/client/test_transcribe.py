"""`triptych transcribe` against a fake server: the form, the formats, and where the answers are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest

from server.cli import main


class Listener(ThreadingHTTPServer):
    """A server that answers with the number of bytes of the request. requests: path and body of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode(errors="replace")
        self.server.requests.append((self.path, body))  # type: ignore[attr-defined]
        answer = b'{"text": "heard"}\n' if 'name="response_format"\r\n\r\njson' in body else b"heard\nthis\n"
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *parts: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    for name in ("a.wav", "b.mp3"):
        (tmp_path / name).write_bytes(b"RIFF")
    return [str(tmp_path / "a.wav"), str(tmp_path / "b.mp3")]


def run(listener: Listener, *argv: str) -> None:
    main(["transcribe", *argv, "--url", listener.url])


def test_one_recording(listener: Listener, recordings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(listener, recordings[0], "--language", "en", "--temperature", "0.5", "-m", "ears")
    assert capsys.readouterr().out == "heard\nthis\n"
    ((path, form),) = listener.requests
    assert path == "/v1/audio/transcriptions" and 'filename="a.wav"' in form and "RIFF" in form
    for name, value in {"language": "en", "temperature": "0.5", "model": "ears", "response_format": "text"}.items():
        assert f'name="{name}"\r\n\r\n{value}\r\n' in form


def test_several_recordings(listener: Listener, recordings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(listener, *recordings, "--translate")
    assert capsys.readouterr().out == "a.wav\theard this\nb.mp3\theard this\n"
    assert {path for path, _ in listener.requests} == {"/v1/audio/translations"}
    run(listener, *recordings, "--format", "json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"file": name, "answer": {"text": "heard"}} for name in ("a.wav", "b.mp3")]


def test_a_file_for_each_recording(
    listener: Listener, recordings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    run(listener, *recordings, "--format", "srt", "-o", str(out))
    assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys(("a.srt", "b.srt"), "heard\nthis\n")
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"RIFF")))
    run(listener, "-", "--format", "srt", "-o", str(out))
    assert (out / "recording.srt").exists()
    run(listener, recordings[0], "--format", "vtt", "-o", str(tmp_path / "one.vtt"))
    assert (tmp_path / "one.vtt").read_text() == "heard\nthis\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{0}", "{1}", "--format", "srt"], "need --output with a directory"),
        (["{0}", "{1}", "-o", "none.txt"], "need a directory"),
        (["{0}", "-o", "{1}"], "exists: --overwrite replaces it"),
        (["{0}", "{0}", "-o", "{dir}"], "two recordings would be written"),
        (["{0}", "--translate", "--language", "en"], "leave out --language"),
        (["{dir}/none.wav"], "cannot read"),
    ],
)
def test_a_wrong_command_is_one_line(
    listener: Listener,
    recordings: list[str],
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(listener, *(part.format(*recordings, dir=tmp_path) for part in argv))
    shown = capsys.readouterr().err
    assert stop.value.code == 2 and message in shown and shown.count("\n") == 1 and listener.requests == []
