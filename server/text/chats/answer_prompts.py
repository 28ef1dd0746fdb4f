"""Prompts that ask a language model whether a document answers a query. The model's answer is one token.

They serve rerankers whose checkpoint does not define a prompt. (sentence-transformers checkpoints name their answer
tokens and have a chat template instead.) The operator chooses one of the published prompts, or writes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

_PLACEHOLDER = re.compile(r"\{(query|document|instruction)\}")
MAX_PROMPT_BYTES = 1 << 16


class PromptError(ValueError):
    """A prompt cannot be used. The message is one line."""


@dataclass(frozen=True)
class AnswerPrompt:
    """A prompt for reranking with a language model, and the two answers whose logits give the score.

    parts: texts with the placeholders `{query}`, `{document}` and `{instruction}`. Each part is tokenized alone,
        without special tokens around it. One part ends with `{document}`; it is cut if the prompt is too long.
    positive, negative: answers; only the first token of each is used. If `negative` is empty, the score is the logit
        of `positive`.
    instruction: template of the text that replaces `{instruction}` in the parts. Its own `{instruction}` stands for
        the instruction of the request, or else `default_instruction`. Without either, the replacement is empty.
    default_instruction: instruction for requests that state none.

    Raises PromptError if `{document}` is not at the end of exactly one part, if no part has `{query}`, or if
    `positive` is empty.
    """

    parts: tuple[str, ...]
    positive: str
    negative: str = ""
    instruction: str = "{instruction}"
    default_instruction: str = ""

    def __post_init__(self) -> None:
        named = [name for part in self.parts for name in _PLACEHOLDER.findall(part)]
        if named.count("document") != 1 or not self.document_part.endswith("{document}"):
            raise PromptError("one part must end with {document}, and no other part may contain it")
        if "query" not in named:
            raise PromptError("a part must contain {query}")
        if not self.positive:
            raise PromptError("the positive answer must not be empty")

    @property
    def document_part(self) -> str:
        """The part that contains `{document}`; empty if there is no such part."""
        return next((part for part in self.parts if "{document}" in part), "")

    @property
    def takes_instruction(self) -> bool:
        return any("{instruction}" in part for part in self.parts)

    def fill(self, part: str, query: str, instruction: str | None, document: str = "") -> str:
        """Return a part with its placeholders replaced.

        instruction: instruction of the request; `default_instruction` replaces None or an empty text.
        """
        stated = instruction or self.default_instruction
        line = self.instruction.replace("{instruction}", stated) if stated else ""
        texts = {"query": query, "document": document, "instruction": line}
        return _PLACEHOLDER.sub(lambda match: texts[match[1]], part)


_QWEN_SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_MXBAI_TASK = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 "
    "for not relevant, 1 for relevant).\nRelevance:"
)
PUBLISHED: Mapping[str, AnswerPrompt] = {
    # https://huggingface.co/Qwen/Qwen3-Reranker-0.6B
    "qwen3-reranker": AnswerPrompt(
        (
            _QWEN_SYSTEM,
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        "yes",
        "no",
        default_instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    # https://github.com/FlagOpen/FlagEmbedding, FlagEmbedding/inference/reranker/decoder_only/base.py
    "bge-reranker-gemma": AnswerPrompt(
        ("<bos>", "A: {query}", "\n", "B: {document}", "\n", "{instruction}"),
        "Yes",
        default_instruction="Given a query A and a passage B, determine whether the passage contains an answer to the "
        "query by providing a prediction of either 'Yes' or 'No'.",
    ),
    # https://github.com/mixedbread-ai/mxbai-rerank, mxbai_rerank/mxbai_rerank_v2.py
    "mxbai-rerank-v2": AnswerPrompt(
        (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n",
            "{instruction}query: {query}",
            "\n",
            "document: {document}",
            "\n",
            _MXBAI_TASK,
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        "1",
        "0",
        instruction="instruction: {instruction}\n",
    ),
}
"""Prompts of published rerankers, by name, word for word."""


def read_prompt(name: str) -> AnswerPrompt:
    """Return a published prompt, or the prompt in a JSON file with the fields of `AnswerPrompt`.

    name: key of `PUBLISHED`, or path of the file. Raises PromptError for any other name, and for a file that cannot
    be used.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    path = Path(name).expanduser()
    if not path.is_file():
        raise PromptError(f"{name!r} is neither a file nor one of {', '.join(PUBLISHED)}")
    try:
        content = json.loads(path.read_bytes()[:MAX_PROMPT_BYTES])
    except (OSError, ValueError, RecursionError):
        raise PromptError(f"{path.name!r} is not JSON of at most {MAX_PROMPT_BYTES:,} bytes") from None
    names = {field.name for field in fields(AnswerPrompt)}
    if not isinstance(content, dict) or content.keys() - names or not {"parts", "positive"} <= content.keys():
        raise PromptError(f"{path.name!r} must be an object with parts and positive, and no fields but {sorted(names)}")
    parts = content.pop("parts")
    texts = [*parts, *content.values()] if isinstance(parts, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise PromptError(f"{path.name!r}: parts must be a list of strings, and the other fields strings")
    try:
        return AnswerPrompt(tuple(parts), **content)
    except PromptError as error:
        raise PromptError(f"{path.name!r}: {error}") from None
