"""Rank texts by a language model's answer to the question whether a document is relevant to the query.

The score is the logit of the positive answer (such as yes) minus the logit of the negative answer (no).
Source: Nogueira et al. 2020, arXiv:2003.06713; Zhang et al. 2025, arXiv:2506.05176 (Qwen3-Reranker).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.client.call import Call
from server.ipc.wire.encode_messages import Encode, EncodeItem, EncodeTask
from server.operations.cost import Cost, characters_of
from server.operations.encode import check_tokens, sigmoid, vectors
from server.operations.marked_prompts import encode_prompts, special_texts
from server.operations.ranking.rerank_scores import RerankScores, RerankTexts
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.chats.answer_prompts import AnswerPrompt
from server.text.chats.chat import ChatError, chat_context
from server.text.chats.text_marks import TextMarks
from server.text.tokens.marked_text import MarkedText

RENDERED_TOGETHER = 64
"""Number of prompts that are rendered at once, before other requests may render their templates."""
_FILLERS = ("0", "1 2 3 4")
"""Two texts without a common token, used as query and document of two trial prompts. The tokens at the end that both
trial prompts have in common come from the template."""

_PARTS_SIGNS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
"""Texts in a chat template which show that contents must be lists of parts.

sentence-transformers searches for the same texts.
"""


@dataclass(frozen=True)
class _AnswerPrompt:
    """A tokenized prompt, and its two answers. One part of the prompt contains the document.

    before, after: token ids of the prompt before and after that part.
    query_tokens: number of tokens in that part that do not belong to the document.
    positive, negative: token ids of the two answers. negative is None if the logit of `positive` alone is the score.
    """

    before: list[int]
    after: list[int]
    query_tokens: int
    positive: int
    negative: int | None

    @property
    def answers(self) -> list[int]:
        return [self.positive] if self.negative is None else [self.positive, self.negative]


async def answer_scores(runtime: Runtime, call: Call, model: ServedModel, asked: RerankTexts) -> RerankScores:
    """Score each text.

    Raises InvalidRequest for truncation on the left, or a template that leaves out the query or the document, and
    ContextLengthExceeded for a query that leaves no room, or a long text without truncation.
    """
    if asked.truncation == "left":
        raise InvalidRequest(
            f"`truncation_direction` left is not supported by `{model.name}`: its prompt ends with the text",
            "truncation_direction",
        )
    texts, cut = await _cut_texts(runtime, call, model, asked)
    prompt = model.text.answer_prompt
    if prompt is None:
        tokens, prompts = await _template_tokens(runtime, call, model, asked, texts)
    else:
        tokens, prompts = await _prompt_tokens(runtime, call, model, prompt, asked, texts)
    room = model.max_input_tokens - len(tokens.before) - len(tokens.after)
    if room <= tokens.query_tokens:
        raise ContextLengthExceeded(
            f"`query` leaves no room for a text: `{model.name}` reads at most {model.max_input_tokens} tokens", "query"
        )

    def item(ids: list[int]) -> tuple[EncodeItem, bool]:
        is_long = len(ids) > room
        if is_long and asked.truncation is not None:
            # A prompt that is rendered as one text loses tokens at its beginning if it is too long, as in
            # sentence-transformers.
            end = ids[len(ids) - tokens.query_tokens :] if prompt is None else []
            ids = [*ids[: room - len(end)], *end]
        return EncodeItem(check_tokens([*tokens.before, *ids, *tokens.after], model, "texts")), is_long

    found = await encode_prompts(runtime, call, model.tokenizer, prompts, item, param="texts")
    items = [encoded for encoded, _ in found]
    task: EncodeTask = "classify" if "classify" in model.info.tasks else "answer_logits"
    message = Encode(call.next_id(), model.name, task, items, target_ids=tokens.answers)
    logits = await vectors(call, message)
    raw = logits[:, 0] - logits[:, 1] if logits.shape[1] == 2 else logits[:, 0]
    truncated = sorted({place for place, (_, is_shorter) in enumerate(found) if is_shorter} | cut)
    return RerankScores(raw, sigmoid(raw), sum(encoded.num_tokens for encoded in items), truncated)


def answer_cost(model: ServedModel, asked: RerankTexts) -> Cost:
    """Upper bounds of the work of `answer_scores`. It is assumed that a chat template writes its own text once.

    The query is tokenized with each text, and up to two more times with other parts of the prompt.
    """
    prompt, bound = model.text.answer_prompt, model.tokenizer.token_bound
    if prompt is None:
        own, default = model.text.chat_templates.by_name.get("default", ""), model.text.prompts.default
        answers = ""
    else:
        own, default = "".join(prompt.parts) + prompt.instruction, prompt.default_instruction
        answers = prompt.positive + prompt.negative
    around = (own, asked.query, asked.instruction or default)
    most = sum(map(bound, around))
    tokens = sum(min(most + bound(text), model.max_input_tokens) for text in asked.texts)
    readings = 1 if asked.max_text_tokens is None else 2
    characters = (len(asked.texts) + 2) * characters_of(around) + len(answers) + readings * characters_of(asked.texts)
    return Cost(characters, tokens, len(asked.texts), answer_numbers=2 * len(asked.texts))


def takes_instruction(model: ServedModel) -> bool:
    """Whether the model's prompt for ranking has a place for an instruction."""
    prompt = model.text.answer_prompt
    return model.info.answer is not None if prompt is None else prompt.takes_instruction


