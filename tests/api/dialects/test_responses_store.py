"""`/v1/responses` continues stored responses only: chains, references to items, and the routes that read them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.errors import EngineFailure, Overloaded
from server.limits.refusals import MODEL_MEMORY
from tests.api.dialects.response_bench import CALL, TOOLS, ResponseBench, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MISSING = "resp_" + "0" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ResponseBench]:
    made = ResponseBench(tmp_path_factory.mktemp("bench"))
    yield made
    await made.close()


@pytest.fixture
def bench(started: ResponseBench) -> ResponseBench:
    started.will_say("Hello.")
    return started


async def test_a_response_continues_the_one_before_it(bench: ResponseBench) -> None:
    first = await bench.ask(input="Hi", instructions="Be brief.")
    second = await bench.ask(input=[{"role": "user", "content": "And?"}], previous_response_id=first["id"])
    assert bench.prompt == "<user>Hi<assistant>Hello.<user>And?<assistant>", "instructions are not inherited"
    third = await bench.ask(input="So?", previous_response_id=second["id"], instructions="Be kind.")
    assert bench.prompt == ("<system>Be kind.<user>Hi<assistant>Hello.<user>And?<assistant>Hello.<user>So?<assistant>")
    assert [response["previous_response_id"] for response in (first, second, third)] == [
        None,
        first["id"],
        second["id"],
    ]
    assert first["store"] is second["store"] is True


@pytest.mark.parametrize("more", [{}, {"input": None}, {"input": []}])
async def test_a_response_is_continued_without_new_items(bench: ResponseBench, more: Any) -> None:
    bench.will_say("One,")
    first = await bench.ask(input="Count.")
    bench.will_say(" two")
    answer = await bench.send("POST", "", json={"previous_response_id": first["id"], **more})
    assert answer.status_code == 200, answer.text
    assert bench.prompt == "<user>Count.<assistant>One,<assistant>"
    again = await bench.ask(previous_response_id=answer.json()["id"], input="More.")
    assert bench.prompt == "<user>Count.<assistant>One,\n two<user>More.<assistant>"
    listed = (await bench.get(f"{again['id']}/input_items", order="asc")).json()["data"]
    assert [item["role"] for item in listed] == ["user", "assistant", "assistant", "user"]


async def test_two_responses_can_continue_the_same_one(bench: ResponseBench) -> None:
    first = await bench.ask(input="Hi")
    for text in ("A", "B"):
        await bench.ask(input=text, previous_response_id=first["id"])
        assert bench.prompt == f"<user>Hi<assistant>Hello.<user>{text}<assistant>"


async def test_reasoning_calls_and_results_are_continued(bench: ResponseBench) -> None:
    bench.will_say(f"<think>Hm.</think>\n\nI look.{CALL}")
    first = await bench.ask(input="Weather?", tools=TOOLS)
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "rain"}
    await bench.ask(input=[result], previous_response_id=first["id"], tools=TOOLS)
    head = "[get_weather][get_time]<user>Weather?"
    assert bench.prompt == f"{head}<assistant><think>Hm.</think>I look.{CALL}<tool>rain<assistant>"


async def test_a_stored_response_is_read_and_deleted(bench: ResponseBench) -> None:
    answer = await bench.ask(input="Hi", tools=TOOLS, metadata={"a": "b"}, instructions="Be brief.")
    read = await bench.get(answer["id"], include="reasoning.encrypted_content")
    assert read.status_code == 200 and read.json() == answer
    deleted = await bench.send("DELETE", f"/{answer['id']}")
    assert deleted.json() == {"id": answer["id"], "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        response = await bench.send(method, f"/{answer['id']}{path}")
        assert response.status_code == 404 and error_of(response)["code"] == "response_not_found"


async def test_a_conversation_never_continues_with_less_text(bench: ResponseBench) -> None:
    ids = [(await bench.ask(input="1"))["id"]]
    for number in "234":
        ids.append((await bench.ask(input=number, previous_response_id=ids[-1]))["id"])
    await bench.send("DELETE", f"/{ids[1]}")
    sent = len(bench.llm.sent)
    for previous in (*ids[1:], MISSING, "", "resp_1"):
        response = await bench.post(previous_response_id=previous)
        error = error_of(response)
        assert response.status_code == 400 and error["code"] == "previous_response_not_found"
        assert error["param"] == "previous_response_id" and (not previous or previous not in error["message"])
    assert len(bench.llm.sent) == sent
    await bench.ask(input="5", previous_response_id=ids[0])
    assert (await bench.get(f"{ids[3]}/input_items")).status_code == 404, "nor is a part of the input listed"
    assert (await bench.get(ids[3])).status_code == 200


async def test_items_are_referenced_as_the_ai_sdk_does(bench: ResponseBench) -> None:
    """The AI SDK sends the user's items again, but sends the items of earlier answers as references."""
    bench.will_say(f"<think>Hm.</think>\n\nI look.{CALL}")
    user: Any = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
    first = await bench.ask(input=[user], tools=TOOLS)
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "rain"}
    bench.will_say("Rain.")
    second = await bench.ask(input=[user, *references, result], tools=TOOLS)
    shown = f"[get_weather][get_time]<user>Weather?<assistant><think>Hm.</think>I look.{CALL}<tool>rain<assistant>"
    assert bench.prompt == shown
    # A reference may have no type, and may also refer to an item of the input.
    listed = (await bench.get(f"{second['id']}/input_items", order="asc")).json()["data"]
    assert [item["id"] for item in listed[1:4]] == [item["id"] for item in first["output"]]
    again = [{"id": item["id"], "type": None} for item in (*listed, *second["output"])]
    await bench.ask(input=[*again, {"role": "user", "content": "Thanks."}], tools=TOOLS)
    assert bench.prompt == f"{shown}Rain.<user>Thanks.<assistant>"


