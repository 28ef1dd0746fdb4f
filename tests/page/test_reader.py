"""The playground at three window widths: errors, results, the size of touch targets, and the tab Status."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import ALL_TABS, Playground

pytestmark = pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)

WIDTHS = (390, 1280, 1920)
SMALL_TARGETS = """(least) => [...document.querySelectorAll("button, a, summary, select, input, textarea, [role=tab]")]
  .filter((one) => one.checkVisibility() && !one.closest(".spoken, .skip, p") && !one.classList.contains("spoken"))
  .map((one) => [one, (one.type === "checkbox" ? one.parentElement : one).getBoundingClientRect()])
  .filter(([, { width, height }]) => width && (height < least || width < least))
  .map(([one, { width, height }]) => `${one.outerHTML.slice(0, 90)} ${width.toFixed(0)}x${height.toFixed(0)}`)"""


def _resize(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844 if width < 500 else 800})


@pytest.mark.parametrize("width", WIDTHS)
def test_an_error_stands_beside_its_field(playground: Playground, width: int) -> None:
    playground.expected = {422}
    _resize(playground.page, width)
    panel = playground.tab("Generate")
    panel.get_by_label("Prompt").fill("A long prompt. " * 400)
    panel.get_by_label("Temperature").fill("-2")
    playground.run(panel)
    error, field = panel.get_by_role("alert"), panel.get_by_label("Temperature")
    expect(error).to_be_in_viewport(ratio=1)
    expect(field).to_be_in_viewport(ratio=1)
    expect(field).to_be_focused()
    gap = error.evaluate("(one) => one.getBoundingClientRect().top") - field.evaluate(
        "(one) => one.getBoundingClientRect().bottom"
    )
    assert 0 <= gap < 30


@pytest.mark.parametrize("width", WIDTHS)
def test_the_result_comes_into_view(playground: Playground, width: int) -> None:
    _resize(playground.page, width)
    for name, seen in [("Classify", ".bars li"), ("Rerank", ".bars li"), ("Translate", ".translation")]:
        panel = playground.tab(name)
        playground.run(panel)
        expect(panel.locator(seen).first).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize(("width", "least"), [(390, 44), (1280, 24), (1920, 24)])
def test_targets_are_large_enough(playground: Playground, width: int, least: int) -> None:
    _resize(playground.page, width)
    for name in ALL_TABS:
        panel = playground.tab(name)
        if name in ("Chat", "Translate"):
            playground.run(panel)
        if name == "Chat" and width == 390:
            panel.get_by_role("button", name="Options").click()
        assert playground.page.evaluate(SMALL_TARGETS, least) == [], name


@pytest.mark.parametrize("width", WIDTHS)
def test_the_header_is_one_row(playground: Playground, width: int) -> None:
    _resize(playground.page, width)
    tops = playground.page.evaluate(
        """() => [...document.querySelector(".top").children].filter((one) => one.checkVisibility())
          .map((one) => { const { top, bottom } = one.getBoundingClientRect(); return (top + bottom) / 2 })"""
    )
    assert max(tops) - min(tops) < 3
    expect(playground.page.get_by_role("link", name="API")).to_be_in_viewport()


def test_the_status_of_the_server(closed_playground: Playground) -> None:
    server = closed_playground.server
    info = server.running.get("/info", headers=server.headers).json()
    sizes = {"memory_bytes": 0, "kv_cache_bytes": 0, "disk_bytes": 2_000_000_000, "running": 0, "waiting": 0}
    times = {"expires_in_seconds": None, "retry_in_seconds": None, "load_seconds": None}
    model = {"name": "large", "state": "declared", "reason": None} | sizes | times
    info["on_demand"] = {"memory_bytes": None, "used_bytes": 0, "models": [model]}
    page = closed_playground.page
    page.route("**/info", lambda route: route.fulfill(json=info))
    closed_playground.open("#status")
    panel = closed_playground.tab("Status")
    expect(panel.locator(".tile", has_text="requests running").locator("dd")).to_have_text("0")
    assert panel.get_by_role("row").count() == len(info["models"]) + 3
    refused = {"error": {"message": "the API key may not load and unload models", "code": "forbidden"}}
    closed_playground.expected = {403}
    page.route("**/models/large/load", lambda route: route.fulfill(status=403, json=refused))
    panel.get_by_role("button", name="Load large").click()
    expect(panel.get_by_role("alert")).to_have_text("the API key may not load and unload models")
    page.unroute("**/models/large/load")
    page.route("**/models/large/load", lambda route: route.fulfill(json={"success": True}))
    model["state"] = "loaded"
    panel.get_by_role("button", name="Load large").click()
    expect(closed_playground.tab("Status").get_by_role("button", name="Unload large")).to_be_visible()


@pytest.mark.parametrize(
    ("samples", "name", "shown"),
    [
        ({"resident": 300_000_000}, "resident memory", "300 MB"),
        ({"allocated": 20_000_000_000, "reserved": 21_000_000_000}, "GPU memory", "21 GB"),
    ],
)
def test_memory_of_the_device_is_counted_once(
    closed_playground: Playground, samples: dict[str, int], name: str, shown: str
) -> None:
    """On a GPU, the memory that torch has reserved contains what it has allocated, so only one of them is counted."""
    lines = [f'triptych_device_memory_bytes{{kind="{kind}"}} {float(size)}' for kind, size in samples.items()]
    page = closed_playground.page
    page.route("**/metrics", lambda route: route.fulfill(body="\n".join(lines) + "\n", content_type="text/plain"))
    closed_playground.open("#status")
    tile = closed_playground.tab("Status").locator(".tile", has_text=name)
    expect(tile.locator("dd")).to_have_text(shown)
