"""Every field in the types of the clients' packages is known to the schemas of their dialects.

The types in the packages show which fields programs send. Types of answers are checked too, because programs send
answers back. The types are typed dictionaries in `anthropic` and `openai`, classes in `ollama` and `huggingface_hub`,
and arguments of methods in `cohere`. If a newer package has a field that fails here, add it to the schema with a kind.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import cohere
import huggingface_hub
import ollama
import pytest
from anthropic.types import beta as anthropic_types
from anthropic.types.beta import message_create_params as anthropic_params
from cohere import types as cohere_types
from huggingface_hub.inference._generated.types import chat_completion as hub_types
from ollama import _types as ollama_types
from openai.types import chat as openai_types
from openai.types import completion_create_params, embedding_create_params
from openai.types import responses as response_types
from openai.types import shared_params as openai_shared
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import chat_completion_message_custom_tool_call_param as custom_call_param
from openai.types.chat import chat_completion_message_function_tool_call_param as function_call_param
from openai.types.chat import completion_create_params as chat_params
from openai.types.chat import parsed_chat_completion, parsed_function_tool_call
from openai.types.responses import (
    parsed_response,
    response_create_params,
    response_includable,
    response_input_item_param,
)
from openai.types.shared_params import response_format_json_schema
from pydantic import BaseModel
from typing_extensions import is_typeddict

from server.api.dialects.anthropic import bodies as anthropic
from server.api.dialects.anthropic import messages as anthropic_messages
from server.api.dialects.cohere import chat_body as cohere_chat
from server.api.dialects.cohere.embed import CohereEmbedBody
from server.api.dialects.cohere.rerank import CohereRerankBody, JinaRerankBody
from server.api.dialects.huggingface import hub_bodies as hub
from server.api.dialects.huggingface import tgi_bodies as tgi
from server.api.dialects.ollama import bodies as ollama_bodies
from server.api.dialects.ollama import messages as ollama_messages
from server.api.dialects.ollama.models import OllamaShowBody
from server.api.dialects.ollama.options import OllamaOptions
from server.api.dialects.openai import chat_body, chat_messages, shared_fields
from server.api.dialects.openai.audio.form import TranscriptionForm, TranslationForm
from server.api.dialects.openai.common import StreamOptions
from server.api.dialects.openai.completions import CompletionBody
from server.api.dialects.openai.embeddings import EmbeddingsBody
from server.api.dialects.openai.responses import body as response_body
from server.api.dialects.openai.responses import input as response_input
from server.api.dialects.openai.responses import tools as response_tools
from server.api.dialects.openai.responses.built_in_items import BUILT_IN_ITEMS, REFUSED_ITEMS
from server.api.fields.chat_fields import text_parts
from server.api.fields.ignored_parameters import ignored_parameters

HEADERS = {"betas", "workspace_id"}
"""Arguments of the anthropic package that it sends as headers, not as fields."""
FILE = {"file"}
"""Name of the form part with the file, which is no field of a schema."""
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
    (openai_types.ChatCompletionSystemMessageParam, chat_messages.OpenAIMessage),
    (openai_types.ChatCompletionDeveloperMessageParam, chat_messages.OpenAIMessage),
    (function_call_param.Function, chat_messages.OpenAICalledFunction),
    (custom_call_param.Custom, chat_messages.OpenAICalledTool),
    (openai_shared.FunctionDefinition, shared_fields.OpenAIFunction),
    (openai_shared.ResponseFormatJSONObject, chat_body.OpenAIJsonObject),
    (openai_shared.ResponseFormatJSONSchema, chat_body.OpenAIJsonSchema),
    (response_format_json_schema.JSONSchema, chat_body.OpenAINamedSchema),
    (response_create_params.ResponseCreateParamsBase, response_body.ResponsesBody),
    (response_create_params.StreamOptions, response_body.ResponseStreamOptions),
    (openai_shared.Reasoning, response_body.ResponseReasoning),
    (response_types.ResponseTextConfigParam, response_body.ResponseText),
    (response_types.ResponseFormatTextJSONSchemaConfigParam, response_body.ResponseJsonSchema),
    (response_types.FunctionToolParam, response_tools.ResponseTool),
    (response_types.ToolChoiceFunctionParam, response_tools.ResponseNamedChoice),
    (response_types.ToolChoiceAllowedParam, response_tools.ResponseAllowedTools),
    (response_types.EasyInputMessageParam, response_input.InputMessage),
    (response_types.ResponseOutputMessageParam, response_input.InputMessage),
    (response_input_item_param.Message, response_input.InputMessage),
    (response_types.ResponseFunctionToolCallParam, response_input.InputCall),
    (response_input_item_param.FunctionCallOutput, response_input.InputCallOutput),
    (response_types.ResponseCustomToolCallParam, response_input.InputCustomCall),
    (response_types.ResponseCustomToolCallOutputParam, response_input.InputCallOutput),
    (response_types.ResponseReasoningItemParam, response_input.InputReasoning),
    (response_input_item_param.ItemReference, response_input.InputReference),
    (completion_create_params.CompletionCreateParamsBase, CompletionBody),
    (embedding_create_params.EmbeddingCreateParams, EmbeddingsBody),
    (transcription_create_params.TranscriptionCreateParamsBase, TranscriptionForm),
    (translation_create_params.TranslationCreateParams, TranslationForm),
)
SENT_BACK: tuple[tuple[Any, type[BaseModel]], ...] = (
    (parsed_chat_completion.ParsedChatCompletionMessage, chat_messages.OpenAIMessage),
    (parsed_function_tool_call.ParsedFunctionToolCall, chat_messages.OpenAICall),
    (parsed_function_tool_call.ParsedFunction, chat_messages.OpenAICalledFunction),
    (parsed_response.ParsedResponseOutputMessage, response_input.InputMessage),
    (parsed_response.ParsedResponseFunctionToolCall, response_input.InputCall),
    (response_types.ResponseCustomToolCall, response_input.InputCustomCall),
    (response_types.ResponseReasoningItem, response_input.InputReasoning),
    (hub_types.ChatCompletionOutputMessage, chat_messages.OpenAIMessage),
    (hub_types.ChatCompletionOutputToolCall, chat_messages.OpenAICall),
    (hub_types.ChatCompletionOutputFunctionDefinition, chat_messages.OpenAICalledFunction),
    (anthropic_types.parsed_beta_message.ParsedBetaTextBlock, anthropic_messages.AnthropicText),
)
"""Types in answers that programs put into their next request, each with our schema for it in a request."""


@pytest.mark.parametrize(("params", "schema"), [*PAIRS, *SENT_BACK], ids=lambda value: value.__name__)
def test_every_field_is_known(params: Any, schema: type[BaseModel]) -> None:
    is_model = isinstance(params, type) and issubclass(params, BaseModel)
    assert not (_names(params) if is_model else get_type_hints(params).keys()) - _names(schema) - HEADERS - FILE


OLLAMA: tuple[tuple[type[BaseModel], type[BaseModel]], ...] = (
    (ollama_types.ChatRequest, ollama_bodies.OllamaChatBody),
    (ollama_types.GenerateRequest, ollama_bodies.OllamaGenerateBody),
    (ollama_types.EmbedRequest, ollama_bodies.OllamaEmbedBody),
    (ollama_types.EmbeddingsRequest, ollama_bodies.OllamaEmbeddingsBody),
    (ollama_types.ShowRequest, OllamaShowBody),
    (ollama.Options, OllamaOptions),
    (ollama.Message, ollama_messages.OllamaChatMessage),
    (ollama.Message.ToolCall, ollama_messages.OllamaToolCall),
    (ollama.Message.ToolCall.Function, ollama_messages.OllamaFunctionCall),
    (ollama.Tool, ollama_messages.OllamaTool),
    (ollama.Tool.Function, ollama_messages.OllamaFunction),
)
HUB: tuple[tuple[Any, type[BaseModel]], ...] = (
    (huggingface_hub.FeatureExtractionInput, hub.HubEmbedBody),
    (huggingface_hub.SentenceSimilarityInputData, hub.HubSentences),
    (huggingface_hub.TextClassificationParameters, hub.HubClassifyParameters),
    (huggingface_hub.ZeroShotClassificationParameters, hub.HubZeroShotParameters),
    (huggingface_hub.FillMaskParameters, hub.HubFillMaskParameters),
    (huggingface_hub.TokenClassificationParameters, hub.HubTokenClassifyParameters),
    (huggingface_hub.QuestionAnsweringParameters, hub.HubQuestionParameters),
    (huggingface_hub.SummarizationParameters, hub.HubSummarizeParameters),
    (huggingface_hub.TranslationParameters, hub.HubTranslateParameters),
    (huggingface_hub.AutomaticSpeechRecognitionParameters, hub.HubSpeechParameters),
    (huggingface_hub.AutomaticSpeechRecognitionGenerationParameters, hub.HubSpeechDecoding),
    (huggingface_hub.TextGenerationInputGenerateParameters, tgi.TgiParameters),
    (huggingface_hub.TextGenerationInput, tgi.TgiBody),
)
COHERE: tuple[tuple[Callable[..., Any], type[BaseModel]], ...] = (
    (cohere.ClientV2.chat, cohere_chat.CohereChatBody),
    (cohere.ClientV2.embed, CohereEmbedBody),
    (cohere.ClientV2.rerank, CohereRerankBody),
    (cohere.Client.rerank, JinaRerankBody),
)
COHERE_OBJECTS: tuple[tuple[type[BaseModel], type[BaseModel]], ...] = (
    (cohere_types.ToolV2, cohere_chat.CohereTool),
    (cohere_types.ToolV2Function, cohere_chat.CohereFunction),
    (cohere_types.ToolCallV2, cohere_chat.CohereToolCall),
    (cohere_types.ToolCallV2Function, cohere_chat.CohereCalledFunction),
    (cohere_types.Thinking, cohere_chat.CohereThinking),
)
OF_PYTHON = {"self", "request_options", "batching"}
"""Arguments of the cohere package's methods that it does not send."""


