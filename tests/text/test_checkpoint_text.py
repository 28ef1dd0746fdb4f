"""Loading the tokenizer and template files of a checkpoint runs no template.

Errors name the damaged template's file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.errors import CheckpointError
from server.text import checkpoint_text
from server.text.chats.chat import ChatRenderer
from tests.text import checkpoints
from tests.text.chat_templates import HOSTILE


def written(directory: Path, **settings: object) -> Path:
    checkpoints.write_llama(directory)
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return directory


def test_hostile_templates_are_loaded_without_running_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def render(*_: object) -> str:
        raise AssertionError("a template was rendered")

    monkeypatch.setattr(ChatRenderer, "render", render)
    for name, template in HOSTILE.items():
        found = checkpoint_text.load("m", written(tmp_path / name, chat_template=template))
        assert found.chat_templates.choose() == template


def test_a_checkpoint_without_templates_is_accepted(tmp_path: Path) -> None:
    assert checkpoint_text.load("m", written(tmp_path)).chat_templates.by_name == {}


@pytest.mark.parametrize("template", [7, ["a"], [{"name": "a"}]])
def test_damaged_templates_are_refused_in_one_line(tmp_path: Path, template: object) -> None:
    with pytest.raises(CheckpointError, match=r"^m: tokenizer_config.json: chat_template") as error:
        checkpoint_text.load("m", written(tmp_path, chat_template=template))
    assert "\n" not in str(error.value)


def test_a_template_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    directory = written(tmp_path / "model")
    (directory / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads out"):
        checkpoint_text.load("m", directory)
