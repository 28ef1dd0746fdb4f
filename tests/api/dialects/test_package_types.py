"""Every field in the request types of the `anthropic` and `openai` packages is known to the schemas of their dialects.

The packages list what programs send. If a newer package has a field that fails here, give it a kind.
"""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from anthropic.types import beta as anthropic_types
from anthropic.types.beta import message_create_params as anthropic_params
from openai.types import chat as openai_types
from openai.types import completion_create_params, embedding_create_params
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel
from typing_extensions import is_typeddict

from server.api.dialects.anthropic import bodies as anthropic
from server.api.dialects.anthropic import messages as anthropic_messages
from server.api.dialects.openai import chat_body, chat_messages, shared_fields
from server.api.dialects.openai.audio.form import TranscriptionForm, TranslationForm
from server.api.dialects.openai.common import StreamOptions
from server.api.dialects.openai.completions import CompletionBody
from server.api.dialects.openai.embeddings import EmbeddingsBody

HEADERS = {"betas", "workspace_id"}
"""Arguments of the anthropic package that become headers."""
FILE = {"file"}
"""The part of a form that is no field."""
PAIRS: tuple[tuple[Any, type[BaseModel]], ...] = (
    (anthropic_params.MessageCreateParamsBase, anthropic.AnthropicMessagesBody),
    (anthropic_types.BetaToolParam, anthropic.AnthropicTool),
    (anthropic_types.BetaThinkingConfigEnabledParam, anthropic.AnthropicThinkingConfig),
    (anthropic_types.BetaThinkingConfigAdaptiveParam, anthropic.AnthropicThinkingConfig),
    (anthropic_types.BetaThinkingConfigDisabledParam, anthropic.AnthropicThinkingConfig),
    (anthropic_types.BetaOutputConfigParam, anthropic.AnthropicOutputConfig),
    (anthropic_types.BetaContextManagementConfigParam, anthropic.AnthropicContextManagement),
    (anthropic_types.BetaToolChoiceToolParam, anthropic.AnthropicToolChoice),
    (anthropic_types.BetaSystemMessageParam, anthropic_messages.AnthropicTurn),
    (anthropic_types.BetaTextBlockParam, anthropic_messages.AnthropicText),
    (anthropic_types.BetaThinkingBlockParam, anthropic_messages.AnthropicThinking),
    (anthropic_types.BetaToolUseBlockParam, anthropic_messages.AnthropicToolUse),
    (anthropic_types.BetaToolResultBlockParam, anthropic_messages.AnthropicToolResult),
    (anthropic_types.BetaToolReferenceBlockParam, anthropic_messages.AnthropicToolReference),
    (anthropic_types.BetaCompactionBlockParam, anthropic_messages.AnthropicCompaction),
    (chat_params.CompletionCreateParamsBase, chat_body.ChatCompletionBody),
    (openai_types.ChatCompletionStreamOptionsParam, StreamOptions),
    (openai_types.ChatCompletionFunctionToolParam, chat_body.OpenAITool),
    (openai_types.ChatCompletionAllowedToolsParam, shared_fields.AllowedTools),
    (openai_types.ChatCompletionUserMessageParam, chat_messages.OpenAIMessage),
    (openai_types.ChatCompletionAssistantMessageParam, chat_messages.OpenAIMessage),
    (openai_types.ChatCompletionToolMessageParam, chat_messages.OpenAIMessage),
    (openai_types.ChatCompletionMessageFunctionToolCallParam, chat_messages.OpenAICall),
    (openai_types.ChatCompletionMessageCustomToolCallParam, chat_messages.OpenAICall),
    (completion_create_params.CompletionCreateParamsBase, CompletionBody),
    (embedding_create_params.EmbeddingCreateParams, EmbeddingsBody),
    (transcription_create_params.TranscriptionCreateParamsBase, TranscriptionForm),
    (translation_create_params.TranslationCreateParams, TranslationForm),
)


@pytest.mark.parametrize(("params", "schema"), PAIRS, ids=lambda value: value.__name__)
def test_every_field_is_known(params: Any, schema: type[BaseModel]) -> None:
    known = {field.alias or name for name, field in schema.model_fields.items()}
    assert not get_type_hints(params).keys() - known - HEADERS - FILE


def test_every_anthropic_block_is_read_dropped_or_refused() -> None:
    """A block of an unknown type is refused too, but nobody has decided that."""
    hints = get_type_hints(anthropic_types.BetaAssistantMessageParam)
    members = [kind for kind in get_args(get_args(get_args(hints["content"])[1])[0]) if is_typeddict(kind)]
    blocks = {name for member in members for name in get_args(get_type_hints(member)["type"])}
    read = {name for block in get_args(get_args(anthropic_messages.Block)[0]) for name in _types(block)}
    assert len(blocks) > 15 and not blocks - read - anthropic_messages.WITHOUT_TEXT


def test_every_anthropic_tool_is_a_function_or_dropped() -> None:
    (tools,) = get_args(get_type_hints(anthropic_params.MessageCreateParamsBase)["tools"])
    assert len(get_args(tools)) > 20
    for member in get_args(tools):
        (kind, *_) = [*get_args(get_type_hints(member)["type"])]
        name = next((value for value in get_args(kind) or (kind,) if isinstance(value, str)), None)
        given = {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": name, "name": "x", "input_schema": {}}],
        }
        body = anthropic.AnthropicCountBody.model_validate(given)
        assert list(body.dropped()) == ([] if name == "custom" else ["tools[0]"])


def _types(schema: type[BaseModel]) -> tuple[str, ...]:
    return get_args(schema.model_fields["type"].annotation)
