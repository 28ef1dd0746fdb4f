"""API keys: formats and errors of the key file, comparison, reloading while the server runs, and names in the log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import httpx
import pytest

from server.api import background
from server.api_keys import ApiKeys, KeyFileWatcher, load_keys
from server.errors import StartError
from server.limits.key_limits import KeyLimits
from server.settings.read import load
from server.settings.settings import Settings
from tests.api.conftest import Bench

TABLES = """
[keys.team-a]
key = "the-key-of-a"
max_requests = 16
max_tokens = 200_000
max_cost = 1e9
requests_per_minute = 60
tokens_per_minute = 9000

[keys."team.b"]
sha256 = "{}"
""".format(hashlib.sha256(b"the-key-of-b").hexdigest().upper())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(TABLES)
    return path


def test_tables_with_names_and_limits(file: Path) -> None:
    keys = load_keys(["stated"], file)
    assert keys.find(b"the-key-of-a") == KeyLimits("team-a", 16, 200_000, 1e9, False, 60, 9000)
    assert keys.find(b"the-key-of-b") == KeyLimits("team.b")
    assert keys.find(b"stated") == KeyLimits("setting-1")
    assert [keys.find(sent) for sent in (b"", b"the-key-of-", b"team-a", b"the-key-of-a ")] == [None] * 4
    assert len(keys) == 3 and not ApiKeys() and "the-key" not in repr(vars(keys))


def test_a_name_of_a_key_of_the_settings_is_refused(tmp_path: Path) -> None:
    """A key in the file must not have the name of a key from the settings, because only one of them would be kept."""
    path = tmp_path / "keys.toml"
    path.write_text('[keys.setting-1]\nkey = "of-the-file"\n')
    assert load_keys(["of-the-file"], path).find(b"of-the-file") == KeyLimits("setting-1")
    with pytest.raises(StartError, match=r"\[keys\.setting-NUMBER\], the name of a key of the settings"):
        load_keys(["stated"], path)


def test_one_key_per_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_API_KEYS", "first-key, second-key")
    path = tmp_path / "keys"
    path.write_text("# comment\nthree\n\n four \nthree\nfirst-key\n")
    settings = load({"api_key_file": str(path)})
    keys = settings.keys()
    names = {sent: getattr(keys.find(sent), "name", None) for sent in (b"second-key", b"three", b"four", b"# comment")}
    assert names == {b"second-key": "setting-2", b"three": "line-2", b"four": "line-4", b"# comment": None}
    assert keys.find(b"first-key") == KeyLimits("line-6"), "the file decides"
    assert "first-key" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no key"),
        ("# [keys.a]\n", "contains no key"),
        ('[keys.a]\nkey = "SECRET\n', "is not valid TOML, at line 2, column "),
        ("a = " + "[" * 5000, "is not valid TOML"),
        ('key = "SECRET"\n', "must have tables [keys.NAME] only"),
        ('[keys]\na = "SECRET"\n', "must have tables [keys.NAME] only"),
        ('[keys."a b SECRET"]\nkey = "SECRET"\n', "table 1: a name has letters, digits, '.', '_' and '-', 64 at most"),
        ("[keys.a]\n", '[keys.a]: write either `key = "..."` or `sha256 = "..."`'),
        (f'[keys.a]\nkey = "SECRET"\nsha256 = "{"a" * 64}"\n', "[keys.a]: write either"),
        ('[keys.a]\nkey = "SECRET"\nmax_cost = 1' + "0" * 400 + "\n", "max_cost must be a number above 0"),
        ("[keys.a]\nkey = 17\n", "[keys.a]: key must be text, without spaces at its ends"),
        ('[keys.a]\nkey = "SECRET "\n', "[keys.a]: key must be text, without spaces at its ends"),
        ('[keys.a]\nkey = ""\n', "[keys.a]: key must be text"),
        ('[keys.a]\nsha256 = "SECRET"\n', "[keys.a]: sha256 must be 64 hexadecimal digits"),
        (
            '[keys.a]\nkey = "SECRET"\nmax_request = 3\n',
            "1 of its fields are unknown; the fields are key, sha256, max_req",
        ),
        ('[keys.a]\nkey = "SECRET"\nmax_requests = 0\n', "max_requests must be a whole number, at least 1"),
        ('[keys.a]\nkey = "SECRET"\nmax_tokens = true\n', "max_tokens must be a whole number, at least 1"),
        ('[keys.a]\nkey = "SECRET"\nmax_tokens = 1.5\n', "max_tokens must be a whole number, at least 1"),
        ('[keys.a]\nkey = "SECRET"\nmax_cost = inf\n', "max_cost must be a number above 0"),
        ('[keys.a]\nkey = "SECRET"\n[keys.b]\nkey = "SECRET"\n', "[keys.b]: this is the key of [keys.a] too"),
    ],
)
def test_a_mistake_is_one_line_without_any_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(StartError) as error:
        load_keys([], path)
    said = str(error.value)
    assert said.startswith(f"api_key_file: {path} ") and message in said
    assert "\n" not in said and "SECRET" not in said


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read .*: No such file"):
        load_keys([], tmp_path / "none")
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match="not UTF-8"):
        load_keys([], path)
    path.write_text('[keys.a]\nkey = "SECRET"\n')
    with pytest.raises(StartError, match=r"line 1 begins with \[: the name of a file with tables must end in \.toml"):
        load_keys([], path)


@pytest.mark.parametrize("garbage", ["two words", "a\tb", "caf\u00e9", "\x00\x01", "<p>Not Found</p>"])
def test_a_line_that_is_no_key_refuses_the_file(tmp_path: Path, garbage: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file does not replace the present keys. The message has the line number but not the line's text."""
    path = tmp_path / "keys"
    path.write_text("real-key\n")
    keys = load_keys([], path)
    watcher = KeyFileWatcher(path, lambda: load_keys([], path), keys)
    assert watcher.poll() is None and watcher.poll() is None
    path.write_text(f"# comment\n{garbage}\n")
    assert watcher.poll() is None and watcher.poll() is None
    assert "stay as they were" in caplog.text and "line 2 is no key" in caplog.text
    assert garbage not in caplog.text


