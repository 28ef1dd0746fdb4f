"""Rendering a sample shows whether a chat template reads contents as texts or as lists of parts.

Published templates read texts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.text.chats.chat import ChatError, ChatRenderer, ChatTemplates, ContentForms, as_parts, chat_context
from server.text.chats.chat_forms import with_forms
from tests.text import tool_templates
from tests.text.chat_templates import ALL, HOSTILE
from tests.text.list_templates import EITHER, LISTS_ONLY, LOST, MIXED, NO_SYSTEM_ROLE
from tests.waiting import HANG_SECONDS

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "published"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
ROLES = frozenset({"user", "system", "assistant"})
OURS = {**ALL, **tool_templates.BY_FORMAT, "qwen-3": tool_templates.QWEN_3, "opens": tool_templates.OPENS_THINKING}


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    yield renderer
    renderer.close()


def probed(renderer: ChatRenderer, source: str, **others: str) -> ChatTemplates:
    return with_forms(ChatTemplates({"default": source, **others}, SPECIAL), renderer, HANG_SECONDS)


def forms(renderer: ChatRenderer, source: str) -> ContentForms:
    return probed(renderer, source).forms_of(source)


def published() -> dict[str, str]:
    """The templates in `../shared/published`, by their path there."""
    found = {}
    for path in sorted(PUBLISHED.rglob("*.jinja")):
        if ".lark" not in path.name:
            found[str(path.relative_to(PUBLISHED))] = path.read_text(encoding="utf-8")
    for path in sorted(PUBLISHED.rglob("tokenizer_config.json")):
        stated = json.loads(path.read_text(encoding="utf-8")).get("chat_template") or []
        named = [{"name": "default", "template": stated}] if isinstance(stated, str) else stated
        found |= {f"{path.relative_to(PUBLISHED)} {entry['name']}": entry["template"] for entry in named}
    return found


@pytest.mark.parametrize("name", LISTS_ONLY)
def test_a_template_that_reads_lists_alone_gets_lists(renderer: ChatRenderer, name: str) -> None:
    templates = probed(renderer, LISTS_ONLY[name])
    assert templates.forms_of(LISTS_ONLY[name]) == ContentForms(parts=ROLES) and templates.problem is None
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
    given = templates.in_forms(LISTS_ONLY[name], messages)
    text = renderer.render(LISTS_ONLY[name], chat_context(templates, given), 1000)
    assert text == "[system]Be brief.[user]What is it?[assistant]"


@pytest.mark.parametrize("name", MIXED)
def test_the_roles_of_a_template_may_differ(renderer: ChatRenderer, name: str) -> None:
    assert forms(renderer, MIXED[name]) == ContentForms(parts=frozenset({name}))


def test_a_template_that_reads_both_forms_gets_texts(renderer: ChatRenderer) -> None:
    templates = probed(renderer, EITHER)
    assert templates.forms_of(EITHER) == ContentForms()
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}, {"role": "user"}]
    assert templates.in_forms(EITHER, messages) == messages


@pytest.mark.parametrize("name", LOST)
def test_a_template_that_reads_neither_form_is_a_problem(renderer: ChatRenderer, name: str) -> None:
    problem = probed(renderer, EITHER, tool_use=LOST[name]).problem
    assert problem is not None and "\n" not in problem and '"tool_use"' in problem and "leaves out" in problem


def test_a_role_that_is_left_out_is_known(renderer: ChatRenderer) -> None:
    templates = probed(renderer, NO_SYSTEM_ROLE)
    assert templates.forms_of(NO_SYSTEM_ROLE) == ContentForms(lost=frozenset({"system"})) and templates.problem is None


@pytest.mark.parametrize("name", OURS)
def test_templates_in_the_style_of_published_ones_read_texts(renderer: ChatRenderer, name: str) -> None:
    assert forms(renderer, OURS[name]) == ContentForms()


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the folder of published files is missing")
def test_published_templates_load_and_read_texts(renderer: ChatRenderer) -> None:
    found = published()
    assert len(found) > 50
    assert {name: forms(renderer, source) for name, source in found.items()} == dict.fromkeys(found, ContentForms())


def test_a_template_that_only_dumps_lists_does_not_read_them(renderer: ChatRenderer) -> None:
    for dump in ("{{ messages[0].content[:5] }}", "{{ messages | tojson }}{{ messages[0].content.value }}"):
        assert "user" not in forms(renderer, dump).parts
    assert "user" in forms(renderer, "{% if messages[0].content is not string %}{{ messages }}{% endif %}").lost


def test_only_templates_that_requests_use_are_tried(renderer: ChatRenderer) -> None:
    templates = with_forms(ChatTemplates({"rag": LOST["constant"]}, SPECIAL), renderer)
    assert templates.forms == {} and templates.problem is None


def test_the_template_for_tools_is_tried_with_a_tool(renderer: ChatRenderer) -> None:
    needs_tools = "{{ tools[0].function.name }}" + EITHER
    assert probed(renderer, EITHER, tool_use=needs_tools).forms_of(needs_tools) == ContentForms()


@pytest.mark.parametrize("name", ["nested-loops", "huge-power", "endless-recursion", "huge-list", "long-output"])
def test_hostile_templates_take_no_longer_than_the_limit(name: str) -> None:
    renderer = ChatRenderer(seconds=0.3, memory_bytes=256 << 20)
    started = time.monotonic()
    try:
        templates = with_forms(ChatTemplates({"default": HOSTILE[name], "tool_use": HOSTILE[name]}), renderer, 0.6)
    finally:
        renderer.close()
    assert templates.problem is None, "nothing is known about a template that fails"
    assert templates.forms_of(HOSTILE[name]).parts == frozenset()
    assert time.monotonic() - started < HANG_SECONDS


def test_without_templates_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def render(*_: object) -> str:
        raise AssertionError("a template was rendered")

    monkeypatch.setattr(ChatRenderer, "render", render)
    assert with_forms(ChatTemplates(), ChatRenderer()) == ChatTemplates()


def test_a_list_of_parts_is_that_of_transformers() -> None:
    assert as_parts("a") == [{"type": "text", "text": "a"}]


def test_a_stopped_template_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server stops while it renders samples, no template is reported as faulty."""
    renderer = ChatRenderer()
    renderer.close()
    assert with_forms(ChatTemplates({"default": LOST["constant"]}), renderer).forms == {}


def test_errors_of_a_template_stay_those_of_requests(renderer: ChatRenderer) -> None:
    refuses = "{{ raise_exception('No.') }}"
    assert forms(renderer, refuses) == ContentForms()
    with pytest.raises(ChatError, match="No"):
        renderer.render(refuses, {}, 100)
