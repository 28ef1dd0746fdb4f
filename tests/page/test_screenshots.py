"""Screenshots of the demo models for the documentation, in the folder that PLAYGROUND_SCREENSHOTS names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import serving
from tests.page.conftest import PageServer, Playground

MAX_BYTES = 200_000
UNCERTAIN = """(output) => [...output.querySelectorAll(".token")]
  .map((token) => token.style.getPropertyValue("--doubt"))
  .findIndex((doubt, at) => at > 12 && doubt > 0.3 && doubt < 0.9)"""
"""A token that is neither certain nor improbable."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving(tmp_path_factory.mktemp("server") / "log") as running:
        yield PageServer(running, None)


@pytest.mark.parametrize(("tab", "scheme"), [("Generate", "light"), ("Translate", "light"), ("Embed", "dark")])
def test_screenshot(demo: PageServer, browser: Browser, tab: str, scheme: str, tmp_path: Path) -> None:
    directory = Path(os.environ.get("PLAYGROUND_SCREENSHOTS") or tmp_path)
    size = {"width": 1200, "height": 640}
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce", viewport=size)
    playground = Playground.in_context(demo, context)
    playground.open()
    panel = playground.tab(tab)
    if tab == "Generate":
        panel.get_by_text("More settings").click()
        panel.get_by_label("Seed").fill("7")
        panel.get_by_text("More settings").click()
    output = playground.run(panel)
    playground.page.mouse.move(0, 0)
    playground.page.evaluate("() => scrollTo(0, 0)")
    if tab == "Generate":
        output.locator(".token").nth(int(output.evaluate(UNCERTAIN))).hover()
        expect(playground.page.get_by_role("tooltip")).to_be_visible()
    name = tab.lower() + ("" if scheme == "light" else f"-{scheme}")
    file = directory / f"{name}.png"
    playground.page.screenshot(path=file)
    assert 10_000 < file.stat().st_size < MAX_BYTES
    assert not playground.problems
    context.close()
