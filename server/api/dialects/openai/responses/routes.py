"""`POST /v1/responses`, and the routes that read, list and delete stored responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import orjson
from starlette.requests import Request

from server.api.bodies.body import add_bytes
from server.api.dialects.openai.responses.answer import DeletedResponse, ResponseItemList, ResponsesAnswer
from server.api.dialects.openai.responses.body import INCLUDABLE, ResponsesBody
from server.api.dialects.openai.responses.conversation import StoredConversation, rendered_response
from server.api.dialects.openai.responses.renderer import ERRORS, ResponsesRenderer
from server.api.routes.owned_route import OwnedRoute
from server.api.routes.streaming_route import StreamingRoute
from server.api.state import State, cache_salt
from server.api.stored.stored_responses import Shelf, StoredItem, StoredResponse
from server.errors import InvalidRequest, ResponseNotFound
from server.ipc.client.call import Call
from server.operations.chatting.chat import ChatDelta, ChatResult, ChatSpec, chat

DEFAULT_LISTED = 20
MAX_LISTED = 100
"""Maximum number of input items in one page."""
PAGE_BYTES = 1 << 20
"""Maximum bytes of one page, so that a long list does not block the event loop. A page has at least one item."""


class ResponsesRoute(StreamingRoute[ResponsesBody, ChatSpec, ChatDelta, ChatResult]):
    """The route that creates responses. A request may continue the stored responses of its API key."""

    async def specify(
        self,
        request: Request,
        state: State,
        call: Call,
        body: ResponsesBody,
        parse: Callable[[ResponsesBody], ChatSpec],
    ) -> ChatSpec:
        stored = StoredConversation(state.responses.shelf(cache_salt(request)))
        add_bytes(request, body.continue_stored(stored, state.settings.max_chat_body_bytes))
        return await super().specify(request, state, call, body, parse)


def _found(shelf: Shelf, parameters: Mapping[str, str]) -> StoredResponse:
    record = shelf.get(parameters["response_id"])
    if record is None:
        raise ResponseNotFound("no response is stored under this id")
    return record


def _retrieve(shelf: Shelf, parameters: Mapping[str, str]) -> Any:
    if parameters.get("stream", "false") != "false" or "starting_after" in parameters:
        raise InvalidRequest("`stream` is not supported: a stored response is not streamed again", "stream")
    _check_include(parameters)
    return rendered_response(_found(shelf, parameters))


def _delete(shelf: Shelf, parameters: Mapping[str, str]) -> Any:
    record = _found(shelf, parameters)
    shelf.delete(record.id)
    return {"id": record.id, "object": "response", "deleted": True}


def _cancel(shelf: Shelf, parameters: Mapping[str, str]) -> Any:
    _found(shelf, parameters)
    raise InvalidRequest("the response has ended; close the connection of a request to cancel it")


def _list_items(shelf: Shelf, parameters: Mapping[str, str]) -> Any:
    """One page of the items that a response was generated from, including the items of the responses before it.

    parameters: query with `limit`, `order` and `after`. Raises InvalidRequest for a wrong parameter, and
    ResponseNotFound if the response or one before it is not stored.
    """
    _check_include(parameters)
    limit, order = parameters.get("limit", str(DEFAULT_LISTED)), parameters.get("order", "desc")
    if not (re.fullmatch("[0-9]{1,9}", limit) and 1 <= int(limit) <= MAX_LISTED):
        raise InvalidRequest(f"`limit` must be a number from 1 to {MAX_LISTED}", "limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` must be asc or desc", "order")
    record = _found(shelf, parameters)
    chain = shelf.chain(record.id)
    if chain is None:
        raise ResponseNotFound("a response that this one continues is not stored any more, so its input is not known")
    items: dict[str, StoredItem] = {}
    for item in (*(item for stored in chain[:-1] for item in stored.items), *record.inputs):
        items.setdefault(item.id, item)
    ids = list(items) if order == "asc" else list(items)[::-1]
    after = parameters.get("after")
    if after is not None and after not in items:
        raise InvalidRequest("`after` must be the id of an item of this response", "after")
    rest = ids if after is None else ids[ids.index(after) + 1 :]
    sizes = accumulate(len(items[item_id].part.data) for item_id in rest)
    page = [item_id for item_id, size in zip(rest[: int(limit)], sizes, strict=False) if size <= PAGE_BYTES] or rest[:1]
    return {
        "object": "list",
        "data": [orjson.Fragment(items[item_id].json()) for item_id in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": len(rest) > len(page),
    }


def _check_include(parameters: Mapping[str, str]) -> None:
    for name in ("include", "include[]"):
        if parameters.get(name, next(iter(INCLUDABLE))) not in INCLUDABLE:
            raise InvalidRequest("`include` has an unknown value", "include")


_EXAMPLE = (
    {"model": "llama", "instructions": "Be brief.", "input": "Why is the sky blue?", "max_output_tokens": 64},
    {
        "id": "resp_0d1f",
        "object": "response",
        "created_at": 1764000000,
        "completed_at": 1764000001,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": "llama",
        "output": [
            {
                "id": "msg_0d1f0",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {
                        "type": "output_text",
                        "text": "Air scatters blue light most.",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        ],
        "usage": {
            "input_tokens": 14,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 22,
        },
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
    },
)

ROUTE = ResponsesRoute(
    path="/v1/responses",
    operation="chat",
    name="responses",
    description="Answer messages, calls and their results. Unless `store` is false, the answer is stored for later "
    "requests of the same API key.",
    body=ResponsesBody,
    answer=ResponsesAnswer,
    example=_EXAMPLE,
    parse=ResponsesBody.spec,
    run=chat,
    renderer=lambda body, run: ResponsesRenderer(body, run.model_name),
    errors=ERRORS,
)

_QUERY = {
    "include": "further fields, which stored responses have or lack already",
    "include[]": "the same as `include`",
}
OWNED_ROUTES = (
    OwnedRoute(
        path="/v1/responses/{response_id}",
        method="GET",
        name="retrieve_response",
        description="A stored response.",
        answer=ResponsesAnswer,
        example=_EXAMPLE[1],
        render=_retrieve,
        errors=ERRORS,
        parameters=_QUERY
        | {
            "stream": "must be false or absent",
            "starting_after": "not supported",
            "include_obfuscation": "without effect",
        },
    ),
    OwnedRoute(
        path="/v1/responses/{response_id}",
        method="DELETE",
        name="delete_response",
        description="Delete a stored response. Responses that continue it cannot be continued any more.",
        answer=DeletedResponse,
        example={"id": "resp_0d1f", "object": "response", "deleted": True},
        render=_delete,
        errors=ERRORS,
    ),
    OwnedRoute(
        path="/v1/responses/{response_id}/cancel",
        method="POST",
        name="cancel_response",
        description="Always an error: a response is stored when it has ended.",
        answer=ResponsesAnswer,
        example=_EXAMPLE[1],
        render=_cancel,
        errors=ERRORS,
    ),
    OwnedRoute(
        path="/v1/responses/{response_id}/input_items",
        method="GET",
        name="list_response_input_items",
        description="The items that a stored response was generated from, those of earlier responses included.",
        answer=ResponseItemList,
        example={
            "object": "list",
            "data": [
                {
                    "id": "msg_0d1fi0",
                    "type": "message",
                    "role": "user",
                    "status": "completed",
                    "content": [{"type": "input_text", "text": "Why is the sky blue?"}],
                }
            ],
            "first_id": "msg_0d1fi0",
            "last_id": "msg_0d1fi0",
            "has_more": False,
        },
        render=_list_items,
        errors=ERRORS,
        parameters=_QUERY
        | {
            "limit": f"items in a page, 1 to {MAX_LISTED}; default {DEFAULT_LISTED}",
            "order": "asc or desc; default desc, the latest item first",
            "after": "id of the last item of the page before",
        },
    ),
)