def test_a_named_pipe_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StartError, match="is not a regular file"):
        load_keys([], tmp_path / "pipe")


def test_a_changed_file_is_read_when_it_has_stayed_the_same(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "triptych.keys")
    watcher = KeyFileWatcher(file, lambda: load_keys([], file), load_keys([], file))
    assert [watcher.poll() for _ in range(3)] == [None] * 3 and not caplog.records
    file.write_text(TABLES.replace("16", "17").replace("team.b", "team-c"))
    assert watcher.poll() is None, "it may be half written"
    keys = watcher.poll()
    assert keys is not None and keys.find(b"the-key-of-a") == KeyLimits("team-a", 17, 200_000, 1e9, False, 60, 9000)
    (record,) = caplog.records
    assert record.getMessage() == "the API keys were read again: changed team-a, added team-c, removed team.b"
    assert watcher.poll() is None


def test_a_broken_or_missing_file_leaves_the_keys_with_one_line(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    watcher = KeyFileWatcher(file, lambda: load_keys([], file), load_keys([], file))
    file.write_text('[keys.a]\nkey = "SECRET')
    assert [watcher.poll() for _ in range(5)] == [None] * 5
    file.unlink()
    assert [watcher.poll() for _ in range(5)] == [None] * 5
    broken, missing = (record.getMessage() for record in caplog.records)
    assert broken.startswith("the API keys stay as they were: api_key_file: ") and "not valid TOML" in broken
    assert "cannot read" in missing and "SECRET" not in caplog.text
    file.write_text('[keys.a]\nkey = "new"\n')
    watcher.poll()
    keys = watcher.poll()
    assert keys is not None and keys.find(b"new") == KeyLimits("a")


def test_a_replaced_link_is_a_change(tmp_path: Path) -> None:
    """The file is read again if it is a symbolic link with a new target. Kubernetes updates secrets in this way."""
    (tmp_path / "one").write_text("old\n")
    (tmp_path / "two").write_text("new\n")
    os.utime(tmp_path / "two", ns=(1, 1))
    os.utime(tmp_path / "one", ns=(1, 1))
    link = tmp_path / "keys"
    link.symlink_to("one")
    watcher = KeyFileWatcher(link, lambda: load_keys([], link), load_keys([], link))
    watcher.poll()
    watcher.poll()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    watcher.poll()
    keys = watcher.poll()
    assert keys is not None and keys.find(b"new") and not keys.find(b"old")


async def test_a_running_application_takes_new_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New limits apply to the engine work, new names appear in the log, and the old key is refused after the change."""
    caplog.set_level(logging.INFO, "triptych")
    file = tmp_path / "keys.toml"
    file.write_text('[keys.old]\nkey = "SECRET-1"\nmax_requests = 2\n')
    bench = Bench(tmp_path, Settings(api_key_file=file))
    bench.become_ready()
    changed = asyncio.Event()

    class Watcher(KeyFileWatcher):
        async def run(self, use, poll_seconds=0.0) -> None:
            def used(keys: ApiKeys) -> None:
                use(keys)
                changed.set()

            await super().run(used, 0.0)

    monkeypatch.setattr(background, "KeyFileWatcher", Watcher)
    async with (
        background.with_background(bench.state, background.contextlib.nullcontext),
        httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as http,
    ):
        answers = [await tokenize(http, key) for key in ("SECRET-1", "SECRET-2")]
        file.write_text('[keys.new]\nkey = "SECRET-2"\n')
        await changed.wait()
        answers += [await tokenize(http, key) for key in ("SECRET-1", "SECRET-2")]
    assert answers == [200, 401, 401, 200]
    logged = [vars(record).get("fields") for record in caplog.records if record.name == "triptych.access"]
    assert [fields.get("key") for fields in logged] == ["old", None, None, "new"]
    assert " key=old " in caplog.text and "SECRET" not in caplog.text
    bench.runtime.close()


async def tokenize(http: httpx.AsyncClient, key: str) -> int:
    answer = await http.post("/tokenize", json={"inputs": "a"}, headers={"x-api-key": key})
    return answer.status_code


@pytest.mark.parametrize("in_field", [False, True])
async def test_the_limits_of_the_key_reach_the_engine_work(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_field: bool
) -> None:
    from server.api.routes import route

    bench = Bench(tmp_path, Settings(api_key_file=file))
    bench.become_ready()
    calls = []
    made = route.Call
    monkeypatch.setattr(route, "Call", lambda *arguments: calls.append(made(*arguments)) or calls[-1])
    body = {"q": "abc", "source": "en", "target": "xx"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(bench.app), base_url="http://localhost") as http:
        key = "the-key-of-a"
        if in_field:
            await http.post("/translate", json=body | {"api_key": key})
        else:
            await http.post("/translate", json=body, headers={"authorization": f"Bearer {key}"})
    assert [call.key for call in calls] == [KeyLimits("team-a", 16, 200_000, 1e9, False, 60, 9000)]
    bench.runtime.close()


async def test_without_keys_there_are_no_limits(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.become_ready()
    posted = asyncio.create_task(http.post("/generate", json={"prompt": "ab", "model": "decoder"}))
    while not bench.client._sequences.by_id:
        await asyncio.sleep(0)
    (sequence,) = bench.client._sequences.by_id.values()
    assert sequence.call.key is None
    posted.cancel()
    await asyncio.gather(posted, return_exceptions=True)
