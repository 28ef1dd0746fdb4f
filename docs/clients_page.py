"""Write `docs/clients.md` from the results of the client tests: every client, its version, its calls, and an example.

Run: `make clients`, which runs the tests first. Arguments: their JUnit XML files. The second table is about agents and
SDKs, whose tests are in tests/agents; docs/agents.md says how to point each one at the server.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.agents.programs import EXTRA_TURNS, PROGRAMS, TURNS, Program  # noqa: E402

PAGE = ROOT / "docs" / "clients.md"
AGENTS = ROOT / "tests" / "agents"
HEAVY_REQUIREMENTS = ROOT / "tests" / "clients" / "heavy" / "requirements.txt"


@dataclass(frozen=True)
class Client:
    """A client package that the tests use unchanged.

    tests: modules of its tests below `tests/clients`. `MODULE:PART` means only the tests with the parameter PART.
    calls: the calls that the tests make, for the table.
    example: a script that takes the address and the key of the server from the environment.
    """

    package: str
    tests: tuple[str, ...]
    calls: str
    example: str


CLIENTS = (
    Client(
        "openai",
        ("test_openai", "test_openai_errors", "test_openai_audio", "test_openai_responses", "test_openai_tools"),
        "completions, chat, structured output, tools, responses, embeddings, models; streaming; every error class",
        "examples/openai_chat.py",
    ),
    Client(
        "anthropic",
        ("test_anthropic",),
        "messages, streaming, tools, count_tokens, errors",
        "examples/anthropic_messages.py",
    ),
    Client(
        "ollama",
        ("test_ollama",),
        "generate, chat, tools, embed, embeddings, list, show, ps; streaming; errors",
        "examples/ollama_chat.py",
    ),
    Client("cohere", ("test_cohere",), "chat, streaming, embed, rerank, errors", "examples/cohere_rerank.py"),
    Client(
        "huggingface_hub",
        ("test_huggingface",),
        "`InferenceClient`: text generation, chat, embeddings, similarity, classification, zero-shot, fill-mask, "
        "entities, question answering, translation, summarization, speech recognition",
        "examples/huggingface_client.py",
    ),
    Client("deepl", ("test_deepl",), "translate, HTML, languages, usage, errors", "examples/deepl_client.py"),
    Client(
        "libretranslatepy",
        ("test_libretranslate",),
        "translate, detect, languages",
        "examples/libretranslate_client.py",
    ),
    Client(
        "langchain-openai",
        ("heavy.test_scripts:langchain_client",),
        "`ChatOpenAI`, `OpenAIEmbeddings`",
        "examples/langchain_chat.py",
    ),
    Client(
        "litellm",
        ("heavy.test_scripts:litellm_client",),
        "completion, streaming, embedding",
        "examples/litellm_chat.py",
    ),
    Client(
        "lm-eval",
        ("heavy.test_lm_eval",),
        "`local-completions` with its remote tokenizer; scores equal `transformers`",
        "examples/lm_eval.sh",
    ),
)

_HEAD = """# Clients

Programs that work with Triptych unchanged. The tests run each package against a running server twice: without a key,
and with a key that the client sends in its own way. This page is written from their results (`make clients`).

| client | version | calls | tests without a key | tests with a key |
|---|---|---|---|---|
"""
AGENTS_HEAD = """
## Agents and SDKs

[agents.md](agents.md) says how to point each of these programs at Triptych. `make test-agents` runs each one unmodified
and with its default settings, in versions that lock files pin, and with nothing on the network but the server. The
model is a tiny LLaMA whose answers a test has written, so texts, tool calls and reasoning are known; each program must
show them. A tool loop has two calls of the program's own tools, and their results. "Streamed" and "whole" say how the
program asked. `make test-agents-newest` does the same with the newest versions. The pinned versions were the newest
ones on 2026-11-28.

| program | version | text | tool loop | reasoning | more |
|---|---|---|---|---|---|
"""
_EXAMPLES = """
## Examples

