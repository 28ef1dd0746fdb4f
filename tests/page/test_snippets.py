"""The code examples that each tab shows run without changes, and send the same request as the tab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audio.wavs import wav
from tests.page.conftest import KEY, TABS, Playground
from tests.parity.speech import recording
from tests.waiting import HANG_SECONDS

AWKWARD = "It's a \"test\" \\ of $HOME and `ls`,\n{braces} [ brackets ] 'twice' 🎩"
OPENAI = {"Chat", "Generate", "Embed", "Speech"}
TEXT_FIELD = {"Chat": "Message", "Generate": "Prompt", "Translate": "Text", "Classify": "Text"}


def run_code(language: str, code: str, key: str | None, directory: Path) -> str:
    """Run a code example as a user would, and return its output."""
    command = ["bash", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"TRIPTYCH_API_KEY": key} if key else {}
    run = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)
@pytest.mark.parametrize("tab", ["Chat", "Classify"])
def test_the_code_runs_without_a_key(playground: Playground, tab: str, tmp_path: Path) -> None:
    check_code(playground, tab, tmp_path)


@pytest.mark.parametrize("server", [KEY], ids=["key"], indirect=True)
@pytest.mark.parametrize("tab", TABS)
def test_the_code_runs(playground: Playground, tab: str, tmp_path: Path) -> None:
    check_code(playground, tab, tmp_path)


def check_code(playground: Playground, tab: str, tmp_path: Path) -> None:
    panel = playground.tab(tab)
    if tab in TEXT_FIELD:
        panel.get_by_label(TEXT_FIELD[tab], exact=True).fill(AWKWARD)
    if tab == "Chat":
        for title in ("Settings", "This request as code"):
            panel.locator("summary", has_text=title).click()
    if tab in ("Chat", "Generate"):
        panel.get_by_label("Temperature").fill("0")
        panel.get_by_label("Length").fill("12")
    if tab == "Speech":
        (tmp_path / "it's.wav").write_bytes(wav(recording(1.0, seed=1)))
        panel.get_by_label("Recording").set_input_files(tmp_path / "it's.wav")
        panel.get_by_label("Language", exact=True).fill("de")
    output = playground.run(panel)
    if tab == "Chat":
        panel.get_by_role("button", name="New conversation").click()
        panel.get_by_label("Message", exact=True).fill(AWKWARD)
    languages = panel.locator(".choice:visible").all_inner_texts()
    assert languages == ["curl", "Python", *(["OpenAI client"] if tab in OPENAI else [])]
    printed = {}
    for language in languages:
        panel.get_by_role("button", name=language).click()
        panel.get_by_title("Copy the code").last.click()
        code = playground.page.evaluate("() => navigator.clipboard.readText()")
        assert code == panel.locator(".code code").inner_text()
        assert KEY not in code and ("TRIPTYCH_API_KEY" in code) == bool(playground.server.key)
        printed[language] = run_code(language, code, playground.server.key, tmp_path)
        assert '"error"' not in printed[language]
    if tab == "Generate":
        assert printed["Python"] == output.locator(".token-text").text_content()
    if tab in ("Chat", "Generate"):
        assert printed["OpenAI client"] == printed["Python"] != ""
        assert "event: done" in printed["curl"] or "data: [DONE]" in printed["curl"]
    if tab == "Speech":
        assert printed["OpenAI client"].strip() == output.locator(".transcript p").evaluate_all(
            "(all) => all.map((p) => p.textContent).join('').trim()"
        )
    if tab == "Translate":
        assert output.locator(".translation").inner_text() in printed["Python"].replace("\\n", "\n")
