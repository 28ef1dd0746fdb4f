"""Documents over a socket: upload, status and result as with DeepL, and download link as with LibreTranslate.

The fake engine repeats texts instead of translating them.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import httpx
import pytest

from server.cli import main
from server.client import documents
from server.text.documents.formats import FORMATS
from tests.waiting import HANG_SECONDS, eventually
from tests.wire.checkpoints import write_translator
from tests.wire.conftest import LONG_LIMITS, Process

TEXT = "The garden is small. 42\n\nHi {name}!\n"


def upload(client: httpx.Client, data: bytes | str, name: str = "a.txt", **fields: str) -> httpx.Response:
    files = {"file": (name, data.encode() if isinstance(data, str) else data)}
    return client.post("/v2/document", data={"source_lang": "EN", "target_lang": "DE", **fields}, files=files)


def fetch(client: httpx.Client, data: bytes | str, name: str = "a.txt", **fields: str) -> httpx.Response:
    """Upload a document, wait for its translation and fetch it, as DeepL's clients do."""
    answer = upload(client, data, name, **fields)
    assert answer.status_code == 200, answer.text
    handle = answer.json()
    path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    eventually(lambda: client.post(path, json=key).json()["status"] in ("done", "error"))
    status = client.post(path, data=key).json()
    assert status["status"] == "done", status
    result = client.post(f"{path}/result", json=key)
    assert result.status_code == 200
    assert client.post(f"{path}/result", json=key).status_code == 404, "a result is fetched once"
    return result


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.json", "a.srt"])
def test_a_document_comes_back(client: httpx.Client, name: str) -> None:
    sources = {"a.html": f"<p>{TEXT}<b>x</b></p>", "a.json": '{"a": ["Hi {name}!", 1]}'}
    sources["a.srt"] = "1\n00:00:01,000 --> 00:00:02,000\nThe <i>garden</i>\n"
    source = sources.get(name, TEXT)
    result = fetch(client, source, name)
    assert result.text == source
    assert f"a_de.{name[2:]}" in result.headers["content-disposition"]
    assert fetch(client, source, "x", filename=name).text == source


def test_an_e_book_and_a_long_document(client: httpx.Client) -> None:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as book:
        book.writestr("a.xhtml", "<html><body><p>The <b>garden</b>.</p></body></html>")
    found = zipfile.ZipFile(io.BytesIO(fetch(client, output.getvalue(), "a.epub").content))
    assert found.read("a.xhtml").decode() == "<html><body><p>The <b>garden</b>.</p></body></html>"
    lines = [f"Line {number} has its own text." for number in range(300)] + ["The same line."] * 300
    assert fetch(client, "\n".join(lines)).text == "\n".join(lines)


def test_a_link_is_fetched_once(client: httpx.Client) -> None:
    form = {"source": "en", "target": "de"}
    answer = client.post("/translate_file", data=form, files={"file": ("a.txt", TEXT)})
    assert answer.status_code == 200, answer.text
    url = answer.json()["translatedFileUrl"]
    assert url.startswith(str(client.base_url)) and url.endswith(".txt")
    assert client.head(url).headers["content-length"] == str(len(TEXT))
    assert client.get(url).text == TEXT
    assert (gone := client.get(url)).status_code == 404 and "fetched" in gone.json()["error"]
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"] and {".txt", ".epub", ".srt"} <= set(settings["supportedFilesFormat"])


@pytest.mark.parametrize(
    ("name", "data", "fields", "message"),
    [
        ("a.exe", "a", {}, ".docx"),
        ("a.json", "{", {}, "JSON"),
        ("a.epub", "PK", {}, "zip"),
        ("a.txt", "42 !", {}, "no text"),
        ("a.txt", "a", {"target_lang": "xx"}, "de"),
        ("a.txt", "a", {"output_format": "pdf", "filename": "a.txt"}, "output_format"),
        ("a.txt", "a", {"formality": "more"}, "formality"),
        ("a.txt", "a", {"unknown": "1"}, "unknown"),
    ],
)
def test_what_is_refused(client: httpx.Client, name: str, data: str, fields: dict[str, str], message: str) -> None:
    answer = upload(client, data, name, **fields)
    assert answer.status_code == 400 and message in answer.json()["message"], answer.text


