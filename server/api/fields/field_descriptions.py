"""Descriptions of request fields, for the OpenAPI document and docs/api-reference.md: one place for each field.

A field has the same description in every body. A key `Schema.field` is for a field with another meaning in one schema.
A field with a description in its schema is not listed here. Hints, wishes and refused fields are described by their
kind (`field_kinds`); `REASONS` has additional text for some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from server.api.fields.field_kinds import KIND

DESCRIPTIONS: Mapping[str, str] = {
    # Prompts and inputs
    "prompt": "text to continue, or source text of an encoder-decoder: a string, a list, or token ids",
    "inputs": "a text, or a list of texts that are answered in order",
    "input": "a text, token ids, or a list of either",
    "messages": "the conversation so far, oldest message first",
    "system": "instruction that precedes the conversation",
    "role": "author of the message",
    "content": "text of the message, or a list of its parts; in the result of a tool, a note takes the place of a part "
    "that is no text, and the part is named",
    "RerankDocument.text": "the text",
    "ResponseText.format": "text, json_object or json_schema",
    "AnthropicText.text": "the text of this part",
    "OpenAIMessage.function_call": "a call, in the form that the API had before `tool_calls`",
    "AnthropicSearchResult.content": "the texts that were found",
    "AnthropicSearchResult.source": "where the texts were found",
    "AnthropicSearchResult.title": "title of the source",
    "DeeplTranslateBody.text": "texts to translate",
    "ResponsesBody.text": "the form of the answer",
    "q": "a text, or a list of texts",
    "instructions": "instruction that precedes the conversation",
    "query": "text that the others are compared with",
    "RerankBody.texts": "texts to rank",
    "CohereEmbedBody.texts": "texts to embed",
    "question": "the question",
    "QuestionAnswerBody.context": "text that contains the answer",
    "HubQuestion.context": "text that contains the answer",
    "source_sentence": "sentence that the others are compared with",
    "sentences": "sentences to compare with `source_sentence`",
    "ids": "token ids of one text, or a list of such lists",
    "tokens": "token ids of one text",
    "ChatCompletionBody.documents": "documents that the chat template inserts",
    "CohereRerankBody.documents": "texts to rank",
    "JinaRerankBody.documents": "texts to rank",
    "add_special_tokens": "add the tokens that the checkpoint puts around a text; default true",
    "EmbedChunksBody.inputs": "one text",
    "EmbedSparseBody.inputs": "a text, token ids, or a list of either",
    "EmbedBody.inputs": "a text, token ids, or a list of either",
    "EmbedAllBody.inputs": "a text, token ids, or a list of either",
    "ClassifyBody.inputs": "a text, or a list of texts and of pairs of texts",
    "TeiPredictBody.inputs": "a text, a pair of texts, or a list of either",
    "HubQuestionBody.inputs": "the question and its context",
    "HubSimilarityBody.inputs": "a sentence, and the sentences to compare with it",
    "SimilarityBody.inputs": "a sentence, and the sentences to compare with it",
    "OllamaEmbeddingsBody.prompt": "the text to embed",
    "PromptTokensBody.prompt": "the text to tokenize",
    "AnthropicToolUse.input": "arguments of the call",
    # Length and sampling
    "stream": "answer in parts while the text is generated; default false",
    "max_new_tokens": "maximum number of new tokens; default: the checkpoint's, else 256; at most the rest of the "
    "context",
    "max_tokens": "maximum number of new tokens; reduced to the rest of the context",
    "max_completion_tokens": "the same as `max_tokens`",
    "max_output_tokens": "maximum number of new tokens; by default as many as the context leaves",
    "min_new_tokens": "no end of text before this many new tokens",
    "max_length": "maximum number of new tokens and the start token of the decoder; `max_new_tokens` precedes it",
    "min_length": "no end of text before this many new tokens and the start token; `min_new_tokens` precedes it",
    "do_sample": "draw tokens at random; default: true if a sampling field is set",
    "temperature": "divides the logits; 0 always takes the likeliest token",
    "top_k": "draw from this many of the likeliest tokens; 0 for all",
    "top_p": "draw from the likeliest tokens that together have this probability",
    "min_p": "draw from tokens with at least this share of the likeliest token's probability",
    "typical_p": "draw from the most typical tokens that together have this probability",
    "repetition_penalty": "above 1: tokens of the prompt and the text become less likely",
    "presence_penalty": "subtracted once from the logit of each token generated before",
    "frequency_penalty": "subtracted from the logit of a token each time it was generated before",
    "no_repeat_ngram_size": "no sequence of this many tokens occurs twice; 0 allows all",
    "encoder_no_repeat_ngram_size": "no sequence of this many tokens of the source occurs in the answer; 0 allows all",
    "bad_words": "words that the answer must not contain",
    "allowed_token_ids": "only these tokens are generated",
    "allowed_sequences": "texts or lists of token ids, or the name of a stored set; the answer is one of them",
    "suppress_tokens": "tokens that are never generated",
    "seed": "makes a sampled answer reproducible; row i uses seed + i; default: random",
    "n": "number of answers to each prompt: independent ones, or with beams the best hypotheses",
    "best_of": "number of generated answers or hypotheses, of which the best are returned",
    "num_beams": "number of beams of beam search; 1 turns it off",
    "num_return_sequences": "number of answers of each beam search, best first",
    "length_penalty": "score = sum of log-probabilities / length ** length_penalty",
    "early_stopping": "when beam search ends: true, false or never, as in transformers",
    "num_beam_groups": "number of groups of diverse beam search",
    "diversity_penalty": "lowers the scores of tokens that earlier beam groups chose at the same step",
    "stop": "texts before which the answer ends",
    "stop_sequences": "texts before which the answer ends",
    "stop_token_ids": "tokens that end the answer",
    "include_stop": "keep the stop text or token in the answer",
    "ignore_eos": "continue past the end tokens of the checkpoint",
    "skip_special_tokens": "remove special tokens from the text; default true",
    "logprobs": "report the log-probability of each generated token",
    "CompletionBody.logprobs": "report the log-probability of each token, and of this many alternatives",
    "top_logprobs": "number of the likeliest alternatives reported for each token",
    "prompt_logprobs": "report the log-probability of each prompt token; decoders only",
    "echo": "put the prompt before the answer; decoders only",
    "return_token_ids": "report the token ids of the answer",
    "return_attention": "report the cross-attention of each new token; encoder-decoders only, without `stream`",
    "decoder_prefix": "text with which the answer begins; encoder-decoders only",
    "source_lang": "language of the input: ISO 639, BCP 47, FLORES or mBART code",
    "target_lang": "language of the translation: ISO 639, BCP 47, FLORES or mBART code",
    "DeeplTranslateBody.split_sentences": "0 never, 1 at punctuation and line breaks, nonewlines at punctuation",
    "DeeplTranslateBody.source_lang": "language of the texts; default: detected",
    "DeeplTranslateBody.target_lang": "language of the translations",
    "source": "language of the text, or auto",
    "target": "language of the translation",
    "alternatives": "number of further translations of each text",
    "src_lang": "language of the input",
    "tgt_lang": "language of the translation",
    "num_alternatives": "number of further translations of each text",
    "split_sentences": "translate sentence by sentence (default); nonewlines: lines are wrapped",
    "protect": "false: also translate placeholders, addresses and emoji; a list: further terms to keep",
    "glossary": "terms and their translations, for the sentences that contain the terms; at most 128",
    "response_format": "the form of the answer: text, json_object, json_schema, regex or choice",
    "TranscriptionForm.response_format": "json, text, srt, vtt, or verbose_json with times",
    "TranslationForm.response_format": "json, text, srt, vtt, or verbose_json with times",
    "timestamp_granularities": "`segment`, `word` or both; needs `response_format` verbose_json",
    "compression_ratio_threshold": "with fallback: reject windows that are more repetitive; default 2.4",
    "logprob_threshold": "with fallback: reject windows whose mean log-probability is lower; default -1",
    "no_speech_threshold": "leave out windows whose `no_speech_prob` is higher and whose mean log-probability is low",
    "condition_on_previous_text": "put the text so far before each window; default false",
    "WhisperCppForm.response_format": "json, text, srt, vtt, or verbose_json with times",
    "logprob_thold": "with several temperatures: reject windows whose mean log-probability is lower; default -1",
    "vad_min_silence_duration_ms": "with `vad`: shortest silence left out; default 2000",
    "vad_speech_pad_ms": "with `vad`: kept before and after speech; default 400",
    "return_timestamps": "true: `chunks` of the text with their times; word: of each word",
    "generation_parameters": "decoding fields",
    "HubSpeechDecoding.temperature": "temperature of sampling; default 0, the likeliest text",
    "HubSpeechDecoding.task": "transcribe, or translate into English; default transcribe",
    "TranscriptionForm.stream": "answer in parts, with `response_format` json or text; default false",
    "TranslationForm.stream": "answer in parts, with `response_format` json or text; default false",
    "stream_options": "what the stream reports in addition to the answer",
    "include_usage": "report the number of tokens in one more chunk at the end",
    "OllamaChatBody.stream": "answer in parts while the text is generated; default true",
    "OllamaGenerateBody.stream": "answer in parts while the text is generated; default true",
    # Truncation: one meaning per route
    "truncate": "shorten texts that are longer than the model reads, instead of refusing them",
    "truncation_direction": "side on which a long text loses tokens; default right",
    "EmbeddingsBody.truncate_prompt_tokens": "keep at most this many tokens of each input, from its beginning; -1: as "
    "many as the model reads",
    "GenerateBody.truncate": "keep this many prompt tokens: the last of a decoder, the first of an encoder-decoder",
    "TranslateBody.truncate": "keep this many tokens of each segment, from its beginning",
    "TgiParameters.truncate": "keep this many tokens of the prompt",
    "CohereEmbedBody.truncate": "NONE refuses a long text; START and END remove tokens on that side",
    "max_tokens_per_doc": "keep this many tokens of each text",
    # Markup
    "tag_handling": "the texts are HTML or XML, whose tags stay in place",
    "outline_detection": "false: only `splitting_tags` divide an XML text",
    "splitting_tags": "tags that divide a text",
    "non_splitting_tags": "tags that do not divide a text",
    "ignore_tags": "tags whose content is not translated",
    "show_billed_characters": "report the number of characters of each text",
    # Encoders
    "top_n": "number of texts to report; default: all",
    "return_documents": "report the texts with their scores",
    "input_type": "what the texts are for; chooses a prompt of the checkpoint that has this name",
    "output_dimension": "keep this many numbers of each vector",
    "normalize": "scale each vector to length 1; default true",
    "dimensions": "keep this many numbers of each vector",
    "prompt_name": "name of a prompt of the checkpoint, which is put before each text",
    "pooling": "how token vectors become the vector of a text; default: the checkpoint's",
    "chunks": "parts of the text that get a vector each",
    "encoding_format": "float for numbers, base64 for little-endian float32",
    "function_to_apply": "turns logits into scores: softmax, sigmoid or none; default: the checkpoint's",
    "raw_scores": "report logits instead of numbers from 0 to 1",
    "return_text": "report the texts with their scores",
    "targets": "consider only these words",
    "aggregation_strategy": "how tokens are joined to entities: none, simple, first, average or max",
    "stride": "tokens that neighbouring windows of a long text have in common",
    "ignore_labels": "labels that are left out",
    "late_interaction": "what the texts are: query or document; the answer has a vector for each token",
    "labels": "what the entities are called; needs a model that reads labels (GLiNER)",
    "threshold": "lowest probability of an entity; default 0.5",
    "instruction": "what makes a text relevant; needs a language model that answers yes or no",
    "candidate_labels": "labels to choose from",
    "task": "name of the classification, which a GLiNER2 model reads",
    "hypothesis_template": "sentence about the text, with {} in place of the label",
    "multi_label": "score each label independently of the others; default false",
    "ClassifyBody.top_k": "number of labels to report; default: all",
    "HubClassifyParameters.top_k": "number of labels to report",
    "FillMaskBody.top_k": "number of words to report; default 5",
    "HubFillMaskParameters.top_k": "number of words to report; default 5",
    "QuestionAnswerBody.top_k": "number of answers to report; default 1",
    "HubQuestionParameters.top_k": "number of answers to report; default 1",
    "max_answer_len": "longest answer in tokens",
    # Formats
    "choices": "texts of which the answer is one",
    "pattern": "regular expression that the whole answer matches",
    "schema": "a JSON Schema",
    "json_schema": "a name and a JSON Schema",
    "value": "the schema or the expression",
    "grammar": "JSON Schema or regular expression that the answer matches",
    "OllamaChatBody.format": '"json" or a JSON Schema that the answer matches',
    "OllamaGenerateBody.format": '"json" or a JSON Schema that the answer matches',
    "LibreTranslateBody.format": "html: the tags of the text stay in place",
    "output_config": "the form of the answer",
    "AnthropicOutputConfig.format": "a JSON Schema that the answer matches",
    "type": "kind of this object",
    # Tools and reasoning
    "tools": "functions that the model may call",
    "tool_choice": "whether the model may, must or must not call a function, and which",
    "tool_calls": "calls that the model made",
    "parallel_tool_calls": "allow several calls in one answer; default true",
    "disable_parallel_tool_use": "allow one call in an answer at most",
    "function": "name and parameters of the function",
    "parameters": "JSON Schema of the arguments",
    "arguments": "arguments of the call",
    "name": "name of the function",
    "OllamaShowBody.name": "the same as `model`",
    "OpenAIMessage.name": "name of the author",
    "description": "what the function does",
    "strict": "refuse a schema that cannot be enforced in full; otherwise the rest of it is enforced",
    "strict_tools": "`strict` for every tool",
    "id": "id of the call",
    "tool_call_id": "id of the call that this message answers",
    "tool_use_id": "id of the call that this part answers",
    "tool_name": "name of the function that this message answers",
    "is_error": "whether the call failed",
    "reasoning_content": "reasoning before the answer",
    "thinking": "whether the model reasons before it answers",
    "AnthropicThinking.thinking": "the reasoning",
    "OllamaChatMessage.thinking": "reasoning before the answer",
    "think": "whether the model reasons before it answers, or how much: low, medium, high",
    "continue_final_message": "continue the last message instead of answering it",
    "add_generation_prompt": "let the template begin the answer; default true",
    "chat_template_kwargs": "further variables of the chat template",
    "tool_plan": "reasoning before the calls",
    "call_id": "id of the call",
    "output": "what the function returned",
    "reasoning": "whether the model reasons before it answers",
    "ResponsesBody.input": "a text, or the items of the conversation, oldest first",
    "ResponsesBody.previous_response_id": "id of the stored response that the request continues",
    "ResponsesBody.tools": "functions that the model may call; tools of other types are dropped and named",
    "InputReasoning.content": "parts of the reasoning",
    "InputReasoning.encrypted_content": "reasoning in the form in which an answer of this server had it",
    "InputReasoning.summary": "parts of a summary, which is used if there is no other text",
    "InputReference.id": "id of the stored item",
    "InputCustomCall.input": "the text of the call",
    "BuiltInItem.id": "id of the item",
    "effort": "how much the model reasons, if its chat template has a setting for it",
    "reasoning_effort": "none, minimal, low, medium, high, xhigh or max: how much the model reasons, if its chat "
    "template has a setting for it",
    "enable_thinking": "whether the model reasons before it answers",
    "OpenAIReasoning.enabled": "whether the model reasons before it answers",
    "OpenAIMessage.reasoning": "the same as `reasoning_content`",
    "reasoning_text": "the same as `reasoning_content`",
    "cot_summary": "the same as `reasoning_content`",
    "OpenAIMessage.refusal": "text of an answer without `content`",
    "custom": "a call of a tool whose input is text",
    # Other fields that clients send
    "output_format": "the same as `output_config.format`",
    "context_management": "changes of the conversation before it is answered",
    "edits": "the changes; those that would remove text are left out",
    "AnthropicEdit.keep": "what the edit keeps",
    "clear_at": "when the text of a turn of the role system ends: never, or next_user_message",
    "usage": "report the number of tokens at the end of a stream",
    "OpenAIStreamUsage.include": "report the number of tokens at the end of a stream",
    "continuous_usage_stats": "with `include_usage`: report the number of tokens in each chunk",
    "include": "further parts of the answer",
    "k": "draw from this many of the likeliest tokens; 0 for all",
    "p": "draw from the likeliest tokens that together have this probability",
    "options": "sampling fields",
    "raw": "use the prompt as it is, without the chat template",
    "repeat_penalty": "above 1: tokens of the prompt and the text become less likely",
    "generate_parameters": "decoding fields, as in /generate",
    "decoder_input_details": "report the log-probability of each prompt token",
    "details": "report the tokens of the answer",
    "return_full_text": "put the prompt before the answer",
    "top_n_tokens": "number of the likeliest alternatives reported for each token",
}

REASONS: Mapping[str, str] = {
    "ResponseReasoning.context": "the chat template decides",
    "ResponseReasoning.generate_summary": "no summary is made",
    "ResponseReasoning.summary": "no summary is made",
    "executed_tools": "what tools inside another server did",
    "partial": "use `continue_final_message`",
    "prefix": "use `continue_final_message`",
    "ResponsesBody.context_management": "the server shortens no conversation",
    "ResponsesBody.truncation": "long input is refused",
    "cache_control": "prompts are always cached",
    "prompt_cache_key": "prompts are always cached",
    "cache_prompt": "prompts are always cached",
    "budget_tokens": "`max_tokens` is the limit",
    "thinking_budget": "`max_tokens` is the limit",
    "thinking_token_budget": "`max_tokens` is the limit",
    "eager_input_streaming": "arguments are always streamed",
    "defer_loading": "all tools are in the prompt",
    "fallbacks": "the requested model answers",
    "models": "the requested model answers",
    "thread": "each request has all messages",
    "max_question_len": "a question is never shortened",
    "max_chunks_per_doc": "a document is read at once, up to `max_tokens_per_doc`",
    "rank_fields": "a document has only this field",
    "functions": "use `tools`",
    "function_call": "use `tools`",
    "guided_json": "use `response_format`",
    "guided_regex": "use `response_format`",
    "guided_choice": "use `response_format`",
    "structured_outputs": "use `response_format`",
    "truncate_prompt_tokens": "a prompt that is too long is refused",
    "n_predict": "use `max_tokens`",
    "preserve_formatting": "the server never corrects what the model writes",
}
"""Text for some hints, wishes and refused fields: what to use instead, or why the field is not needed."""


def describe_fields(schemas: dict[str, Any], bodies: list[str]) -> None:
    """Add descriptions to the fields of request bodies, and of the schemas that the bodies refer to.

    schemas: JSON Schemas by name, changed in place. bodies: names of the request bodies.
    """
    for name in reachable(schemas, bodies):
        for field, schema in schemas[name].get("properties", {}).items():
            text = DESCRIPTIONS.get(f"{name}.{field}") or _parameters_text(name, field) or DESCRIPTIONS.get(field)
            if KIND in schema:
                reason = REASONS.get(f"{name}.{field}") or REASONS.get(field)
                schema["description"] += f": {reason}" if reason else ""
            if text is not None and "description" not in schema:
                schema["description"] = text


def _parameters_text(name: str, field: str) -> str | None:
    """Description of a field `parameters` or `options` of a request body. None for other fields and other schemas.

    name: name of the schema. It decides, because `parameters` of a function has another meaning.
    """
    if field == "parameters" and name.endswith("Body"):
        return "further fields of the task"
    return "settings of the hosted service" if field == "options" and name.startswith("Hub") else None


def reachable(schemas: Mapping[str, Any], names: list[str]) -> list[str]:
    """The given names, and the names of all schemas that these schemas refer to, directly or indirectly."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += [reference.rpartition("/")[2] for reference in _references(schemas[name])]
    return list(found)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
