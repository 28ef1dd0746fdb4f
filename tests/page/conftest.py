"""Fixtures: a running server, without and with an API key, and its playground in a headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

from tests.e2e.conftest import RunningServer, serving
from tests.page.checkpoints import write_models

KEY = "a-key-of-the-page-tests"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TABS = ["Chat", "Generate", "Translate", "Speech", "Embed", "Classify"]
TABS += ["Zero-shot", "Entities", "Fill mask", "Question", "Rerank"]
"""Tabs of tasks. The tab "Status" comes after them."""
ALL_TABS = [*TABS, "Status"]
_FAILED_REQUEST = re.compile(r"the server responded with a status of (\d+)")


@dataclass(frozen=True)
class PageServer:
    """A server. key: the API key that it requires, or None."""

    running: RunningServer
    key: str | None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def post(self, path: str, body: dict[str, Any]) -> Any:
        response = self.running.post(path, json=body, headers=self.headers)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session", params=[None, KEY], ids=["no-key", "key"])
def server(
    request: pytest.FixtureRequest, models: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageServer]:
    directory = tmp_path_factory.mktemp("server")
    arguments = list(models)
    if request.param:
        (directory / "keys").write_text(request.param)
        arguments += ["--api-key-file", str(directory / "keys")]
    with serving(directory / "log", *arguments) as running:
        yield PageServer(running, request.param)


def chromium() -> str:
    """The path of the Chromium program. If there is none, the test is skipped."""
    named = os.environ.get("PLAYGROUND_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if named is None:
        pytest.skip(f"no Chromium on this machine: none of {', '.join(NAMES)} in PATH")
    return named


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, started once per test module.

    It must not run longer, because other tests cannot run an event loop while Playwright runs its own.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()


@dataclass
class Playground:
    """The page in a browser.

    expected: HTTP statuses of the failed requests that the test causes. Each appears as a console error.
    problems: all other console errors, exceptions, and requests to other hosts.
    """

    server: PageServer
    page: Page
    expected: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def in_context(cls, server: PageServer, context: BrowserContext) -> Playground:
        page = context.new_page()
        page.set_default_timeout(30_000)
        made = cls(server, page)
        page.on("console", lambda message: made._on_console(message.type, message.text))
        page.on("pageerror", lambda error: made.problems.append(str(error)))
        page.on("request", lambda request: made._on_request(request.url))
        return made

    def _on_console(self, kind: str, text: str) -> None:
        failed = _FAILED_REQUEST.search(text)
        if kind in ("error", "warning") and not (failed and int(failed[1]) in self.expected):
            self.problems.append(text)

    def _on_request(self, url: str) -> None:
        if not url.removeprefix("blob:").startswith(self.server.running.url + "/"):
            self.problems.append(f"request to {url}")

    def open(self, fragment: str = "") -> None:
        """Open the page, and enter the key that the server requires."""
        self.page.goto(f"{self.server.running.url}/{fragment}")
        if self.server.key:
            self.enter_key(self.server.key)
        self.page.locator("[role=tab]").first.wait_for()

    def enter_key(self, key: str) -> None:
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Use").click()

    def tab(self, name: str) -> Locator:
        """Select a tab, and return its panel."""
        self.page.get_by_role("tab", name=name, exact=True).click()
        return self.page.get_by_role("tabpanel", name=name, exact=True)

    def run(self, panel: Locator) -> Locator:
        """Press the main button of a panel, wait for the end of the answer, and return the element with the output."""
        panel.locator(".primary").click()
        self.wait(panel)
        return panel.locator(".output")

    def wait(self, panel: Locator) -> None:
        panel.locator(".output[aria-busy=false]").wait_for(state="attached")
        panel.locator(".primary").wait_for()

    def numbers(self, panel: Locator) -> dict[str, str]:
        """The measurements shown below an answer, such as times and token counts, by name."""
        names, values = (panel.locator(f".numbers {tag}").all_inner_texts() for tag in ("dt", "dd"))
        return dict(zip(names, values, strict=True))

    def body(self, panel: Locator) -> dict[str, Any]:
        """The body of the request that the panel shows as code."""
        if not (fold := panel.locator("details:has(> .code)")).evaluate_all("(all) => all.every(({ open }) => open)"):
            fold.locator("summary").first.click()
        panel.get_by_role("button", name="curl").click()
        code = panel.locator(".code code").inner_text()
        quoted = code[code.index("-d '") + 4 : -1].replace("'\\''", "'")
        return json.loads(quoted)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], color_scheme="light")
    yield context
    context.close()


@pytest.fixture
def playground(server: PageServer, context: BrowserContext) -> Iterator[Playground]:
    """The opened page.

    At the end of the test it checks that there were no console errors and no request to another host.
    """
    made = Playground.in_context(server, context)
    made.open()
    yield made
    assert not made.problems


@pytest.fixture
def closed_playground(server: PageServer, context: BrowserContext) -> Iterator[Playground]:
    """Like `playground`, but the test opens the page itself."""
    made = Playground.in_context(server, context)
    yield made
    assert not made.problems