async def _cut_texts(
    runtime: Runtime, call: Call, model: ServedModel, asked: RerankTexts
) -> tuple[Sequence[str], set[int]]:
    """Cut texts to their first `max_text_tokens` tokens. Returns all texts, and the indices of texts that were cut."""
    most = asked.max_text_tokens
    if most is None:
        return asked.texts, set()
    ends = await runtime.encode_with(
        model.tokenizer,
        asked.texts,
        lambda encoding: encoding.offsets[most - 1][1] if len(encoding.ids) > most else None,
        param="texts",
        add_special_tokens=False,
        offsets=True,
        call=call,
    )
    return [text[:end] for text, end in zip(asked.texts, ends, strict=True)], {
        place for place, end in enumerate(ends) if end is not None
    }


def _marks(runtime: Runtime, model: ServedModel, asked: RerankTexts, texts: Sequence[str], *own: str) -> TextMarks:
    """Marks by which special tokens in the query, the instruction and the texts stay plain text.

    own: texts of the prompt itself, which must not contain a mark by chance.
    """
    return TextMarks(special_texts(runtime, model.tokenizer), asked.query, asked.instruction or "", *texts, *own)


async def _prompt_tokens(
    runtime: Runtime, call: Call, model: ServedModel, prompt: AnswerPrompt, asked: RerankTexts, texts: Sequence[str]
) -> tuple[_AnswerPrompt, list[MarkedText]]:
    """Tokenize a prompt whose parts are tokenized separately. Returns it, and for each text its part with the document.

    prompt: the parts of the prompt. texts: the documents. Raises InvalidRequest for an answer without a token.
    """
    place = prompt.parts.index(prompt.document_part)
    own = (*prompt.parts, prompt.instruction, prompt.default_instruction)
    marks = _marks(runtime, model, asked, texts, *own)

    def fill() -> tuple[list[MarkedText], list[MarkedText]]:
        query, instruction = marks.value(asked.query), marks.value(asked.instruction)
        documents = [prompt.fill(prompt.document_part, query, instruction, marks.value(text)) for text in texts]
        parts = [prompt.fill(part, query, instruction) for part in prompt.parts]
        return [*map(marks.read, parts)], [*map(marks.read, documents)]

    try:
        filled, documents = await runtime.pools.tokenize.run(fill, call)
    except ChatError as error:
        raise InvalidRequest(f"`texts`: {error}", "texts") from None
    answers = [answer for answer in (prompt.positive, prompt.negative) if answer]
    encoded = await encode_prompts(
        runtime, call, model.tokenizer, [*filled, *map(MarkedText, answers)], lambda ids: ids, param="query"
    )
    parts, found = encoded[: len(filled)], encoded[len(filled) :]
    if not all(found):
        raise InvalidRequest(f"the tokenizer of `{model.name}` has no token for the answer {answers[0]!r}", "model")
    tokens = _AnswerPrompt(
        [token for part in parts[:place] for token in part],
        [token for part in parts[place + 1 :] for token in part],
        len(parts[place]),
        found[0][0],
        found[1][0] if len(found) > 1 else None,
    )
    return tokens, documents


