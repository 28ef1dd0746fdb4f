"""Save screenshots of the tabs in light and dark colours, for people to look at.

The environment variable PLAYGROUND_SCREENSHOTS names their folder.
"""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.audio.wavs import wav
from tests.page.conftest import ALL_TABS, PageServer, Playground
from tests.parity.speech import recording

COLOURS = 256
"""Number of colours of a saved picture. A palette reduces its size to a third, without a visible difference."""
MAX_BYTES = 90_000
UNCERTAIN = """(output) => [...output.querySelectorAll(".token")]
  .map((token) => token.style.getPropertyValue("--doubt"))
  .findIndex((doubt, at) => at > 12 && doubt > 0.3 && doubt < 0.9)"""
"""JavaScript that finds a token that is neither certain nor improbable."""


@pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 720), (1920, 800)])
def test_pictures(server: PageServer, browser: Browser, width: int, height: int, scheme: str, tmp_path: Path) -> None:
    directory = Path(os.environ.get("PLAYGROUND_SCREENSHOTS") or tmp_path)
    size = {"width": width, "height": height}
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce", viewport=size)
    playground = Playground.in_context(server, context)
    playground.open()
    for tab in ALL_TABS:
        _prepare(playground, tab, tmp_path)
        file = directory / f"{tab.lower().replace(' ', '-')}-{width}-{scheme}.png"
        picture = Image.open(BytesIO(playground.page.screenshot())).convert("RGB")
        picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)
        assert 5_000 < file.stat().st_size < MAX_BYTES, tab
    assert not playground.problems
    context.close()


def _prepare(playground: Playground, tab: str, directory: Path) -> None:
    """Make a tab show an answer."""
    panel = playground.tab(tab)
    if tab == "Status":
        panel.locator(".tile", has_text="workers").wait_for()
        return
    if tab == "Speech":
        (directory / "recording.wav").write_bytes(wav(recording(4.0, seed=1)))
        panel.get_by_label("Recording").set_input_files(directory / "recording.wav")
    if tab == "Generate":
        panel.get_by_text("More settings").click()
        panel.get_by_label("Seed").fill("7")
        panel.get_by_label("Token probabilities").check()
        panel.get_by_text("More settings").click()
    output = playground.run(panel)
    playground.page.mouse.move(0, 0)
    if tab == "Generate":
        token = int(output.evaluate(UNCERTAIN))
        output.locator(".token").nth(token).hover()
        playground.page.get_by_role("tooltip").wait_for()
