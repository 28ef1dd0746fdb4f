"""The API key in the playground: the page asks for it, keeps it only as long as the browser tab, and never shows it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.conftest import ALL_TABS, KEY, Playground


def test_the_key(closed_playground: Playground) -> None:
    page, server = closed_playground.page, closed_playground.server
    page.goto(server.running.url)
    key_field = page.get_by_label("API key")
    if server.key is None:
        page.locator("[role=tab]").first.wait_for()
        assert key_field.is_hidden()
        return
    expect(page.get_by_text("This server needs an API key.")).to_be_visible()
    expect(key_field).to_be_focused()
    assert page.locator("[role=tab]").count() == 0
    closed_playground.expected = {401}
    closed_playground.enter_key("wrong")
    expect(page.get_by_text("does not accept this API key")).to_be_visible()
    closed_playground.enter_key(KEY)
    expect(page.locator("[role=tab]")).to_have_count(len(ALL_TABS))
    assert KEY not in page.content()
    stored = page.evaluate("() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]")
    assert KEY in stored[0] and KEY not in stored[1] + stored[2] and KEY not in page.url
    page.reload()
    expect(page.locator("[role=tab]")).to_have_count(len(ALL_TABS))
    with page.context.new_page() as other:
        other.goto(server.running.url)
        expect(other.get_by_text("This server needs an API key.")).to_be_visible()
