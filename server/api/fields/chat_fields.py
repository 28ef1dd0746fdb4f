"""Field types of chat requests that several dialects share, and their conversion to the fields of `ChatSpec`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, get_args

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, from_json

from server.errors import InvalidRequest
from server.operations.chatting.chat import ToolCall, ToolChoice
from server.operations.chatting.tool_grammar import NAME

OTHER_PARTS: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_file": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "input_video": "video",
    "video": "video",
    "file": "file",
    "input_file": "file",
    "container_upload": "file",
    "document": "document",
    "browser_state": "state of a browser",
}
"""Types of content parts that the server cannot read, and the word that a note in the prompt uses for such a part."""
_PART_HINTS = frozenset(
    {
        *("annotations", "logprobs", "citations", "id", "index", "parsed"),
        *("cache_control", "copilot_cache_control", "prompt_cache_breakpoint"),
    }
)
"""Further keys that a text part may have. They do not change the prompt."""
_SET_BY_SERVER = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of chat templates that a request cannot set directly, because separate fields set them."""


class ChatObject(BaseModel):
    """Base of the objects inside chat requests. It has strict types and refuses unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def text_parts(*types: str, skipped: str = "") -> BeforeValidator:
    """Create a validator for a field with text, or with a list of text parts, which are joined with line breaks.

    types: accepted types of parts. A part's text is in the key `text`, or in `refusal` for the type `refusal`.
    skipped: type of parts to leave out, because another validator reads them.
    """

    def join(value: Any) -> Any:
        if isinstance(value, list):
            read = [(index, part) for index, part in enumerate(value) if not (skipped and _type_of(part) == skipped)]
            return "\n".join([_text_of(part, types, index) for index, part in read])
        return value

    return BeforeValidator(join)


def as_text_parts(value: Any) -> Any:
    """Convert a string to a list of one text part. Any other value is returned unchanged."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _text_of(part: Any, types: Sequence[str], index: int) -> str:
    kind = _type_of(part)
    if not isinstance(kind, str):
        raise ValueError("must be text, or a list of parts with a `type`")
    if kind in OTHER_PARTS:
        raise ValueError(f"contains a part of type {kind}; only text is supported")
    key = "refusal" if kind == "refusal" else "text"
    if kind in types and key in part and not isinstance(part[key], str):
        # pydantic adds this place to that of the field.
        error = InitErrorDetails(type="string_type", loc=(index, key), input=None)
        raise ValidationError.from_exception_data("part", [error])
    if kind not in types or not part.keys() <= {"type", key, *_PART_HINTS} or not isinstance(part.get(key), str):
        raise ValueError(f"contains a part that is not text; it needs `type` ({', '.join(types)}) and `{key}`")
    text: str = part[key]
    return text


def _arguments_text(value: Any) -> Any:
    """Convert the arguments of a call to JSON text. Some clients send an object; null becomes an empty text."""
    return orjson.dumps(value).decode() if isinstance(value, dict) else value or ""


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(_SET_BY_SERVER & variables.keys())
    if taken:
        raise ValueError(f"cannot set `{taken[0]}`, which has a field of its own")
    return variables


TEXT_OR_PARTS = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "items": {"type": "object", "properties": {"type": {"type": "string"}, "text": {"type": "string"}}},
            },
        ]
    }
)
FunctionName = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
ArgumentsText = Annotated[str, BeforeValidator(_arguments_text), WithJsonSchema({"type": "string"})]
"""Arguments of an earlier call as any text, because a call that the token limit cut off has incomplete JSON."""
JsonSchema = Annotated[dict[str, Any], Field(description="a JSON Schema")]
TemplateVariables = Annotated[
    dict[str, Any],
    AfterValidator(_check_variables),
    Field(description="further variables of the chat template, for example `enable_thinking`"),
]


def tool_choice(named: type[BaseModel], form: str, *others: type[BaseModel]) -> AfterValidator:
    """Create a validator for the field `tool_choice`, which is a mode (none, auto or required) or an object.

    named: schema of an object that chooses one function.
    form: text that describes valid objects in an error.
    others: schemas of other objects, selected by their `type`.
    """
    schemas = {str(get_args(other.model_fields["type"].annotation)[0]): other for other in others}

    def check(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
            return value
        kind = value.get("type") if isinstance(value, dict) else None
        try:
            return schemas.get(kind if isinstance(kind, str) else "", named).model_validate(value)
        except ValueError:
            raise ValueError(f'must be "none", "auto", "required" or {form}') from None

    return AfterValidator(check)


def tool_kind(*functions: str) -> Callable[[Any], str]:
    """Create the discriminator for a list of tools. It returns the tag "function tool" or "built-in tool".

    functions: values of `type` that mark a function of the client. A tool without a type is also a function.
    """

    def kind(value: Any) -> str:
        found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return "built-in tool" if isinstance(found, str) and found not in functions else "function tool"

    return kind


def check_dropped(choice: ToolChoice, functions: Collection[str], sent: int) -> None:
    """Raise InvalidRequest if the tool choice requires a call, and allows none of the tools that the server has.

    Before this check, tools that the server does not have are removed. Without removed tools, the check does nothing.
    functions: names of the tools that are left. sent: number of tools in the request.
    """
    if choice.mode == "required" and not any(map(choice.allows, functions)) and len(functions) < sent:
        raise InvalidRequest("`tool_choice` asks for a tool that this server does not have", "tool_choice")


TOOL_CHOICE = WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]})


def function_call(call_id: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """A tool call as the messages of `ChatSpec` and most dialects write it. arguments: an object, or any text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def complete_calls(calls: Sequence[ToolCall]) -> list[tuple[ToolCall, dict[str, Any]]]:
    """Pair each call with its arguments as an object. A call that the token limit cut off is left out."""
    found = []
    for call in calls:
        try:
            found.append((call, from_json(call.arguments)))
        except ValueError:
            continue
    return found


def started_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a call to an object. If the token limit cut off the call, only complete members are kept.

    Anthropic's clients read the same object from a stream.
    """
    try:
        value = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
