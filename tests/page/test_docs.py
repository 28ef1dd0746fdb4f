"""The page /docs in Chromium: the API key, groups of routes, examples that run, dark mode, and the way back."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from server.api.dialects.registry import CLIENTS
from tests.page.conftest import KEY, Playground


@pytest.mark.parametrize("server", [KEY], ids=["key"], indirect=True)
def test_the_key_comes_first(closed_playground: Playground) -> None:
    page = closed_playground.page
    closed_playground.expected = {401}
    page.goto(f"{closed_playground.server.running.url}/docs")
    expect(page.get_by_text("This server needs an API key.")).to_be_visible()
    expect(page.get_by_label("API key")).to_be_focused()
    assert page.get_by_text("Failed to load").count() == 0
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_text("does not accept this API key")).to_be_visible()
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use this key").click()
    page.locator(".opblock-tag").first.wait_for()


@pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)
def test_groups_examples_themes_and_the_way_back(closed_playground: Playground) -> None:
    page = closed_playground.page
    page.emulate_media(color_scheme="dark")
    page.goto(f"{closed_playground.server.running.url}/docs")
    groups = page.locator(".opblock-tag")
    groups.first.wait_for()
    assert groups.count() == len(CLIENTS) + 1, "one for each kind of client, and one for the server itself"
    assert page.get_by_label("API key").is_hidden()
    background = "() => getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(28, 32, 34)"
    page.get_by_role("button", name="Switch to the light theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.locator("#operations-tag-OpenAI").click()
    first = page.locator("[id^=operations-OpenAI-]").first
    assert "{" not in first.locator(".opblock-summary-path").inner_text(), "a route that everybody uses comes first"
    page.locator("#operations-OpenAI-chat_completions .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()
    page.get_by_role("link", name="Playground").click()
    expect(page.get_by_role("tab", name="Chat")).to_be_visible()
