"""Chat templates render as in transformers, and hostile templates end in an error within the limits."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from server.text.chats.chat import ChatError, ChatRenderer, ChatTemplates, chat_context, read_templates
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from server.text.tokens.tokenizer import TokenizerError
from tests.text import checkpoints
from tests.text.chat_templates import ALL, CONVERSATIONS, HOSTILE, TURNS
from tests.waiting import HANG_SECONDS
from weights.errors import ResolveError

MAX_CHARACTERS = 100_000
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "né", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def limited() -> Iterator[ChatRenderer]:
    renderer = ChatRenderer(seconds=HANG_SECONDS, memory_bytes=256 << 20)
    yield renderer
    renderer.close()


def write(directory: Path, **settings: object) -> Path:
    checkpoints.write_llama(directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | settings))
    return directory


def read(directory: Path) -> ChatTemplates:
    return read_templates(directory, read_tokenizer_files(directory))


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "add_generation_prompt": False}], ids=["plain", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", ALL)
def test_the_text_equals_the_reference(tmp_path, renderer, template, conversation, options):
    from transformers import AutoTokenizer

    directory = write(tmp_path, chat_template=ALL[template], pad_token="<unk>")
    reference, templates = AutoTokenizer.from_pretrained(directory), read(directory)
    messages, options = CONVERSATIONS[conversation], {"add_generation_prompt": True, **options}
    try:
        expected = reference.apply_chat_template(messages, tokenize=False, **options)
    except Exception:
        expected = None
    context = chat_context(templates, messages, **options)
    if expected is None:
        with pytest.raises(ChatError):
            renderer.render(templates.choose(), context, MAX_CHARACTERS)
    else:
        assert renderer.render(templates.choose(), context, MAX_CHARACTERS) == expected
        assert expected.strip()


def test_most_templates_of_the_comparison_render(renderer):
    """If all templates failed here and in transformers, the comparison would pass without comparing any text."""
    templates, rendered = ChatTemplates({}, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}), 0
    for template in ALL.values():
        for messages in CONVERSATIONS.values():
            try:
                rendered += bool(renderer.render(template, chat_context(templates, messages), MAX_CHARACTERS))
            except ChatError:
                continue
    assert rendered >= 20


def test_extra_variables_reach_the_template(renderer):
    context = chat_context(ChatTemplates(), TURNS, extra_variables={"enable_thinking": False, "bos_token": "<b>"})
    assert renderer.render("{{ enable_thinking }}{{ bos_token }}", context, MAX_CHARACTERS) == "False<b>"


def test_the_error_quotes_the_template_but_not_the_messages(renderer):
    messages = [{"role": "user", "content": "canary"}]
    with pytest.raises(ChatError, match=r"does not accept these messages: Roles take turns"):
        renderer.render(
            "{{ raise_exception('Roles take turns') }}", chat_context(ChatTemplates(), messages), MAX_CHARACTERS
        )
    with pytest.raises(ChatError) as error:
        renderer.render(
            "{{ raise_exception(messages[0].content) }}", chat_context(ChatTemplates(), messages), MAX_CHARACTERS
        )
    assert "canary" not in str(error.value)
    with pytest.raises(ChatError) as error:
        renderer.render("{{ messages[0].content.missing() }}", chat_context(ChatTemplates(), messages), MAX_CHARACTERS)
    assert "UndefinedError" in str(error.value) and "canary" not in str(error.value)


@pytest.mark.parametrize("module", ["json", "jinja2", "server"])
def test_modules_in_the_working_directory_are_not_imported(tmp_path, monkeypatch, module):
    """Rendering imports no module from the working directory, because other users may be able to write there."""
    (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError\n")
    monkeypatch.chdir(tmp_path)
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    try:
        assert renderer.render("{{ messages[0].content }}", chat_context(ChatTemplates(), TURNS[2:]), MAX_CHARACTERS)
    finally:
        renderer.close()
    assert not (tmp_path / "imported").exists()


# --------------------------------------------------------------------------------------------------------------- files


def test_files_that_templates_are_read_from(tmp_path):
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    several = read(write(tmp_path / "named", chat_template=named))
    assert (several.choose(), several.choose(with_tools=True)) == ("d", "t")
    both = write(tmp_path / "both", chat_template="old")
    assert read(both).choose(with_tools=True) == "old"
    (both / "chat_template.jinja").write_text("née", encoding="utf-8")
    assert read(both).choose() == "née"
    (both / "chat_templates").mkdir()
    (both / "chat_templates" / "tool_use.jinja").write_text("with tools")
    assert read(both).choose(with_tools=True) == "with tools"
    assert read(both).special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_the_template_of_a_processor(tmp_path):
    """Older releases of transformers saved a processor's template in `chat_template.json`; only processors read it."""
    file = "chat_template.json"
    directory = write(tmp_path / "model")
    (directory / file).write_text('{"chat_template": "of the processor"}')
    assert read(directory).choose() == "of the processor"
    assert read(write(directory, chat_template="of the tokenizer")).choose() == "of the processor"
    (directory / "chat_template.jinja").write_text("new")
    assert read(directory).choose() == "new"
    (directory / "chat_template.jinja").unlink()
    (directory / file).write_text("{}")
    assert read(directory).choose() == "of the tokenizer"
    for content in ('{"chat_template": 3}', "[]", "{"):
        (directory / file).write_text(content)
        with pytest.raises(TokenizerError, match=r"chat_template\.json"):
            read(directory)


