"""The playground as a whole in Chromium: tabs, keyboard, colour themes, contrast, labels and loading."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.page.conftest import ALL_TABS, TABS, Playground

pytestmark = pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)


def test_tabs_by_keyboard(playground: Playground) -> None:
    page = playground.page
    tabs = page.get_by_role("tab")
    assert tabs.all_inner_texts() == ALL_TABS
    tabs.first.focus()
    for press, selected in [
        ("ArrowDown", 1),
        ("ArrowRight", 2),
        ("End", 11),
        ("ArrowDown", 0),
        ("ArrowUp", 11),
        ("Home", 0),
    ]:
        page.keyboard.press(press)
        for at, tab in enumerate(tabs.all()):
            chosen = at == selected
            assert tab.get_attribute("aria-selected") == str(chosen).lower()
            assert tab.get_attribute("tabindex") == ("0" if chosen else "-1")
            assert page.locator(f"#{tab.get_attribute('aria-controls')}").is_visible() == chosen
        expect(tabs.nth(selected)).to_be_focused()
    assert page.url.endswith("#chat")
    page.goto(f"{playground.server.running.url}/#embed")
    expect(page.get_by_role("tabpanel", name="Embed")).to_be_visible()


def test_the_form_by_keyboard(playground: Playground) -> None:
    panel = playground.tab("Classify")
    panel.get_by_label("Text").focus()
    playground.page.keyboard.press("Control+Enter")
    expect(panel.locator(".bars li").first).to_be_visible()
    outline = "(element) => getComputedStyle(element).outlineStyle"
    playground.page.keyboard.press("Tab")
    assert playground.page.locator(":focus").evaluate(outline) == "solid", "focus is visible"


def test_every_control_has_a_label_and_every_id_is_unique(playground: Playground) -> None:
    unnamed = """() => [...document.querySelectorAll("input, textarea, select, button, [role=tab]")]
      .filter((one) => !(one.labels?.length || one.textContent.trim() || one.getAttribute("aria-label")))
      .map((one) => one.outerHTML)"""
    assert playground.page.evaluate(unnamed) == []
    ids = playground.page.evaluate("() => [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    for live in ("[role=alert]", "[role=status]", ".output[aria-live=polite]"):
        assert playground.page.locator(f"[role=tabpanel] {live}").count() >= len(TABS)


LOW_CONTRAST = (Path(__file__).parent / "low_contrast.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(playground: Playground, scheme: str) -> None:
    """Every text, including answers and errors, has at least the contrast that WCAG 2.1, 1.4.3 (AA), requires."""
    playground.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    playground.expected = {400, 422}
    for name in TABS:
        if name == "Speech":
            continue
        panel = playground.tab(name)
        playground.run(panel)
        assert playground.page.evaluate(LOW_CONTRAST) == [], name
    panel = playground.tab("Generate")
    panel.get_by_label("Top p").fill("7")
    playground.run(panel)
    assert panel.get_by_role("alert").is_visible()
    assert playground.page.evaluate(LOW_CONTRAST) == []


def test_themes(playground: Playground) -> None:
    page = playground.page
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.get_by_role("button", name="Switch to the light theme").click()
    assert page.evaluate(background) == light
    page.reload()
    assert page.evaluate(background) == light, "the choice outlives a reload"
    page.get_by_role("button", name="Switch to the dark theme").click()
    assert page.evaluate(background) == dark


def test_live_load(playground: Playground) -> None:
    load = playground.page.get_by_role("group", name="Load of the server")
    expect(load).to_contain_text("0 running")
    playground.page.evaluate("() => (globalThis.rates = [])")
    playground.page.evaluate(
        """() => new MutationObserver(() => rates.push(document.querySelector('[data-load="tokens/s"] b').textContent))
          .observe(document.getElementById("load"), { childList: true, subtree: true, characterData: true })"""
    )
    playground.run(playground.tab("Generate"))
    playground.page.wait_for_function("() => rates.some((rate) => Number(rate) > 0)")


def test_the_load_is_hidden_where_metrics_are_not_available(closed_playground: Playground) -> None:
    closed_playground.expected = {404}
    closed_playground.page.route("**/metrics", lambda route: route.fulfill(status=404, json={}))
    closed_playground.open("#generate")
    assert closed_playground.run(closed_playground.tab("Generate")).locator(".token").count()
    assert closed_playground.page.locator("#load").is_hidden()


def test_a_task_without_a_model_has_a_sentence_instead_of_a_tab(closed_playground: Playground) -> None:
    server = closed_playground.server
    info = server.running.get("/info", headers=server.headers).json()
    info["models"] = [model for model in info["models"] if model["name"] not in ("tagger", "speech")]
    closed_playground.page.route("**/info", lambda route: route.fulfill(json=info))
    closed_playground.open()
    assert closed_playground.page.get_by_role("tab").all_inner_texts() == [
        name for name in ALL_TABS if name not in ("Entities", "Speech")
    ]
    closed_playground.page.get_by_text("2 more tasks").click()
    sentences = closed_playground.page.locator("#missing li").all_inner_texts()
    assert sentences[1] == "Entities needs a model with a token classification head."
    assert sentences[0].startswith("Speech needs a speech model")


def test_loading_models_and_an_absent_server(closed_playground: Playground) -> None:
    page, server = closed_playground.page, closed_playground.server
    answers = iter(["absent", "loading", "ready"])

    def respond(route: Route) -> None:
        state = next(answers, "ready")
        if state == "absent":
            route.abort()
        elif state == "loading":
            info = httpx.get(f"{server.running.url}/info", headers=server.headers).json()
            route.fulfill(body=json.dumps(info | {"models": []}), content_type="application/json")
        else:
            route.continue_()

    page.route("**/info", respond)
    page.goto(server.running.url)
    if server.key:
        closed_playground.enter_key(server.key)
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    expect(page.get_by_text("The models are loading")).to_be_visible()
    expect(page.locator("[role=tab]")).to_have_count(len(ALL_TABS))
    closed_playground.problems = [text for text in closed_playground.problems if "ERR_FAILED" not in text]


def test_a_lost_connection_is_reported(playground: Playground) -> None:
    playground.page.route("**/generate", lambda route: route.abort())
    panel = playground.tab("Generate")
    playground.run(panel)
    assert panel.get_by_role("alert").inner_text() == "The connection to the server failed."
    playground.problems = [text for text in playground.problems if "ERR_FAILED" not in text]


@pytest.mark.parametrize("width", [360, 800])
def test_small_screens_do_not_scroll_sideways(playground: Playground, width: int) -> None:
    playground.page.set_viewport_size({"width": width, "height": 800})
    for name in TABS:
        panel = playground.tab(name)
        if name != "Speech":
            playground.run(panel)
        assert playground.page.evaluate("() => document.documentElement.scrollWidth") <= width, name