def test_other_forms_are_refused(client: httpx.Client) -> None:
    assert client.post("/v2/document", json={"target_lang": "DE"}).status_code == 415
    no_file = client.post("/v2/document", files={"target_lang": (None, "DE")})
    assert no_file.status_code == 400 and "`file`" in no_file.json()["message"]
    unknown = client.post("/v2/document/x", json={"document_key": "y"})
    assert unknown.status_code == 404 and "no such document" in unknown.json()["message"]
    assert client.get("/download_file/x.txt").status_code == 404
    failed = client.post("/translate_file", data={"source": "en", "target": "de"}, files={"file": ("a.txt", "%fails")})
    assert failed.status_code == 500 and "error" in failed.json()


def test_a_failed_document_says_so(client: httpx.Client) -> None:
    handle = upload(client, "fine\n\n%fails").json()
    path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    eventually(lambda: client.post(path, json=key).json()["status"] == "error")
    assert "non-finite" in client.post(path, json=key).json()["error_message"]
    assert client.post(f"{path}/result", json=key).status_code == 400


def test_the_command_line_translates_a_document(
    shared_server: Process, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text("# The garden\n\nis `small`.\n")
    command = ["translate", str(source), "-o", str(output), "--url", shared_server.url]
    pair = ["--source-lang", "en", "--target-lang", "de"]
    main([*command, *pair])
    assert output.read_text() == source.read_text() and "translated in" in capsys.readouterr().err
    for wrong, message in (
        ([*command, *pair], "--overwrite replaces it"),
        ([*command, "--overwrite"], "--target-lang"),
        ([*command, *pair, "--num-beams", "2", "--overwrite"], "--num-beams is for texts"),
        ([*command, "--overwrite", "--target-lang", "xx"], "xx"),
    ):
        with pytest.raises(SystemExit):
            main(wrong)
        assert message in capsys.readouterr().err or message == "xx"
    assert set(FORMATS) == documents.SUFFIXES


def test_keys_memory_and_time(tmp_path: Path) -> None:
    """Only the API key that uploaded a document can read it.

    It expires, and one too large for the memory is refused.
    """
    (tmp_path / "keys").write_text("one\ntwo\n")
    model = write_translator(tmp_path / "translator", "en", "de")
    limits = ("--documents-memory", "4096", "--documents-ttl-seconds", "10", "--max-document-bytes", "2000")
    server = Process(f"translator={model}", "--api-key-file", str(tmp_path / "keys"), *limits, *LONG_LIMITS)
    try:
        server.wait_ready()

        def client(key: str) -> httpx.Client:
            headers = {"Authorization": f"DeepL-Auth-Key {key}"}
            return httpx.Client(base_url=server.url, headers=headers, timeout=HANG_SECONDS)

        with client("one") as one, client("two") as two:
            handle = upload(one, "&held").json()  # the fake engine stops at `&`
            path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
            assert two.post(path, json=key).status_code == 404
            assert one.post(path, json=key).json()["status"] in ("queued", "translating")
            assert one.post(path, json=key | {"document_key": "x"}).status_code == 404
            assert upload(one, "a" * 600).status_code == 400
            assert upload(one, "a" * 3000).status_code == 413
            assert upload(two, "&a" * 250).status_code == 200
            busy = upload(two, "a" * 50)
            assert busy.status_code == 429 and busy.json()["reason"] == "documents"
            eventually(lambda: one.post(path, json=key).status_code == 404)
            eventually(lambda: upload(two, "!" * 300).status_code != 429)
            assert fetch(two, "a" * 300).text == "a" * 300
            files = {"file": ("a.txt", "abc")}
            form = {"source": "en", "target": "de", "api_key": "one"}
            refused = httpx.post(f"{server.url}/translate_file", data=form | {"api_key": "x"}, files=files)
            assert refused.status_code == 403
            url = httpx.post(f"{server.url}/translate_file", data=form, files=files).json()["translatedFileUrl"]
            assert httpx.get(url).text == "abc"
    finally:
        server.stop()