def wire_names(schema: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in schema.model_fields.items()}


@pytest.mark.parametrize(("sent", "schema"), [*OLLAMA, *COHERE_OBJECTS], ids=lambda value: value.__name__)
def test_every_field_of_a_class_is_known(sent: type[BaseModel], schema: type[BaseModel]) -> None:
    assert not set(sent.model_fields) - wire_names(schema)


@pytest.mark.parametrize(("sent", "schema"), HUB, ids=lambda value: value.__name__)
def test_every_parameter_of_the_hub_is_known(sent: Any, schema: type[BaseModel]) -> None:
    assert not {field.name for field in dataclasses.fields(sent)} - wire_names(schema)


@pytest.mark.parametrize(("method", "schema"), COHERE, ids=lambda value: value.__qualname__)
def test_every_argument_of_cohere_is_known(method: Callable[..., Any], schema: type[BaseModel]) -> None:
    names = {
        name
        for name, argument in inspect.signature(method).parameters.items()
        if argument.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert len(names) > 4 and not names - wire_names(schema) - OF_PYTHON


def test_every_grammar_of_the_hub_is_known() -> None:
    kinds = get_args(get_type_hints(huggingface_hub.TextGenerationInputGrammarType)["type"])
    values = {"json": {}, "regex": "a", "json_schema": {"name": "x", "schema": {}}}
    assert set(kinds) == set(values)
    for kind in kinds:
        body = tgi.TgiBody.model_validate(
            {"inputs": "a", "parameters": {"grammar": {"type": kind, "value": values[kind]}}}
        )
        assert body.spec().options.text_format is not None


def test_every_anthropic_block_is_read_dropped_or_refused() -> None:
    """Every block type of the package is listed as read, dropped or refused.

    Unlisted types would be refused too, but not by a decision.
    """
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


def test_every_item_of_a_response_is_read_dropped_or_refused() -> None:
    kinds = _literals(response_types.ResponseInputItemParam, "type")
    read = {kind for kind, tag in response_input._TAGS.items() if tag not in ("<built-in>", "<refused>")}
    assert len(kinds) > 25 and not kinds - read - BUILT_IN_ITEMS.keys() - REFUSED_ITEMS.keys()


def test_every_tool_of_a_response_is_a_function_or_dropped() -> None:
    kinds = _literals(response_types.ToolParam, "type")
    assert len(kinds) > 12 and kinds - {"function"} <= response_tools.DROPPED_TOOLS


def test_every_value_of_include_is_known() -> None:
    assert set(get_args(response_includable.ResponseIncludable)) <= response_body.INCLUDABLE


@pytest.mark.parametrize(
    "item",
    [
        response_types.ResponseFunctionToolCall(type="function_call", call_id="c", name="f", arguments="{}"),
        response_types.ResponseCustomToolCall(type="custom_tool_call", call_id="c", name="f", input="x"),
        response_types.ResponseReasoningItem(type="reasoning", id="rs_1", summary=[]),
    ],
    ids=lambda item: item.type,
)
def test_items_of_the_package_are_read_in_every_form(item: Any) -> None:
    """An item is also read if it was dumped with the package's Python names, such as `async_` for `async`."""
    for given in (item.model_dump(), item.model_dump(by_alias=True), item.to_dict()):
        body = response_body.ResponsesBody.model_validate({"input": [given]})
        assert body.input[0].type == item.type and not ignored_parameters(body)  # type: ignore[attr-defined]


def test_text_that_is_sent_back_has_known_keys() -> None:
    text = dict.fromkeys(parsed_response.ParsedResponseOutputText.model_fields) | {"type": "output_text", "text": "a"}
    assert text_parts("output_text").func([text]) == "a"  # type: ignore[call-arg, arg-type]


def _names(schema: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in schema.model_fields.items()}


def _literals(union: Any, field: str) -> set[str]:
    """All texts that the type of `field` allows in the members of a union of typed dictionaries."""
    found: set[str] = set()
    for member in get_args(union):
        kind = get_type_hints(member).get(field)
        for part in (kind, *get_args(kind)):
            found |= {value for value in get_args(part) if isinstance(value, str)}
    return found


def _types(schema: type[BaseModel]) -> tuple[str, ...]:
    return get_args(schema.model_fields["type"].annotation)
