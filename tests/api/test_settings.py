"""Settings: precedence, names, bounds, help texts and error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from server.cli import NOT_FLAGS, _parser, main
from server.errors import StartError
from server.ipc.wire.descriptions import DEFAULT_STEP_TOKENS
from server.settings.read import load
from server.settings.settings import Settings, is_loopback


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("TRIPTYCH_"):
            monkeypatch.delenv(name)


def test_flags_then_environment_then_file_then_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "triptych.toml"
    file.write_text('port = 1\nhost = "file"\nthreads = 1\ngrace_seconds = 7\n[models]\na = "x"\nb = "y"\n')
    monkeypatch.setenv("TRIPTYCH_PORT", "2")
    monkeypatch.setenv("TRIPTYCH_HOST", "environment")
    settings = load({"port": "3"}, file)
    assert (settings.port, settings.host, settings.threads, settings.grace_seconds) == (3, "environment", 1, 7.0)
    assert settings.block_size == Settings.model_fields["block_size"].default
    assert settings.models == ["a=x", "b=y"]
    monkeypatch.setenv("TRIPTYCH_MODELS", "c=z, /some/where/name/, org/hub@main")
    assert load({}, file).models == ["c=z", "name=/some/where/name/", "hub=org/hub@main"]
    assert load({"models": ["d=w"]}, file).models == ["d=w"]
    assert load({}).host == "environment"


def test_defaults_of_operations_and_routes_that_do_not_exist() -> None:
    from server.api.dialects.registry import check_defaults

    check_defaults(["embed=e5", "/v1/chat/completions=llm", "translate=mt"])
    with pytest.raises(StartError, match=r"'embd' is no operation and no route; did you mean embed\?"):
        check_defaults(["embd=e5"])


def test_values_by_model() -> None:
    from server.ipc.wire.descriptions import Speculation
    from server.model_sources import by_model, check_names, find_speculations

    names = ["a", "b", "c"]
    assert by_model("quantize", ["b=int4", "int8"], names) == {"b": "int4", "": "int8"}
    with pytest.raises(StartError, match="kv_cache_dtype: no model is named 'd', only a, b, c"):
        by_model("kv_cache_dtype", ["d=int8"], names)
    with pytest.raises(StartError, match="idle_seconds: no model is named 'd', only a, b, c"):
        check_names(load({"idle_seconds": "60,d=5"}), names)
    check_names(load({"idle_seconds": "60,b=5"}), names)
    settings = load({"speculative": "ngram,a=ngram,b=off"})
    directories = {name: Path(name) for name in names}
    assert find_speculations(settings, directories) == {"a": Speculation(), "c": Speculation(is_optional=True)}
    settings = load({"speculative": "mtp,a=mtp,b=ngram"})
    unnamed = Speculation(prediction_head=True, is_optional=True)
    own = Speculation(prediction_head=True)
    assert find_speculations(settings, directories) == {"a": own, "b": Speculation(), "c": unnamed}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLMEagle3", "EagleLlamaForCausalLM", "LlamaForCausalLM"])
def test_a_draft_may_be_an_eagle_head(architecture: str, tmp_path: Path) -> None:
    from server.ipc.wire.descriptions import Speculation
    from server.model_sources import find_speculations

    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    settings = load({"speculative": f"a=draft:{tmp_path}"})
    if architecture == "EagleLlamaForCausalLM":
        with pytest.raises(StartError, match="only those of EAGLE-3"):
            find_speculations(settings, {"a": Path("a")})
        return
    (found,) = find_speculations(settings, {"a": Path("a")}).values()
    is_head = architecture == "LlamaForCausalLMEagle3"
    assert found == (
        Speculation(eagle_directory=str(tmp_path)) if is_head else Speculation(draft_directory=str(tmp_path))
    )


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 << 20), ("2GiB", 2 << 30), ("1.5k", 1536), ("77", 77), ("0", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert load({"kv_cache_memory": text}).kv_cache_memory == size


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"port": "70000"}, "port: Input should be less than or equal to 65535, not '70000'"),
        ({"port": "x"}, "port"),
        ({"kv_cache_memory": "lots"}, "kv_cache_memory"),
        ({"max_batch_tokens": "0"}, "max_batch_tokens"),
        ({"grace_seconds": "inf"}, "grace_seconds"),
        ({"device": "tpu"}, "device"),
        ({"models": ["a b=x"]}, "models"),
        ({"models": ["a=x", "a=y"]}, "twice"),
        ({"models": ["a="]}, "models: 'a=' has no path"),
        ({"models": ["/"]}, "models: cannot name a model after '/': write NAME=PATH, for example llm=/"),
        (
            {"models": ["/data/run=3"]},
            "cannot name a model after '/data/run=3': write NAME=PATH, for example llm=/data",
        ),
        ({"models": [".=x"]}, "'.' cannot be the name of a model"),
        ({"adapter": ["a=x"]}, "adapter: write NAME=PATH_OR_HUB_ID@MODEL"),
        ({"adapter": ["a=x@b", "a=y@b"]}, "adapter: the name 'a' is used twice"),
        ({"models": ["a=x"], "adapter": ["a=y@a"]}, "adapter: the name 'a' is used twice"),
        ({"hang_seconds": "1"}, "hang_seconds"),
        ({"log_level": "loud"}, "log_level"),
        (
            {"quantize": "int2"},
            "quantize: write one of int8, int8-fast, int6, int5, int4, int4-32, int4-64, int4-128, int4-32-zero, "
            "int4-64-zero, int4-128-zero, or NAME= and one of them, not 'int2'",
        ),
        ({"quantize": "a=int4,b=x"}, "not 'b=x'"),
        ({"speculative": "a=guess"}, "speculative"),
        ({"speculative": "a=draft:"}, "speculative"),
        ({"speculative": "mtp,ngram"}, "ngram or mtp"),
        ({"speculative": "draft:a"}, "speculative"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "a=float8"}, "kv_cache_dtype"),
        ({"speculative": "a=ngram,a=draft:b"}, "twice"),
        ({"models": ["a=x"], "speculative": "b=ngram"}, "no model is named 'b'"),
        ({"speculative_tokens": "0"}, "speculative_tokens"),
    ],
)
def test_errors_are_one_line_and_name_the_setting(flags: dict, text: str) -> None:
    with pytest.raises(StartError) as error:
        load(flags)
    assert text in str(error.value) and "\n" not in str(error.value)


def test_unknown_names_in_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "triptych.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(StartError, match="prot is not a setting"):
        load({}, file)
    file.write_text("port = \n")
    with pytest.raises(StartError, match="config"):
        load({}, file)
    monkeypatch.setenv("TRIPTYCH_PROT", "1")
    with pytest.raises(StartError, match="TRIPTYCH_PROT"):
        load({})


SERVICES = {
    "TRIPTYCH_SERVICE_HOST": "10.0.0.1",
    "TRIPTYCH_SERVICE_PORT": "8000",
    "TRIPTYCH_SERVICE_PORT_HTTP": "8000",
    "TRIPTYCH_SERVICE_PORT_HTTP_METRICS": "9100",
    "TRIPTYCH_PORT": "tcp://10.0.0.1:8000",
    "TRIPTYCH_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "TRIPTYCH_PORT_8000_TCP_PROTO": "tcp",
    "TRIPTYCH_PORT_8000_TCP_PORT": "8000",
    "TRIPTYCH_PORT_8000_TCP_ADDR": "10.0.0.1",
    "TRIPTYCH_PORT_53_UDP_ADDR": "10.0.0.1",
    "TRIPTYCH_METRICS_SERVICE_HOST": "10.0.0.2",
    "TRIPTYCH_METRICS_SERVICE_PORT": "9100",
    "TRIPTYCH_METRICS_PORT": "tcp://10.0.0.2:9100",
    "TRIPTYCH_METRICS_PORT_9100_TCP_ADDR": "10.0.0.2",
    "TRIPTYCH_LLM_EU_PORT": "tcp://[fd00::7]:80",
    "TRIPTYCH_DNS_PORT": "udp://10.0.0.1:53",
}
"""Variables that Kubernetes sets for Services named triptych, triptych-metrics, triptych-llm-eu and triptych-dns."""


def test_variables_of_kubernetes_services_are_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SERVICES.items():
        monkeypatch.setenv(name, value)
    settings = load({})
    assert (settings.port, settings.metrics_port) == (8000, None)
    file = tmp_path / "triptych.toml"
    file.write_text("port = 7000\nmetrics_port = 7001\n")
    assert (load({}, file).port, load({}, file).metrics_port) == (7000, 7001)
    assert load({"port": "6000"}, file).port == 6000
    monkeypatch.setenv("TRIPTYCH_PORT", "9000")
    monkeypatch.setenv("TRIPTYCH_METRICS_PORT", "9100")
    assert (load({}, file).port, load({}, file).metrics_port) == (9000, 9100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRIPTYCH_SERVICE", "x"),
        ("TRIPTYCH_SERVICE_PORTS", "1"),
        ("TRIPTYCH_PORTS", "tcp://10.0.0.1:1"),
        ("TRIPTYCH_PORT_NUMBER", "1"),
        ("TRIPTYCH_EXTRA_PORT", "1"),
    ],
)
def test_other_variables_are_still_mistakes(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartError, match=f"^environment: {name} is not a setting of Triptych"):
        load({})
    monkeypatch.delenv(name)
    monkeypatch.setenv("TRIPTYCH_PORT", "tcp:/10.0.0.1")
    with pytest.raises(StartError, match=r"^port: "):
        load({})


def test_a_public_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        load({"host": host}).check_exposure()
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(StartError, match="insecure-no-auth"):
            load({"host": host}).check_exposure()
    load({"host": "0.0.0.0", "insecure_no_auth": True}).check_exposure()
    monkeypatch.setenv("TRIPTYCH_API_KEYS", "k")
    load({"host": "0.0.0.0"}).check_exposure()


def test_every_setting_is_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert field.description
        flag = re.search(rf"--{name.replace('_', '-')}(?![\w-])", text)
        assert (flag is not None) is (name not in NOT_FLAGS), name
        # Without spaces, because argparse also divides lines at hyphens.
        assert "".join(field.description.split()) in text.replace(" ", "") or name in NOT_FLAGS - {"models"}
    assert "Maximum size of a request body. (default: 2M)" in text and "after SIGTERM. (default: 30 s)" in text


def test_flags_are_read_as_settings() -> None:
    arguments = _parser().parse_args(["serve", "a=b", "--port", "9", "--no-access-log", "--kv-cache-memory", "1G"])
    flags = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    settings = load(flags)
    assert (settings.models, settings.port, settings.access_log, settings.kv_cache_memory) == (
        ["a=b"],
        9,
        False,
        1 << 30,
    )


def test_the_sizes_of_a_step_are_not_set_by_default() -> None:
    settings = load({})
    assert (settings.max_batch_tokens, settings.max_encode_tokens) == (None, None)
    assert load({"max_batch_tokens": "512"}).max_batch_tokens == 512
    help_texts = [Settings.model_fields[name].description or "" for name in ("max_batch_tokens", "max_encode_tokens")]
    for text, cpu, cuda in zip(help_texts, *DEFAULT_STEP_TOKENS.values(), strict=True):
        assert f"by default {cpu} on cpu, and {cuda} on cuda." in text


def test_adapters_as_flags_in_the_environment_and_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["serve", "--adapter", "a=x@m,b=org/y@main@m", "--adapter", "c=z@n"]
    flags = {name: value for name, value in vars(_parser().parse_args(given)).items() if name in Settings.model_fields}
    assert load(flags).adapter == ["a=x@m", "b=org/y@main@m", "c=z@n"]
    file = tmp_path / "triptych.toml"
    file.write_text('[adapter]\na = "x@m"\nb = "y@m"\n')
    assert load({}, file).adapter == ["a=x@m", "b=y@m"]
    monkeypatch.setenv("TRIPTYCH_ADAPTER", "c=z@n, d=w@n")
    assert load({}, file).adapter == ["c=z@n", "d=w@n"]


def test_the_name_of_a_model_is_the_end_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "lr=0.1" / "llama"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    for entry in (".", "./", "../llama", str(directory), str(directory) + "/"):
        assert load({"models": [entry]}).models == [f"llama={entry}"]
    monkeypatch.chdir(tmp_path)
    assert load({"models": ["lr=0.1/llama"]}).models == ["llama=lr=0.1/llama"]  # the whole text is a directory
    assert load({"models": ["lr=0.2/llama"]}).models == ["lr=0.2/llama"]  # the model `lr` at `0.2/llama`
    assert load({"models": ["llm=lr=0.1/llama"]}).models == ["llm=lr=0.1/llama"]
    with pytest.raises(
        StartError, match=r"cannot name a model after 'lr=0\.1': write NAME=PATH, for example llm=lr=0\.1"
    ):
        load({"models": ["lr=0.1"]})


def test_version_and_families(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.startswith("triptych ")
    main(["models"])
    table = capsys.readouterr().out
    for family in ("bert", "gpt2", "llama", "t5", "bart", "marian"):
        assert f"\n{family} " in "\n" + table


def test_the_error_for_a_wrong_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["fly"], ["serve", "--port"], ["serve", "--fly"], ["check"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        error = capsys.readouterr().err
        assert stop.value.code == 2 and error.startswith("triptych: ") and error.count("\n") == 1
        assert argv[:1] == ["fly"] or f"(see {' '.join(['triptych', *argv[:1]])} --help)" in error


def test_check_describes_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.wire.checkpoints import write_checkpoint
    from tests.wire.fake_serve import WORKER

    main(["check", str(write_checkpoint(tmp_path / "decoder"))], worker=WORKER)
    table = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert table["family"] == "fake (FakeModel)" and table["serves"] == "generate" and table["context"] == "512 tokens"
    assert table["execution"] == "program"
    (tmp_path / "decoder" / "tokenizer.json").unlink()
    with pytest.raises(SystemExit) as stop:
        main(["check", str(tmp_path / "decoder")], worker=WORKER)
    error = capsys.readouterr().err
    assert stop.value.code == 1 and error.count("\n") == 1 and str(tmp_path) not in error
