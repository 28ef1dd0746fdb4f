"""Speculative decoding and the prefix cache change no text, are counted in metrics, and are separate for API keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import warm_processes
from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.models.draft_heads import eagle_config, eagle_tensors, write_head
from tests.waiting import eventually

DEMO = REPOSITORY / "weights" / "demo"
PROMPT = "The old man and his daughter lived in a small house by the river. One day the old man said to his daughter: "


@pytest.fixture(scope="module")
def speculative_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the story model four times, with drafts from different sources.

    The sources are a served model, n-grams, a model in a directory, and an EAGLE-3 head with random weights, which can
    predict all tokens.
    """
    other = shutil.copytree(DEMO / "story", tmp_path_factory.mktemp("other") / "story")
    sizes = json.loads((DEMO / "story" / "config.json").read_text())
    own = {"architectures", "model_type", "num_hidden_layers"}
    settings = {name: value if name in own else sizes.get(name, value) for name, value in eagle_config().items()}
    settings |= {"draft_vocab_size": None, "eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
    head = tmp_path_factory.mktemp("head") / "eagle"
    write_head(head, settings, eagle_tensors(settings))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRIPTYCH_API_KEYS", "first-key,second-key")
        with serving(
            tmp_path_factory.mktemp("server") / "log",
            *(f"{name}={DEMO / 'story'}" for name in ("twin", "repeats", "reads", "headed")),
            "--speculative",
            f"twin=draft:reads,repeats=ngram,reads=draft:{other},headed=draft:{head}",
            "--speculative-tokens",
            "3",
        ) as server:
            environment.undo()
            yield server


def ask(url: str, key: str = "", **fields) -> dict:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": PROMPT, "max_new_tokens": 60, **fields}
    answer = httpx.post(f"{url}/generate", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", ["twin", "repeats", "reads", "headed"])
def test_drafts_do_not_change_the_texts(
    demo_server: RunningServer, speculative_server: RunningServer, model: str
) -> None:
    # N-grams are used only if they are expected to be faster. The last request repeats one token, so they are used.
    repeating = {"allowed_token_ids": [300], "max_new_tokens": 200}
    settings = [{"do_sample": True, "seed": 5}, {"repetition_penalty": 1.2}, {"stop": ["."]}, {"num_beams": 2}]
    for fields in ({}, *settings, repeating):
        plain = ask(demo_server.url, model="story", **fields)
        with_drafts = ask(speculative_server.url, "first-key", model=model, **fields)
        assert [c["text"] for c in with_drafts["choices"]] == [c["text"] for c in plain["choices"]]
        assert with_drafts["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]

    def counted() -> tuple[float, float]:
        page = speculative_server.get("/metrics", headers={"authorization": "Bearer first-key"}).text
        values = dict(line.split(" ") for line in page.splitlines() if not line.startswith("#"))
        names = [f'triptych_speculative_{kind}_tokens_total{{model="{model}"}}' for kind in ("drafted", "accepted")]
        return tuple(float(values.get(name, 0)) for name in names)

    if model != "headed":  # a random head is seldom right, and drafting with it is not faster, so none may be accepted
        eventually(lambda: counted()[1] > 0)  # the worker sends statistics four times a second
    drafted, accepted = counted()
    assert drafted >= accepted


def test_the_source_of_drafts_is_told(speculative_server: RunningServer) -> None:
    answer = speculative_server.get("/info", headers={"authorization": "Bearer first-key"}).json()
    assert {model["name"]: model["drafts"] for model in answer["models"]} == {
        "twin": "draft model reads",
        "repeats": "n-grams of the text",
        "reads": "draft model story",
        "headed": "EAGLE-3 head eagle",
    }


def test_a_prompt_is_cached_only_for_its_key_and_model(speculative_server: RunningServer) -> None:
    fresh = f"Somebody else's secret. {PROMPT}"
    first = ask(speculative_server.url, "first-key", prompt=fresh, model="repeats", max_new_tokens=4)
    assert first["usage"]["cached_tokens"] == 0
    again = ask(speculative_server.url, "first-key", prompt=fresh, model="repeats", max_new_tokens=4)
    whole = (again["usage"]["prompt_tokens"] - 1) // 32 * 32
    assert again["usage"]["cached_tokens"] == whole > 0 and again["choices"] == first["choices"]
    for other in (("second-key", "repeats"), ("first-key", "twin")):
        assert (
            ask(speculative_server.url, other[0], prompt=fresh, model=other[1], max_new_tokens=4)["usage"][
                "cached_tokens"
            ]
            == 0
        )


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        ("story=draft:mood", 1, "token 0 is"),
        ("story=draft:mt", 1, "token 0 is"),
        ("story=draft:story", 2, "its own draft"),
        ("nobody=ngram", 2, "no model is named 'nobody'"),
        ("mood=ngram", 1, "needs a model that generates text"),
        ("story=mtp", 1, "its checkpoint has no prediction head"),
    ],
)
def test_the_error_for_an_invalid_draft_is_one_line(setting: str, status: int, words: str) -> None:
    models = {"story": "story", "mt": "translator-en-fr", "mood": "sentiment"}
    named = [f"{name}={DEMO / Path(directory)}" for name, directory in models.items()]
    done = warm_processes.run("serve", *named, "--speculative", setting, "--log-level", "error", "--port", "0")
    assert done.returncode == status
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("triptych:")]
    assert words in line and "Traceback" not in done.stderr
