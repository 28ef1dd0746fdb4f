"""The stored conversation of a request to `/v1/responses`: find the items that it continues, and store its answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import TypeAdapter

from server.api.bodies.json_size import CHAT_VALUES, check_size
from server.api.dialects.openai.responses.input import InputItem, InputReference, ResponseItem
from server.api.stored.stored_responses import Shelf, StoredItem, StoredResponse, joined, json_text, shared_part
from server.errors import ItemNotFound, PreviousResponseNotFound, RequestTooLarge

_ITEM_ID = re.compile(r"[a-z]{1,4}_([0-9a-f]{32})(i?)([0-9]{1,6})")
"""Id of an item: a prefix, the key of the response that contains it, `i` for an input item, and the item's index."""
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
}
_ITEM = TypeAdapter[ResponseItem](InputItem)
_SHARED = ("tools", "instructions")
"""Fields of a response that are stored only once if several responses of an API key have the same value."""


class StoredConversation:
    """The stored items that a request continues, and the items that the request adds.

    shelf: the stored responses of the request's API key; None for a request that cannot access any.
    key: random text that the ids of the new response and its items contain.
    """

    def __init__(self, shelf: Shelf | None = None) -> None:
        self.key = uuid.uuid4().hex
        self._shelf = shelf
        self._previous: list[StoredResponse] = []
        self._referenced: dict[str, StoredItem] = {}
        self._inputs: tuple[StoredItem, ...] = ()

    @property
    def response_id(self) -> str:
        return f"resp_{self.key}"

    @property
    def can_store(self) -> bool:
        return self._shelf is not None and self._shelf.max_bytes > 0

    def find(self, previous_response_id: str | None, items: Sequence[ResponseItem], max_bytes: int) -> int:
        """Find the stored responses and items that a request names. Returns the size of their JSON texts in bytes.

        items: the items of the request, some of which may be references to stored items.
        max_bytes: limit of that size, the same as for a request body, which could contain the same items.
        Raises PreviousResponseNotFound, ItemNotFound, RequestTooLarge.
        """
        if previous_response_id is not None:
            found = self._shelf.chain(previous_response_id) if self._shelf is not None else None
            if found is None:
                raise PreviousResponseNotFound(
                    "`previous_response_id`: the server has no such response, or not all that it continues; send the "
                    "items of the conversation instead",
                    "previous_response_id",
                )
            self._previous = found
        self._find_references(items)
        size = sum(len(item.part.data) for item in self._stored_items(items))
        if size > max_bytes:
            raise RequestTooLarge(
                f"the stored items of the conversation have {size} bytes; the limit is {max_bytes}",
                "input" if previous_response_id is None else "previous_response_id",
            )
        return size

    def _find_references(self, items: Sequence[ResponseItem]) -> None:
        ids = {item.id: index for index, item in reversed(list(enumerate(items))) if isinstance(item, InputReference)}
        places = {item_id: found for item_id in ids if (found := _ITEM_ID.fullmatch(item_id)) is not None}
        owners = {f"resp_{found[1]}" for found in places.values()}
        records = {stored.id: stored for stored in (self._shelf.find(owners) if self._shelf is not None else ())}
        for item_id, found in places.items():
            record = records.get(f"resp_{found[1]}")
            if record is not None:
                items_there = record.inputs if found[2] else record.outputs
                self._referenced |= {item.id: item for item in items_there[int(found[3]) :][:1] if item.id == item_id}
        missing = next((index for item_id, index in ids.items() if item_id not in self._referenced), None)
        if missing is not None:
            raise ItemNotFound(
                f"`input[{missing}]`: no stored item has this id. The items of a response with `store: false` are not "
                "stored; send the item itself",
                "input",
            )

    def _stored_items(self, new: Sequence[ResponseItem]) -> list[StoredItem]:
        """The stored items of the conversation: those of previous responses, and those that `new` refers to.

        An item that is referenced several times is in the list several times.
        """
        previous = [item for record in self._previous for item in record.items]
        return previous + [self._referenced[item.id] for item in new if isinstance(item, InputReference)]

    def items(self, new: Sequence[ResponseItem]) -> list[ResponseItem]:
        """All items of the conversation: those of previous responses, then `new` with references replaced.

        Raises InvalidRequest if the stored items have too many JSON values.
        """
        check_size(joined(self._stored_items(new)), CHAT_VALUES, "the stored conversation")
        found = [_parsed(item) for record in self._previous for item in record.items]
        referenced = {item_id: _parsed(item) for item_id, item in self._referenced.items()}
        return found + [referenced[item.id] if isinstance(item, InputReference) else item for item in new]

    def keep(self, items: Sequence[ResponseItem], given: Sequence[Mapping[str, Any]]) -> None:
        """Prepare the items of the request for storing.

        items: the parsed items. given: the same items as the client sent them, in the same order.
        """
        pairs = zip(items, given, strict=True)
        self._inputs = tuple(self._input(index, item, sent) for index, (item, sent) in enumerate(pairs))

    def _input(self, index: int, item: ResponseItem, given: Mapping[str, Any]) -> StoredItem:
        if isinstance(item, InputReference):
            return self._referenced[item.id]
        value = _stored_form(given)
        return StoredItem(f"{_PREFIXES.get(value['type'], 'item')}_{self.key}i{index}", shared_part(value))

    def add(self, response: Mapping[str, Any]) -> bool:
        """Store a response with the items that `keep` has prepared. Returns False if it cannot be stored."""
        if self._shelf is None:
            return False
        outputs = tuple(StoredItem(item["id"], shared_part(_without_id(item))) for item in response["output"])
        head = {name: value for name, value in response.items() if name not in ("output", *_SHARED)} | {"store": True}
        return self._shelf.add(
            StoredResponse(
                response["id"],
                response["previous_response_id"],
                self._inputs,
                outputs,
                json_text(head),
                {name: shared_part(response[name]) for name in _SHARED},
            )
        )


def rendered_response(record: StoredResponse) -> dict[str, Any]:
    """The JSON object of a stored response, equal to the answer that created it."""
    shared = {name: orjson.Fragment(part.data) for name, part in record.shared.items()}
    head: dict[str, Any] = orjson.loads(record.head)
    return head | {"output": orjson.Fragment(joined(record.outputs))} | shared


def _without_id(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


def _stored_form(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an item of a request to the form in which the API lists it, without its `id`.

    Adds a missing type. Adds a missing status to messages, function calls and their outputs.
    Turns a message's text into a list with one content part.
    """
    value = _without_id(given)
    value["type"] = given.get("type") or "message"
    if value["type"] in ("message", "function_call", "function_call_output"):
        value["status"] = given.get("status") or "completed"
    if value["type"] == "message" and isinstance(given.get("content"), str):
        is_output = given.get("role") == "assistant"
        text = {"type": "output_text", "annotations": []} if is_output else {"type": "input_text"}
        value["content"] = [{**text, "text": given["content"]}]
    return value


def _parsed(item: StoredItem) -> ResponseItem:
    return _ITEM.validate_json(item.json())