Every example below reads the address of the server from `TRIPTYCH_URL` and the key from `TRIPTYCH_API_KEY`. A server
without keys needs none; packages that insist on one accept any text.
"""


def agent_versions() -> dict[str, str]:
    """Pinned versions of the packages of agents and SDKs, by name with the prefix `npm:` or `pip:`."""
    found = {f"npm:{name}": number for name, number in _npm_versions().items()}
    for file in ("requirements.lock.txt", "llama_index.lock.txt", "aider.lock.txt"):
        lines = (line.partition(";")[0].strip() for line in (AGENTS / file).read_text().splitlines())
        found = {f"pip:{name}": number for name, _, number in (line.partition("==") for line in lines)} | found
    return found


def _npm_versions() -> dict[str, str]:
    versions: dict[str, str] = json.loads((AGENTS / "package.json").read_text())["dependencies"]
    return versions


def heavy_versions() -> dict[str, str]:
    """Pinned versions of the clients that are installed in separate environments."""
    lines = (line.partition("#")[0].strip() for line in HEAVY_REQUIREMENTS.read_text().splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.partition("[")[0]: number for name, number in pairs}


def passed(files: Iterable[Path]) -> Mapping[str, Counter[str]]:
    """Number of passed tests of each module with an API key (`key`) and without (`no-key`).

    files: JUnit XML files. Raises SystemExit if a test failed.
    """
    found: dict[str, Counter[str]] = {}
    for module, parameters in _passed_tests(files, "tests.clients."):
        parts = parameters.split("-")
        key = "no-key" if "no" in parts else "key"
        for name in (module, *(f"{module}:{part}" for part in parts)):
            found.setdefault(name, Counter())[key] += 1
    return found


def passed_turns(files: Iterable[Path]) -> set[str]:
    """The passed turns of agents, as `PROGRAM-TURN-MODE`. files: JUnit XML files."""
    return {parameters for _, parameters in _passed_tests(files, "tests.agents.", may_fail=True)}


def _passed_tests(files: Iterable[Path], package: str, may_fail: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the module and the parameters of each passed test of a package.

    may_fail: whether failed tests are ignored; otherwise they raise SystemExit.
    """
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            module = case.attrib["classname"]
            if not module.startswith(package) or case.find("skipped") is not None:
                continue
            if any(case.find(outcome) is not None for outcome in ("failure", "error")):
                if may_fail:
                    continue
                raise SystemExit(f"{module}: {case.attrib['name']} did not pass")
            yield module.removeprefix(package), case.attrib["name"].partition("[")[2].removesuffix("]")


def table_rows(results: Mapping[str, Counter[str]]) -> list[str]:
    """The table rows, one for each client. Raises SystemExit if no test of a client passed with, or without, a key."""
    rows = []
    heavy = heavy_versions()
    for client in CLIENTS:
        counts = sum((results.get(name, Counter()) for name in client.tests), Counter())
        if not counts["no-key"] or not counts["key"]:
            raise SystemExit(f"no test of {client.package} passed, with and without a key")
        number = heavy.get(client.package) or version(client.package)
        rows.append(
            f"| `{client.package}` | {number} | {client.calls} | {counts['no-key']} passed | {counts['key']} passed |"
        )
    return rows


def agent_row(program: Program, versions: Mapping[str, str], turns: set[str]) -> str:
    """The row of an agent or SDK. turns: the turns that passed."""

    def cell(turn: str) -> str:
        if turn not in program.turns:
            return "-"
        passed = [mode for mode in program.modes if f"{program.id}-{turn}-{mode}" in turns or program.is_recorded]
        return ", ".join(passed) or "failed"

    more = [f"{EXTRA_TURNS[turn]}: {cell(turn)}" for turn in program.turns if turn not in TURNS]
    return f"{agent_start(program, versions)} {' | '.join([*map(cell, TURNS), '; '.join(more)])} |"


def agent_start(program: Program, versions: Mapping[str, str]) -> str:
    """The beginning of the row of an agent or SDK: its name and its pinned versions."""
    numbers = [f"{name.partition(':')[2]} {versions[name]}" for name in program.packages]
    return f"| {program.title} | {', '.join(numbers) or 'requests written from its source'} |"


def examples() -> list[str]:
    """The section with an example of each client."""
    parts = [_EXAMPLES]
    for client in CLIENTS:
        language = "sh" if client.example.endswith(".sh") else "python"
        code = (ROOT / client.example).read_text().rstrip()
        link = f"[`{client.example}`](../{client.example})"
        parts.append(f"## {client.package}\n\n{link}\n\n```{language}\n{code}\n```\n")
    return parts


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    rows, versions, turns = table_rows(passed(files)), agent_versions(), passed_turns(files)
    agents = [agent_row(program, versions, turns) for program in PROGRAMS]
    PAGE.write_text("\n".join([_HEAD + "\n".join(rows), AGENTS_HEAD + "\n".join(agents), *examples()]))


if __name__ == "__main__":
    main()
