"""Recording with the microphone. Chromium plays a file instead of a real microphone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.audio.wavs import wav
from tests.page.conftest import PageServer, Playground, chromium
from tests.parity.speech import recording


@pytest.fixture
def microphone(server: PageServer, tmp_path: Path) -> Iterator[Playground]:
    """The playground in a browser whose microphone repeats a file of two seconds."""
    file = tmp_path / "microphone.wav"
    file.write_bytes(wav(recording(2.0, seed=1)))
    arguments = ["--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={file}"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        made = Playground.in_context(server, browser.new_context())
        made.open()
        yield made
        assert not made.problems
        browser.close()


def test_a_recording_is_transcribed(microphone: Playground) -> None:
    microphone.page.context.grant_permissions(["microphone"])
    microphone.page.evaluate(
        "() => { const make = URL.createObjectURL;"
        " URL.createObjectURL = (file) => { window.recorded = file; return make(file) } }"
    )
    panel = microphone.tab("Speech")
    panel.get_by_role("button", name="Record", exact=True).click()
    expect(panel.get_by_text("Recording, 0:01")).to_be_visible()
    panel.get_by_role("button", name="Stop recording").click()
    expect(panel.get_by_text("microphone.webm, ")).to_be_visible()
    expect(panel.get_by_role("button", name="Record", exact=True)).to_be_visible()
    seconds, loudest = microphone.page.evaluate(
        """async () => {
            const sound = await new AudioContext().decodeAudioData(await window.recorded.arrayBuffer());
            return [sound.duration, Math.max(...sound.getChannelData(0).map(Math.abs))];
        }"""
    )
    assert seconds > 0.9 and loudest > 0.01, "the recording is as long as it was, and not silent"
    microphone.run(panel)
    expect(panel.locator(".transcript")).to_be_visible()


def test_a_refused_microphone_is_told(microphone: Playground) -> None:
    panel = microphone.tab("Speech")
    panel.get_by_role("button", name="Record", exact=True).click()
    expect(panel.get_by_text("No microphone: ")).to_be_visible()
    expect(panel.get_by_role("button", name="Record", exact=True)).to_be_enabled()
