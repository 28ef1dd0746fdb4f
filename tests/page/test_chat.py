"""The tab Chat: what is visible while an answer arrives, what is kept, and what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.page.conftest import Playground

pytestmark = pytest.mark.parametrize("server", [None], ids=["no-key"], indirect=True)

WIDTHS = (390, 1280, 1920)
CHAT = "**/v1/chat/completions"


def _chunk(**delta: Any) -> str:
    finish = delta.pop("finish", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return "data: " + json.dumps({"choices": [choice]}, ensure_ascii=False) + "\n\n"


def _answer(*pieces: str) -> str:
    return "".join(_chunk(content=piece) for piece in pieces) + _chunk(finish="stop") + "data: [DONE]\n\n"


def _answering(playground: Playground, *bodies: str) -> list[dict[str, Any]]:
    """Answer each request of the tab with the next body; further requests get the last one. Returns the requests."""
    requests: list[dict[str, Any]] = []

    def respond(route: Route) -> None:
        requests.append(route.request.post_data_json)
        body = bodies[min(len(requests), len(bodies)) - 1]
        route.fulfill(body=body, content_type="text/event-stream")

    playground.page.route(CHAT, respond)
    return requests


STREAM = """() => {
  const real = fetch;
  globalThis.fetch = async (address, options) => {
    if (!String(address).endsWith("/v1/chat/completions")) return real(address, options);
    const stream = new ReadableStream({ start(controller) { globalThis.stream = controller; } });
    const encoder = new TextEncoder();
    globalThis.write = (text) => stream_.enqueue(encoder.encode(text));
    const stream_ = globalThis.stream;
    options.signal.addEventListener("abort", () => stream_.error(new DOMException("stopped", "AbortError")));
    return new Response(stream, { headers: { "Content-Type": "text/event-stream" } });
  };
}"""
"""JavaScript that replaces the server's answers by a stream to which the test adds text with `write(text)`."""


def _say(playground: Playground, text: str) -> None:
    playground.page.evaluate("(text) => write(text)", text)


def _send(panel: Locator, text: str) -> None:
    panel.get_by_label("Message", exact=True).fill(text)
    panel.get_by_label("Message", exact=True).press("Enter")


