"""The programs that `make test-agents` runs, and the scripts of the scripted model that answers them.

Each program takes the turns of `TURNS`: a text, a tool loop of two calls with the program's own tools, and an answer
with reasoning. Some programs have additional turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.agents.page import ADDRESS, MODEL
from tests.scripted_model import GENERAL, ScriptedCall, Scripts, Step

TURNS = ("text", "tools", "reasoning")
EXTRA_TURNS = {
    "edit": "an edit of a file",
    "types": "a tool with `Path`, `set` and `SecretStr`",
    "code": "an action in code",
    "title": "a title for the chat",
}
BOTH = ("streamed", "whole")
LONG_LOOP, LONG_LOOP_CALLS = "long-loop", 10
"""Name of a turn of the coding agents, and the number of successive tool calls in it."""


@dataclass(frozen=True)
class Program:
    """One row of the table of agents: a program, or one way to use it.

    id: name in the names of tests and files.
    section: title of its section in docs/agents.md.
    packages: packages whose versions the table shows, with the prefix `npm:` or `pip:`.
    way: name of the program's code block, if the section has several.
    driver: file in `drivers` that is appended to the code block; empty for a command.
    environment: folder of a driver's separate Python environment, inside that of the agents; empty if it has none.
    turns: names of the turns that it takes.
    modes: `streamed`, `whole`, or both.
    arguments: arguments that are added to a command, by mode.
    variables: further environment variables of a driver.
    has_block: whether the page has a code block for this driver.
    has_raw_prompts: whether it sends text completions, which the server does not render with a chat template.
    is_recorded: whether the program is not installed; its requests in tests/e2e/recorded were then written by hand
        from its source.
    """

    id: str
    section: str
    packages: tuple[str, ...]
    way: str = ""
    driver: str = ""
    environment: str = ""
    turns: tuple[str, ...] = TURNS
    modes: tuple[str, ...] = BOTH
    arguments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    has_block: bool = True
    has_raw_prompts: bool = False
    is_recorded: bool = False

    @property
    def title(self) -> str:
        return f"{self.section}, {self.way}" if self.way else self.section


def _ways(prefix: str, section: str, driver: str, ways: Mapping[str, tuple[str, ...]], **more: object) -> list[Program]:
    return [Program(f"{prefix}-{way}", section, packages, way, driver, **more) for way, packages in ways.items()]  # type: ignore[arg-type]


_LITELLM = {
    "/v1": (
        "openai",
        "custom_openai",
        "hosted_vllm",
        "litellm_proxy",
        "llamafile",
        "lm_studio",
        "aiohttp_openai",
        "text-completion-openai",
    ),
    "": ("anthropic", "ollama", "ollama_chat"),
    "/v1/chat/completions": ("huggingface",),
}
"""Providers of LiteLLM, by the path that their `api_base` must end with."""
_TEXT_ONLY = ("text-completion-openai", "ollama")
"""Providers of LiteLLM that write all messages and tools into one text prompt."""

PROGRAMS = [
    Program("claude-code", "Claude Code", ("npm:@anthropic-ai/claude-code",), modes=("streamed",)),
    Program("codex", "Codex CLI", ("npm:@openai/codex",), modes=("streamed",)),
    Program("opencode", "opencode", ("npm:opencode-ai",), modes=("streamed",)),
    Program("qwen-code", "Qwen Code", ("npm:@qwen-code/qwen-code",), modes=("streamed",)),
    Program(
        "aider",
        "aider",
        ("pip:aider-chat",),
        turns=("text", "edit", "reasoning"),
        arguments={"whole": "--no-stream", "streamed": "--stream"},
    ),
    *_ways(
        "ai-sdk",
        "AI SDK",
        "ai_sdk.mjs",
        {
            "openai": ("npm:ai", "npm:@ai-sdk/openai"),
            "openai-chat": ("npm:ai", "npm:@ai-sdk/openai"),
            "openai-compatible": ("npm:ai", "npm:@ai-sdk/openai-compatible"),
            "anthropic": ("npm:ai", "npm:@ai-sdk/anthropic"),
            "ollama": ("npm:ai", "npm:ollama-ai-provider-v2"),
        },
    ),
    *_ways(
        "langchain",
        "LangChain",
        "langchain.py",
        {name: ("pip:langchain", f"pip:langchain-{name}") for name in ("openai", "anthropic", "ollama")},
    ),
    *_ways(
        "langchain-js",
        "LangChain.js",
        "langchain_js.mjs",
        {name: ("npm:langchain", f"npm:@langchain/{name}") for name in ("openai", "anthropic", "ollama")},
    ),
    *_ways(
        "llama-index",
        "LlamaIndex",
        "llama_index.py",
        {
            "openai": ("pip:llama-index-core", "pip:llama-index-llms-openai-like"),
            "ollama": ("pip:llama-index-core", "pip:llama-index-llms-ollama"),
        },
        environment="llama_index",
    ),
    *_ways(
        "openai-agents",
        "OpenAI Agents SDK",
        "openai_agents.py",
        dict.fromkeys(("responses", "chat"), ("pip:openai-agents",)),
        variables={"OPENAI_BASE_URL": f"{ADDRESS}/v1", "OPENAI_API_KEY": "not-needed"},
    ),
    *_ways(
        "pydantic-ai",
        "Pydantic AI",
        "pydantic_ai.py",
        dict.fromkeys(("openai", "responses", "anthropic", "ollama"), ("pip:pydantic-ai-slim",)),
        turns=(*TURNS, "types"),
    ),
    *_ways(
        "smolagents",
        "smolagents",
        "smolagents.py",
        dict.fromkeys(("openai", "litellm"), ("pip:smolagents",)),
        turns=(*TURNS, "code"),
    ),
    *(
        Program(
            f"litellm-{provider}",
            "LiteLLM",
            ("pip:litellm",),
            provider,
            "litellm_providers.py",
            turns=("text",) if provider in _TEXT_ONLY else TURNS,
            modes=("whole",) if provider == "aiohttp_openai" else BOTH,
            variables={"MODEL": f"{provider}/{MODEL}", "API_BASE": ADDRESS + path},
            has_block=False,
            has_raw_prompts=provider == "text-completion-openai",
        )
        for path, providers in _LITELLM.items()
        for provider in providers
    ),
    Program(
        "open-webui",
        "Open WebUI",
        (),
        turns=(*TURNS, "title"),
        modes=("openai", "ollama"),
        has_block=False,
        is_recorded=True,
    ),
]

ANSWER = "The secret word is mango."
NOTES = f"{ANSWER}\n"
EDITED = "The secret word is kiwi.\n"


def scripts(project: Path) -> Scripts:
    """The scripts of all programs. project: the folder in which the coding agents work, with `notes.txt`."""
    notes = str(project / "notes.txt")
    agents = {
        "claude-code": (
            ScriptedCall("Bash", {"command": "cat notes.txt", "description": "Print the notes"}),
            ScriptedCall("Read", {"file_path": notes}),
        ),
        "codex": (
            ScriptedCall("exec_command", {"cmd": "cat notes.txt"}),
            ScriptedCall("exec_command", {"cmd": "wc -c notes.txt"}),
        ),
        "opencode": (ScriptedCall("bash", {"command": "cat notes.txt"}), ScriptedCall("read", {"filePath": notes})),
        "qwen-code": (
            ScriptedCall("read_file", {"file_path": notes}),
            ScriptedCall("glob", {"pattern": "*.txt"}),
        ),
    }
    looks: dict[str, Callable[[int], ScriptedCall]] = {
        "claude-code": lambda n: ScriptedCall("Bash", {"command": f"head -n {n} notes.txt", "description": "Look"}),
        "codex": lambda n: ScriptedCall("exec_command", {"cmd": f"head -n {n} notes.txt"}),
        "opencode": lambda n: ScriptedCall("bash", {"command": f"head -n {n} notes.txt"}),
        "qwen-code": lambda n: ScriptedCall("read_file", {"file_path": notes, "limit": n}),
    }
    long_loops = {
        f"{name}-{LONG_LOOP}": [
            Step(reasoning="I look at the notes again and again.", calls=(look(1),)),
            *(Step(calls=(look(number),)) for number in range(2, LONG_LOOP_CALLS + 1)),
            Step(ANSWER),
        ]
        for name, look in looks.items()
    }
    weather, time, told = GENERAL["tools"]
    own_tools = [replace(weather, reasoning="The weather comes first."), time, told]
    keep = ScriptedCall("keep", {"path": "notes/a.txt", "labels": ["new", "old"], "token": "a token"})
    loops = {
        f"{name}-tools": [Step(reasoning="The notes may have it.", calls=(first,)), Step(calls=(second,)), Step(ANSWER)]
        for name, (first, second) in agents.items()
    }
    return {
        **GENERAL,
        **loops,
        **long_loops,
        "tools": own_tools,
        "aider-edit": [Step(f"I change the word.\n\nnotes.txt\n```\n{EDITED}```")],
        "title": GENERAL["text"],
        "types": [Step(calls=(keep,)), Step("The file is kept.")],
        "smolagents-tools": [*own_tools[:2], Step(calls=(ScriptedCall("final_answer", {"answer": told.content}),))],
        "smolagents-code": [Step(f'Thought: I know it.\n<code>\nfinal_answer("{ANSWER}")\n</code>')],
    }


def script_of(program: Program, turn: str) -> str:
    """Name of the script for a turn of a program."""
    own = f"{program.section if program.driver else program.id}-{turn}"
    return own if own in scripts(Path()) else turn