async def test_a_reference_to_an_unknown_item_is_refused(bench: ResponseBench) -> None:
    answer = await bench.ask(store=False)
    assert answer["store"] is False and (await bench.get(answer["id"])).status_code == 404
    for item_id in (answer["output"][0]["id"], "msg_1", "rs_" + "0" * 32 + "0"):
        response = await bench.post(
            input=[{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": item_id}]
        )
        error = error_of(response)
        assert response.status_code == 404 and error["code"] == "item_not_found" and error["param"] == "input"
        assert "`input[1]`" in error["message"] and item_id not in error["message"]


async def test_referenced_items_stay_while_they_are_used(tmp_path: Path) -> None:
    bench = ResponseBench(tmp_path, responses_memory=60_000)
    bench.will_say("Hello.")
    first = await bench.ask(input="x" * 2000)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    for number in range(30):
        await bench.ask(input=[{"role": "user", "content": f"{number} " * 500}, reference])
    assert (await bench.get(first["id"])).status_code == 200 and bench.state.responses.num_bytes <= 60_000
    await bench.close()


async def test_input_items_are_listed_in_pages(bench: ResponseBench) -> None:
    first = await bench.ask(input=[{"role": "developer", "content": "Rhyme."}, {"role": "user", "content": "Hi"}])
    second = await bench.ask(input="And?", previous_response_id=first["id"])
    listed = (await bench.get(f"{second['id']}/input_items")).json()
    assert listed["object"] == "list" and listed["has_more"] is False
    texts = [(item["role"], item["content"][0]["type"], item["content"][0]["text"]) for item in listed["data"]]
    assert texts == [
        ("user", "input_text", "And?"),
        ("assistant", "output_text", "Hello."),
        ("user", "input_text", "Hi"),
        ("developer", "input_text", "Rhyme."),
    ]
    assert all(item["type"] == "message" and item["status"] == "completed" for item in listed["data"])
    found, after = [], {}
    while True:
        page = (await bench.get(f"{second['id']}/input_items", limit=3, order="asc", **after)).json()
        found += page["data"]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == listed["data"][::-1]
    assert (await bench.get(f"{first['id']}/input_items", after=found[0]["id"])).json()["data"] == []


@pytest.mark.parametrize(
    ("path", "parameters", "param"),
    [
        ("/input_items", {"limit": 0}, "limit"),
        ("/input_items", {"limit": 101}, "limit"),
        ("/input_items", {"limit": "x"}, "limit"),
        ("/input_items", {"limit": "000000001" + "9" * 9}, "limit"),
        ("/input_items", {"limit": "000000001" + "9" * 5000}, "limit"),
        ("/input_items", {"order": "up"}, "order"),
        ("/input_items", {"after": "msg_1"}, "after"),
        ("/input_items", {"include[]": "everything"}, "include"),
        ("/input_items", {"before": "msg_1"}, None),
        ("", {"stream": "true"}, "stream"),
        ("", {"starting_after": 4}, "stream"),
        ("", {"include": "everything"}, "include"),
    ],
)
async def test_bad_parameters_are_refused(
    bench: ResponseBench, path: str, parameters: dict[str, Any], param: str | None
) -> None:
    answer = await bench.ask()
    response = await bench.get(answer["id"] + path, **parameters)
    assert response.status_code == 400 and error_of(response)["param"] == param


async def test_cancelling_is_an_error(bench: ResponseBench) -> None:
    answer = await bench.ask()
    response = await bench.send("POST", f"/{answer['id']}/cancel")
    assert response.status_code == 400 and "has ended" in error_of(response)["message"]


async def test_a_key_knows_nothing_of_what_another_key_has_stored(tmp_path: Path) -> None:
    guarded = ResponseBench(tmp_path, ("first-key", "second-key"))
    guarded.will_say("Hello.")
    answer = await guarded.ask(input="Hi")
    other = "second-key"
    item = {"type": "item_reference", "id": answer["output"][0]["id"]}
    seen = [
        await guarded.get(answer["id"], other),
        await guarded.get(f"{answer['id']}/input_items", other),
        await guarded.send("DELETE", f"/{answer['id']}", other),
        await guarded.send("POST", f"/{answer['id']}/cancel", other),
        await guarded.post(other, previous_response_id=answer["id"]),
        await guarded.post(other, input=[item]),
    ]
    unknown = [
        await guarded.get(MISSING, other),
        await guarded.get(f"{MISSING}/input_items", other),
        await guarded.send("DELETE", f"/{MISSING}", other),
        await guarded.send("POST", f"/{MISSING}/cancel", other),
        await guarded.post(other, previous_response_id=MISSING),
        await guarded.post(other, input=[{**item, "id": "msg_1"}]),
    ]
    for response, expected in zip(seen, unknown, strict=True):
        assert response.status_code == expected.status_code in (400, 404)
        assert {**error_of(response), "request_id": ""} == {**error_of(expected), "request_id": ""}
    assert (await guarded.get(answer["id"])).json() == answer
    await guarded.close()


async def test_a_key_cannot_take_the_memory_of_another_key(tmp_path: Path) -> None:
    bench = ResponseBench(tmp_path, ("first-key", "second-key"), responses_memory=100_000)
    bench.will_say("Hello.")
    answer = await bench.ask(input="Hi")
    for number in range(40):
        assert (await bench.post("second-key", input=f"{number} " * 1000)).json()["store"] is True
    assert (await bench.get(answer["id"])).status_code == 200 and bench.state.responses.num_bytes <= 100_000
    await bench.close()


async def test_a_stream_is_stored(bench: ResponseBench) -> None:
    events = await bench.stream(input="Hi")
    assert events[0]["response"]["store"] is True and events[-1]["type"] == "response.completed"
    answer = events[-1]["response"]
    assert (await bench.get(answer["id"])).json() == answer
    await bench.ask(input="And?", previous_response_id=answer["id"])
    assert bench.prompt == "<user>Hi<assistant>Hello.<user>And?<assistant>"


async def test_a_cut_response_is_stored_with_its_items(bench: ResponseBench) -> None:
    bench.llm.follow("<think>Let me see")
    answer = (await bench.stream(input="Hi", max_output_tokens=10))[-1]["response"]
    assert answer["status"] == "incomplete" and [item["type"] for item in answer["output"]] == ["reasoning"]
    assert (await bench.get(answer["id"])).json() == answer
    await bench.ask(input="Go on.", previous_response_id=answer["id"])
    thought = answer["output"][0]["content"][0]["text"]
    assert thought and bench.prompt == f"<user>Hi<assistant><think>{thought}</think><user>Go on.<assistant>"


async def test_a_call_that_was_cut_can_be_continued(bench: ResponseBench) -> None:
    cut = CALL[: CALL.index("Par") + 3]
    bench.llm.follow(cut)
    answer = await bench.ask(input="Weather?", tools=TOOLS, max_output_tokens=len(bench.llm.runner.script))
    assert answer["output"][0]["arguments"] == '{"city": "Par' and answer["output"][0]["status"] == "incomplete"
    bench.will_say("Hello.")
    await bench.ask(input="Go on.", previous_response_id=answer["id"], tools=TOOLS)
    assert bench.prompt.startswith("[get_weather][get_time]<user>Weather?<assistant><tool_call>")
    assert bench.prompt.endswith("<user>Go on.<assistant>")


async def test_a_stream_that_fails_is_stored_as_failed(bench: ResponseBench, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.operations.chatting.chat import ChatRun

    def fail(self: ChatRun) -> None:
        raise EngineFailure("the engine failed")

    monkeypatch.setattr(ChatRun, "result", fail)
    *_, error, failed = await bench.stream(input="Hi")
    assert error == {
        "type": "error",
        "sequence_number": error["sequence_number"],
        "code": "engine_error",
        "message": "the engine failed",
        "param": None,
    }
    response = failed["response"]
    assert failed["type"] == "response.failed" and response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the engine failed"}
    assert response["output"][0]["status"] == "incomplete"
    assert (await bench.get(response["id"])).json() == response


async def test_a_stream_that_is_refused_names_the_limit(bench: ResponseBench, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.operations.chatting.chat import ChatRun

    def refuse(self: ChatRun) -> None:
        raise Overloaded("the requests need 48 MiB", MODEL_MEMORY.refusal("48 MiB"), 1)

    monkeypatch.setattr(ChatRun, "result", refuse)
    *_, error, failed = await bench.stream(input="Hi")
    assert (error["code"], error["reason"]) == ("overloaded", "model_memory")
    assert failed["response"]["error"]["code"] == "rate_limit_exceeded"


async def test_a_server_that_stores_nothing_says_so(tmp_path: Path) -> None:
    bench = ResponseBench(tmp_path, responses_memory=0)
    bench.will_say("Hello.")
    for sent, named in ((None, None), (False, None), (True, "store")):
        response = await bench.post(store=sent)
        assert response.json()["store"] is False and response.headers.get("x-ignored-parameters") == named
    previous = await bench.post(previous_response_id=response.json()["id"])
    assert error_of(previous)["code"] == "previous_response_not_found"
    await bench.close()


async def test_a_response_that_does_not_fit_is_answered_and_not_stored(tmp_path: Path) -> None:
    bench = ResponseBench(tmp_path, responses_memory=10_000)
    bench.will_say("Hello.")
    answer = await bench.ask(input="Hi")
    assert answer["store"] is True
    large = await bench.ask(input="Hi", instructions="x" * 3000, metadata={"a": "x" * 8000})
    assert large["store"] is False and (await bench.get(large["id"])).status_code == 404
    await bench.close()


async def test_a_stored_conversation_has_the_limit_of_a_body(tmp_path: Path) -> None:
    bench = ResponseBench(tmp_path, max_body_bytes=1000, max_chat_body_bytes=2000)
    bench.will_say("Hello.")
    previous, response = None, await bench.post(input="x" * 800)
    while response.status_code == 200:
        previous = response.json()["id"]
        response = await bench.post(input="x" * 800, previous_response_id=previous)
    assert response.status_code == 400 and error_of(response)["code"] == "request_too_large"
    assert error_of(response)["param"] == "previous_response_id"
    listed = (await bench.get(f"{previous}/input_items", limit=1)).json()["data"]
    again = await bench.post(input=[{"type": "item_reference", "id": listed[0]["id"]}] * 3)
    assert again.status_code == 400 and error_of(again)["code"] == "request_too_large", "each reference counts"
    await bench.close()


async def test_stored_text_is_never_logged(bench: ResponseBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "canary-4f1d"
    first = await bench.ask(input=canary, instructions=canary, metadata={"a": canary})
    await bench.ask(input=canary, previous_response_id=first["id"])
    await bench.get(first["id"])
    await bench.get(f"{first['id']}/input_items", after=canary)
    await bench.post(previous_response_id=canary)
    await bench.post(input=[{"type": "item_reference", "id": canary}])
    await bench.send("DELETE", f"/{first['id']}")
    ours = [str(vars(record)) for record in caplog.records if record.name != "httpx"]
    assert len(ours) >= 7 and not [record for record in ours if canary in record]