async def _template_tokens(
    runtime: Runtime, call: Call, model: ServedModel, asked: RerankTexts, texts: Sequence[str]
) -> tuple[_AnswerPrompt, list[MarkedText]]:
    """Render the whole prompt of each text with the chat template. Returns the answers' tokens, and the prompts.

    The tokens at the end of the prompt that come from the template are counted as `query_tokens`, because they are kept
    when a prompt is shortened. Raises InvalidRequest for a template that leaves out the query or the document.
    """
    default = model.text.prompts.default
    marks = _marks(runtime, model, asked, texts, default, *model.text.chat_templates.by_name.values())
    base, filled, other = await _rendered(
        runtime,
        call,
        model,
        [(_FILLERS[0], _FILLERS[0]), (_FILLERS[1], _FILLERS[0]), (_FILLERS[0], _FILLERS[1])],
        marks,
        asked.instruction,
    )
    if base in (filled, other):
        left_out = "query" if base == filled else "document"
        raise InvalidRequest(f"the chat template of `{model.name}` leaves the {left_out} out", "model")
    first, second = await encode_prompts(runtime, call, model.tokenizer, [base, other], lambda ids: ids, param="query")
    end = 0
    while end < min(len(first), len(second)) and first[-1 - end] == second[-1 - end]:
        end += 1
    pairs = [(asked.query, text) for text in texts]
    prompts = await _rendered(runtime, call, model, pairs, marks, asked.instruction)
    answer = model.info.answer
    assert answer is not None, "a model without a prompt of the operator names its answers"
    return _AnswerPrompt([], [], end, answer.positive, answer.negative), prompts


async def _rendered(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    pairs: Sequence[tuple[str, str]],
    marks: TextMarks,
    instruction: str | None,
) -> list[MarkedText]:
    """Render pairs of query and document with the chat template. Raises InvalidRequest if the template fails."""
    templates, answer = model.text.chat_templates, model.info.answer
    adds_prompt = answer is not None and answer.adds_generation_prompt

    def content(text: str) -> object:
        source = templates.choose()
        return [{"type": "text", "text": text}] if any(sign in source for sign in _PARTS_SIGNS) else text

    def render(query: str, document: str) -> MarkedText:
        stated = marks.value(instruction) or model.text.prompts.default
        roles = {"system": stated, "query": marks.value(query), "document": marks.value(document)}
        messages = [
            {"role": role, "content": content(text)} for role, text in roles.items() if text or role != "system"
        ]
        context = chat_context(templates, messages, add_generation_prompt=adds_prompt)
        most = runtime.max_text_characters + marks.num_characters
        return marks.read(runtime.chat_renderer.render(templates.choose(), context, most, call.limits.next_deadline))

    found: list[MarkedText] = []
    for start in range(0, len(pairs), RENDERED_TOGETHER):
        work = partial(_all, render, pairs[start : start + RENDERED_TOGETHER])
        try:
            found += await runtime.in_template_thread(work, call)
        except ChatError as error:
            raise InvalidRequest(f"`{model.name}` cannot read a query with a text: {error}", "model") from None
    return found


def _all(render: Callable[[str, str], MarkedText], pairs: Sequence[tuple[str, str]]) -> list[MarkedText]:
    return [render(*pair) for pair in pairs]