def _in_view(locator: Locator) -> bool:
    """Whether the element lies completely in the window and nothing covers its centre."""
    return locator.evaluate(
        """(one) => {
          const { left, right, top, bottom } = one.getBoundingClientRect();
          const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
          return left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && one.contains(hit);
        }"""
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_composer_and_stop_stay_in_view(playground: Playground, width: int) -> None:
    page = playground.page
    page.set_viewport_size({"width": width, "height": 800})
    panel = playground.tab("Chat")
    page.evaluate(STREAM)
    _send(panel, "Tell me a long story.")
    page.wait_for_function("() => globalThis.write")
    for part in range(30):
        _say(playground, _chunk(content=f"Paragraph {part}. " + "The fox ran on. " * 20 + "\n\n"))
    last = panel.get_by_text("Paragraph 29.")
    expect(last).to_be_in_viewport()
    assert _in_view(panel.get_by_role("button", name="Stop"))
    assert _in_view(panel.get_by_label("Message", exact=True))
    panel.get_by_role("button", name="Stop").click()
    playground.wait(panel)
    assert _in_view(panel.locator(".primary"))
    expect(panel.locator(".thread").get_by_text("You stopped this answer.")).to_be_in_viewport()


@pytest.mark.parametrize("width", WIDTHS)
def test_scrolling_up_is_not_undone(playground: Playground, width: int) -> None:
    page = playground.page
    page.set_viewport_size({"width": width, "height": 800})
    panel = playground.tab("Chat")
    page.evaluate(STREAM)
    _send(panel, "Tell me a long story.")
    page.wait_for_function("() => globalThis.write")
    for part in range(30):
        _say(playground, _chunk(content=f"Paragraph {part}. " + "The fox ran on. " * 20 + "\n\n"))
    expect(panel.get_by_text("Paragraph 29.")).to_be_in_viewport()
    panel.locator(".thread").hover()
    page.mouse.wheel(0, -40)
    top = "(thread) => thread.scrollTop"
    end = panel.locator(".thread").evaluate("(thread) => thread.scrollHeight - thread.clientHeight")
    page.wait_for_function("(end) => document.querySelector('.thread').scrollTop < end - 20", arg=end)
    seen = panel.locator(".thread").evaluate(top)
    for part in range(30, 40):
        _say(playground, _chunk(content=f"Paragraph {part}.\n\n"))
    expect(panel.get_by_text("Paragraph 39.")).to_be_attached()
    assert panel.locator(".thread").evaluate(top) == seen
    panel.get_by_role("button", name="Newest text").click()
    expect(panel.get_by_text("Paragraph 39.")).to_be_in_viewport()
    _say(playground, _chunk(content="Paragraph 40. " + "The fox ran on. " * 400) + _chunk(content="The end."))
    expect(panel.locator(".thread").get_by_text("The end.")).to_be_attached()
    page.wait_for_function(
        """() => {
          const { scrollHeight, clientHeight, scrollTop } = document.querySelector(".thread");
          return scrollHeight - clientHeight - scrollTop < 2;
        }"""
    )


def test_a_new_conversation_has_nothing_of_a_stopped_answer(playground: Playground) -> None:
    page = playground.page
    panel = playground.tab("Chat")
    page.evaluate(STREAM)
    _send(panel, "The first question")
    page.wait_for_function("() => globalThis.write")
    _say(playground, _chunk(content="The first answer"))
    expect(panel.locator(".thread").get_by_text("The first answer")).to_be_visible()
    panel.get_by_role("button", name="New conversation").click()
    _send(panel, "The second question")
    playground.page.wait_for_timeout(100)
    _say(playground, _chunk(content="The second answer") + _chunk(finish="stop"))
    page.evaluate("() => stream.close()")
    playground.wait(panel)
    assert panel.locator(".message").count() == 2
    assert "first" not in panel.locator(".thread").inner_text().lower()
    messages = playground.body(panel)["messages"]
    assert [message["content"] for message in messages] == ["The second question", "The second answer"]
    panel.get_by_role("button", name="The first question", exact=True).click()
    expect(panel.locator(".thread").get_by_text("The first answer")).to_be_visible()
    expect(panel.locator(".thread").get_by_text("You stopped this answer.")).to_be_visible()


def test_only_what_the_user_set_is_sent(playground: Playground) -> None:
    requests = _answering(playground, _answer("Hello."))
    panel = playground.tab("Chat")
    _send(panel, "Hi")
    playground.wait(panel)
    assert set(requests[0]) == {"model", "messages", "stream", "stream_options"}
    panel.locator("summary", has_text="Settings").click()
    panel.get_by_label("Temperature").fill("0.5")
    panel.get_by_label("Length").fill("9")
    panel.get_by_label("Token probabilities").check()
    _send(panel, "Hi")
    playground.wait(panel)
    assert set(requests[1]) - set(requests[0]) == {"temperature", "max_tokens", "logprobs", "top_logprobs"}


def test_regenerate_edit_and_resend(playground: Playground) -> None:
    requests = _answering(playground, _answer("One."), _answer("Two."), _answer("Three."))
    panel = playground.tab("Chat")
    _send(panel, "A question")
    playground.wait(panel)
    panel.get_by_role("button", name="Retry").click()
    expect(panel.locator(".thread").get_by_text("Two.")).to_be_visible()
    playground.wait(panel)
    assert requests[1]["messages"] == requests[0]["messages"]
    assert panel.locator(".message").count() == 2
    panel.get_by_role("button", name="Edit").click()
    panel.get_by_label("Changed message").fill("Another question")
    panel.get_by_role("button", name="Send again").click()
    expect(panel.locator(".thread").get_by_text("Three.")).to_be_visible()
    playground.wait(panel)
    assert requests[2]["messages"] == [{"role": "user", "content": "Another question"}]
    assert panel.locator(".message").count() == 2


def test_a_reload_keeps_the_conversation_and_the_typed_text(playground: Playground) -> None:
    _answering(playground, _answer("A **kept** answer."))
    panel = playground.tab("Chat")
    _send(panel, "A kept question")
    playground.wait(panel)
    panel.get_by_label("Message", exact=True).fill("Half a mess")
    playground.tab("Classify").get_by_label("Text").fill("Typed and not sent")
    playground.page.reload()
    panel = playground.tab("Chat")
    expect(panel.locator(".thread").get_by_text("A kept question")).to_be_visible()
    expect(panel.locator(".markdown strong")).to_have_text("kept")
    assert panel.get_by_label("Message", exact=True).input_value() == "Half a mess"
    assert playground.tab("Classify").get_by_label("Text").input_value() == "Typed and not sent"


def test_conversations_are_listed_exported_and_deleted(playground: Playground) -> None:
    _answering(playground, _answer("An answer."))
    panel = playground.tab("Chat")
    _send(panel, "Question one")
    playground.wait(panel)
    panel.get_by_role("button", name="New conversation").click()
    _send(panel, "Question two")
    playground.wait(panel)
    titles = panel.locator(".conversation-title")
    expect(titles).to_have_text(["Question two", "Question one"])
    with playground.page.expect_download() as download:
        panel.get_by_role("button", name="Export as JSON").click()
    exported = json.loads(download.value.path().read_text())
    assert [message["content"] for message in exported["messages"]] == ["Question two", "An answer."]
    with playground.page.expect_download() as download:
        panel.get_by_role("button", name="Export as Markdown").click()
    assert "## Model\n\nAn answer." in download.value.path().read_text()
    panel.get_by_role("button", name="Delete: Question two").click()
    expect(titles).to_have_text(["Question one"])
    assert panel.locator(".message").count() == 0
    titles.first.click()
    expect(panel.locator(".message")).to_have_count(2)


def test_a_lost_server_costs_only_the_rest_of_the_answer(playground: Playground) -> None:
    page = playground.page
    panel = playground.tab("Chat")
    page.evaluate(STREAM)
    _send(panel, "A question")
    page.wait_for_function("() => globalThis.write")
    _say(playground, _chunk(content="Half an ") + _chunk(content="answer"))
    expect(panel.locator(".thread").get_by_text("Half an answer")).to_be_visible()
    page.route("**/metrics", lambda route: route.abort())
    page.evaluate("() => stream.error(new TypeError('network error'))")
    playground.wait(panel)
    expect(panel.get_by_text("The 2 tokens that arrived are kept.")).to_be_in_viewport()
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    page.unroute("**/metrics")
    expect(page.get_by_text("The server does not answer.")).to_be_hidden()
    expect(panel.locator(".thread").get_by_text("Half an answer")).to_be_visible()
    panel.get_by_role("button", name="Retry").click()
    page.wait_for_timeout(100)
    _say(playground, _chunk(content="A whole answer") + _chunk(finish="stop"))
    page.evaluate("() => stream.close()")
    playground.wait(panel)
    assert panel.locator(".message.assistant .markdown").all_inner_texts() == ["A whole answer"]
    playground.problems = [text for text in playground.problems if "ERR_FAILED" not in text]


def test_reasoning_is_folded_and_tool_calls_take_results(playground: Playground) -> None:
    called = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call = {"index": 0, "id": "c1", "type": "function", "function": called}
    first = _chunk(reasoning_content="Let me look.") + _chunk(tool_calls=[call]) + _chunk(finish="tool_calls")
    requests = _answering(playground, first + "data: [DONE]\n\n", _answer("It rains."))
    panel = playground.tab("Chat")
    panel.locator("summary", has_text="Tools").click()
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    panel.get_by_label("Tools").fill("[oops")
    _send(panel, "Weather in Oslo?")
    expect(panel.get_by_role("alert")).to_contain_text("The tools are no JSON")
    assert not requests
    panel.get_by_label("Tools").fill(json.dumps([tool]))
    panel.get_by_label("Message", exact=True).press("Enter")
    playground.wait(panel)
    assert requests[0]["tools"] == [tool]
    thought = panel.get_by_text("Let me look.")
    assert not thought.is_visible()
    panel.locator("summary", has_text="Reasoning").click()
    assert thought.is_visible()
    panel.get_by_label("Result of weather").fill("rain")
    panel.get_by_role("button", name="Send the results").click()
    expect(panel.locator(".thread").get_by_text("It rains.")).to_be_visible()
    playground.wait(panel)
    assert [message["role"] for message in requests[1]["messages"]] == ["user", "assistant", "tool"]
    assert requests[1]["messages"][1]["tool_calls"][0]["function"]["name"] == "weather"
    assert requests[1]["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def test_right_to_left_and_cjk_texts(playground: Playground) -> None:
    _answering(playground, _answer("مرحبا، كيف حالك؟\n\n", "日本語の文章です。"))
    panel = playground.tab("Chat")
    _send(panel, "שלום")
    playground.wait(panel)
    direction = "(one) => getComputedStyle(one).direction"
    assert panel.locator(".said").evaluate(direction) == "rtl"
    assert panel.locator(".markdown p").nth(0).evaluate(direction) == "rtl"
    assert panel.locator(".markdown p").nth(1).evaluate(direction) == "ltr"
    assert panel.locator(".markdown p").nth(1).get_attribute("lang") == "ja"
    panel.get_by_label("Message", exact=True).fill("مرحبا")
    assert panel.get_by_label("Message", exact=True).evaluate(direction) == "rtl"


def test_copy_works_over_plain_http(playground: Playground) -> None:
    """Copying also works without HTTPS, where a page has no `navigator.clipboard`."""
    _answering(playground, _answer("Copy me.\n\n```python\nprint(1)\n```\n"))
    panel = playground.tab("Chat")
    _send(panel, "Code")
    playground.wait(panel)
    page = playground.page
    for name, text in [("Copy the code", "print(1)"), ("Copy the message", "Code")]:
        page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
        panel.locator(f".thread [title='{name}']").click()
        expect(panel.locator(f".thread [title='{name}']")).to_have_text("Copied")
        page.evaluate("() => delete navigator.clipboard")
        assert page.evaluate("() => navigator.clipboard.readText()") == text


def test_the_model_card(playground: Playground) -> None:
    card = playground.tab("Chat").locator(".model-card")
    facts = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert facts["family"] == "llama" and facts["precision"] == "float32" and facts["context"] == "512 tokens"
    assert facts["memory"] == "4.35 MB + 168 MB KV"


def test_a_refused_first_message_leaves_no_conversation(playground: Playground) -> None:
    playground.expected = {400}
    panel = playground.tab("Chat")
    field = panel.get_by_label("Message", exact=True)
    refused = {"error": {"message": "`messages` has 6002 tokens", "param": "messages", "code": "too_long"}}
    playground.page.route(CHAT, lambda route: route.fulfill(status=400, json=refused))
    field.fill("a long message")
    field.press("Enter")
    expect(panel.get_by_role("alert")).to_contain_text("6002 tokens")
    expect(field).to_have_value("a long message")
    expect(panel.locator(".conversations")).to_have_text("No conversation yet.")
