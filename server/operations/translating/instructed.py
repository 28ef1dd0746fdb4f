"""Translate with language models: the prompts around the texts, and the request's context and formality in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from server.errors import InvalidRequest
from server.ipc.client.call import Call
from server.operations.marked_prompts import encode_prompts, special_texts
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.operations.translating.translation_models import TranslationPath, TranslationStep
from server.text.chats.chat import ChatError, chat_context
from server.text.chats.text_marks import MARKS, TextMarks
from server.text.languages.prompt_frame import PromptFrame
from server.text.tokens.text_pattern import text_pattern

MAX_SEGMENT_TOKENS = 512
"""Maximum tokens of a text in one prompt: a few paragraphs, because models are trained on sentences and paragraphs."""
_THINKING = ("enable_thinking", "thinking")
"""Variables of chat templates that switch reasoning off if they are False. They are not set for published prompts."""
_TEMPLATE_CHARACTERS = 512
"""Estimated maximum number of characters for the chat template around a message, and for names of languages."""


Formality = Literal["more", "less", "prefer_more", "prefer_less"]


def longest_frame(model: ServedModel, context: str) -> str:
    """A text that is at least as long as the prompt around a text to translate. Only its length has a meaning."""
    instruction = model.instruction
    assert instruction is not None, "only a language model has a prompt"
    texts = instruction.text, instruction.chinese, instruction.with_context, instruction.with_formality
    longest = max(*texts, instruction.with_tags, key=len)
    return longest + context + " " * _TEMPLATE_CHARACTERS


def check_wishes(
    path: TranslationPath, context: str | None, formality: Formality | None
) -> tuple[str | None, str | None]:
    """The context and the formality (`more`, `less` or None) that the models of a translation apply.

    formality: `more` or `less` are required. `prefer_more` and `prefer_less` are ignored if the last model has no
        prompt for them, or already needs a prompt with the context.
    Raises InvalidRequest if the first model has no prompt with a context, if the last model has no prompt with a
    required formality, or if one model would need a prompt with context and formality.
    """
    first, last = path.first.model.instruction, path.last.model.instruction
    if context is not None and (first is None or not first.with_context):
        raise InvalidRequest(f"`context` is not supported: `{path.first.model.name}` has no prompt with it", "context")
    if formality is None:
        return context, None
    knows = last is not None and bool(last.with_formality)
    excluded = context is not None and path.first is path.last
    if formality.startswith("prefer_"):
        return context, formality.removeprefix("prefer_") if knows and not excluded else None
    if not knows:
        problem = f"is not supported: `{path.last.model.name}` has no prompt with it"
        raise InvalidRequest(f"`formality` {problem}, except as prefer_more or prefer_less", "formality")
    if excluded:
        raise InvalidRequest("`formality` cannot be combined with `context`: each has its own prompt", "formality")
    return context, formality


async def with_frames(
    runtime: Runtime,
    call: Call,
    path: TranslationPath,
    context: str | None,
    formality: Formality | None,
    has_tags: bool,
) -> TranslationPath:
    """Add the prompts of the path's language models to its steps, and return the new path.

    context: text around the inputs, for the prompt of the first model.
    formality: for the prompt of the last model.
    has_tags: some text may have inline tags. A single model that has a prompt for inline tags then gets this prompt as
        well.
    Raises InvalidRequest for a context, formality or `truncate` that a model does not support, and for a chat template
    that fails or changes the text of a message.
    """
    context, chosen = check_wishes(path, context or None, formality)
    steps = []
    for step in path.steps:
        wishes = context if step is path.first else None, chosen if step is path.last else None
        frame = tag_frame = None
        if not step.prompt.copies:
            frame = await _frame(runtime, call, step, *wishes)
            instruction = step.model.instruction
            if (
                has_tags
                and instruction is not None
                and instruction.with_tags
                and wishes == (None, None)
                and not path.pivot
            ):
                tag_frame = await _frame(runtime, call, step, None, None, has_tags=True)
        steps.append(replace(step, frame=frame, tag_frame=tag_frame))
    return replace(path, steps=tuple(steps))


async def _frame(
    runtime: Runtime,
    call: Call,
    step: TranslationStep,
    context: str | None,
    formality: str | None,
    has_tags: bool = False,
) -> PromptFrame | None:
    model, instruction = step.model, step.model.instruction
    if instruction is None:
        return None
    if step.options.truncate is not None:
        raise InvalidRequest(f"`truncate` is not supported: `{model.name}` translates with a prompt", "truncate")
    templates = model.text.chat_templates
    source, target = step.prompt.source_lang, step.prompt.target_lang or ""
    special = special_texts(runtime, model.tokenizer)
    before, after = instruction.fill(source, target, context, formality, has_tags)

    def render() -> PromptFrame:
        template = templates.choose() if instruction.chat else ""
        marks = TextMarks(special, before, after, template)
        own = marks.value(context) if context is not None else None
        head, tail = instruction.fill(source, target, own, formality, has_tags)
        place = next(mark for mark in map(chr, reversed(MARKS)) if mark not in head + tail + template)
        rendered = head + place + tail
        if instruction.chat:
            message = {"role": "user", "content": rendered}
            variables = {} if instruction.is_published else dict.fromkeys(_THINKING, False)
            rendered = runtime.chat_renderer.render(
                template,
                chat_context(
                    templates,
                    templates.in_forms(template, [message]),
                    extra_variables=variables,
                ),
                runtime.max_text_characters + marks.num_characters,
                call.limits.next_deadline,
            )
        if rendered.count(place) != 1:
            raise ChatError("the chat template does not show a message as it was written")
        head, _, tail = rendered.partition(place)
        adds = not instruction.chat and instruction.special_tokens
        return PromptFrame(marks.read(head), marks.read(tail), adds)

    try:
        frame = await runtime.in_template_thread(render, call)
    except ChatError as error:
        raise InvalidRequest(f"`model`: `{model.name}` cannot translate: {error}", "model") from None
    (ids,) = await _encode(runtime, call, model, frame, [""])
    return replace(frame, num_tokens=len(ids))


async def read_instructed(
    runtime: Runtime, call: Call, model: ServedModel, frame: PromptFrame, texts: Sequence[str]
) -> list[list[int]]:
    """Token ids of one prompt per text.

    Special tokens that are written in a text are tokenized as ordinary text, unless the server is configured otherwise.
    """
    return await _encode(runtime, call, model, frame, texts)


async def _encode(
    runtime: Runtime, call: Call, model: ServedModel, frame: PromptFrame, texts: Sequence[str]
) -> list[list[int]]:
    pattern = text_pattern(special_texts(runtime, model.tokenizer))
    prompts = [
        frame.around(text, [match.start() + 1 for match in pattern.finditer(text)] if pattern is not None else ())
        for text in texts
    ]
    return await encode_prompts(
        runtime,
        call,
        model.tokenizer,
        prompts,
        lambda ids: ids,
        param="inputs",
        add_special_tokens=frame.special_tokens,
    )


def segment_tokens(model: ServedModel) -> int:
    """Maximum tokens of a text in one prompt: at most a quarter of the context, so that prompt and answer also fit."""
    return min(MAX_SEGMENT_TOKENS, max(model.info.context_tokens // 4, 1))
