"""Prompts for language models that rerank: placeholders for texts, prompts from files, and refused prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from server.text.chats.answer_prompts import PUBLISHED, AnswerPrompt, PromptError, read_prompt

ROOT = Path(__file__).resolve().parents[2]


def test_texts_are_put_in_once() -> None:
    """A text of the user that looks like a placeholder is not replaced."""
    prompt = PUBLISHED["qwen3-reranker"]
    filled = prompt.fill(prompt.document_part, "{document}", "{query}", "{instruction} and {query}")
    assert filled == "<Instruct>: {query}\n<Query>: {document}\n<Document>: {instruction} and {query}"


def test_an_instruction_that_nobody_states() -> None:
    prompt = PUBLISHED["mxbai-rerank-v2"]
    assert prompt.fill("{instruction}query: {query}", "q", None) == "query: q"
    assert prompt.fill("{instruction}query: {query}", "q", "rank") == "instruction: rank\nquery: q"
    assert PUBLISHED["bge-reranker-gemma"].fill("{instruction}", "q", None).startswith("Given a query A")


def test_the_file_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "requests.md").read_text()
    (block,) = re.findall(r"```json\n(\{\"parts\".*?)\n```", page, re.DOTALL)
    (tmp_path / "prompt.json").write_text(block)
    prompt = read_prompt(str(tmp_path / "prompt.json"))
    assert prompt.document_part == "Text: {document}" and (prompt.positive, prompt.negative) == (" yes", " no")
    assert not prompt.takes_instruction


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"parts": ["{query}"], "positive": "yes"}, "document"),
        ({"parts": ["{query} {document}."], "positive": "yes"}, "must end with"),
        ({"parts": ["{document}"], "positive": "yes"}, "query"),
        ({"parts": ["{query}", "{document}"], "positive": ""}, "positive"),
        ({"parts": ["{query}", "{document}"]}, "positive"),
        ({"parts": "x", "positive": "yes"}, "list of strings"),
        ({"parts": ["{query}", "{document}"], "positive": "yes", "other": "x"}, "no fields but"),
        ([], "object"),
    ],
)
def test_files_are_refused_by_name(tmp_path: Path, content: object, named: str) -> None:
    file = tmp_path / "prompt.json"
    file.write_text(json.dumps(content))
    with pytest.raises(PromptError, match=named) as refused:
        read_prompt(str(file))
    assert str(tmp_path) not in str(refused.value)


def test_an_unknown_name_lists_the_published_ones() -> None:
    with pytest.raises(PromptError, match="qwen3-reranker"):
        read_prompt("qwen4")
    with pytest.raises(PromptError, match="document"):
        AnswerPrompt(("{query}",), "yes")