def test_errors_for_missing_templates(tmp_path):
    with pytest.raises(ChatError, match="no chat template"):
        read(write(tmp_path / "none")).choose()
    only = read(write(tmp_path / "only", chat_template=[{"name": "rag", "template": "r"}]))
    with pytest.raises(ChatError, match="rag"):
        only.choose()


@pytest.mark.parametrize("value", [3, [{"name": "default"}], ["a"], {"default": "a"}, [{"name": 1, "template": "a"}]])
def test_templates_of_a_wrong_type_are_errors(tmp_path, value):
    with pytest.raises(TokenizerError, match="chat_template"):
        read(write(tmp_path, chat_template=value))


def test_binary_long_and_linked_templates_are_errors(tmp_path):
    directory = write(tmp_path / "model")
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja"):
        read(directory)
    (directory / "chat_template.jinja").write_text("a" * (1 << 20) + "a")
    with pytest.raises(TokenizerError, match="longer"):
        read(directory)
    (directory / "chat_template.jinja").unlink()
    (tmp_path / "secret").write_text("secret")
    (directory / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(ResolveError, match="leads out"):
        read(directory)


# ------------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_render_nothing_or_fail(limited, name, monkeypatch):
    before = time.monotonic()
    context = chat_context(ChatTemplates(), TURNS)
    with monkeypatch.context() as hurried:
        hurried.setattr(limited, "_seconds", 1.0)
        try:
            text = limited.render(HOSTILE[name], context, MAX_CHARACTERS)
        except ChatError as error:
            assert "\n" not in str(error) and len(str(error)) < 300
        else:
            assert not text.strip(), "a hostile template rendered text"
    assert time.monotonic() - before < HANG_SECONDS, "1 s for the template, the rest for a new process"
    assert limited.render("{{ messages | length }}", context, MAX_CHARACTERS) == "3"


def test_hostile_templates_do_harm_without_the_sandbox():
    """Negative control: in Jinja without our sandbox, templates reach Python's internals and render endless texts."""
    import jinja2

    text = jinja2.Environment().from_string(HOSTILE["walk-to-classes"]).render()
    assert "class 'type'" in text
    long = HOSTILE["huge-repetition"].replace("10000000000", "200000")
    assert len(jinja2.Environment().from_string(long).render()) > MAX_CHARACTERS


def test_the_process_cannot_open_files(limited):
    limited.render("a", {}, MAX_CHARACTERS)
    (child,) = psutil.Process(limited._process.pid).children() or [psutil.Process(limited._process.pid)]
    assert child.rlimit(psutil.RLIMIT_NOFILE) == (0, 0)
    assert child.rlimit(psutil.RLIMIT_AS)[0] == 256 << 20
    assert not [name for name in child.environ() if "KEY" in name or "TOKEN" in name]


def test_many_threads_share_one_process(renderer):
    template = "{{ messages[0].content }}" * 3
    contexts = [chat_context(ChatTemplates(), [{"role": "user", "content": f"é{i}"}]) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda context: renderer.render(template, context, MAX_CHARACTERS), contexts))
    assert texts == [f"é{i}" * 3 for i in range(64)]


def test_a_dead_process_is_replaced_and_closing_stops_it():
    renderer = ChatRenderer(seconds=HANG_SECONDS)
    assert renderer.render("a", {}, 9) == "a"
    first = psutil.Process(renderer._process.pid)
    first.kill()
    first.wait()
    assert renderer.render("b", {}, 9) == "b"
    second = psutil.Process(renderer._process.pid)
    renderer.close()
    gc.collect()
    assert not second.is_running()
